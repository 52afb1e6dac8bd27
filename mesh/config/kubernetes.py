"""Reader of pods: ``kubernetes:`` in cluster.yaml, and ``k8s:SELECTOR`` in a cluster's place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from yaml.nodes import MappingNode, Node

from mesh.config.podspec import MADE_KEYS, is_name, name_of, read_made
from mesh.config.section import Section
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Host, Source
from mesh.core.errors import UsageError

KEY = "kubernetes"  # of a cluster in cluster.yaml
WORD = "k8s"
BUILT_IN = f"{WORD}:"
BACKEND = "pods"
EXISTING_KEYS = ("context", "namespace", "selector", "container", "order")
ORDERS = ("index", "name")
INSTEAD = ("hosts", "slices")  # keys that list hosts
# Keys of a cluster that are about SSH, or name another way.
MEANINGLESS = (
    "user",
    "port",
    "identity_file",
    "gateway",
    "password_env",
    "host_keys",
    "keep",
    "backend",
    "command",
    "tpu",
)
_SELECTOR = re.compile(r"[\w./=!,() -]+")
EXPECTED_SELECTOR = "a selector of labels, as app=trainer,tier=gpu"


class Pods(Source, frozen=True, kw_only=True):
    """Pods that are there, by their labels."""

    backend: ClassVar[str] = BACKEND

    selector: str
    context: str = ""  # of kubeconfig; "": its current one
    namespace: str = ""  # "": the context's
    container: str = ""  # "": the only one, or the default one of the pod
    place: str = ""  # in cluster.yaml, for messages; "": in no file
    order: str = ""  # "name", or "" for the completion index where pods have one


def built_in(name: str) -> Pods:
    """Return the pods of ``k8s:[[CONTEXT@]NAMESPACE:]SELECTOR``. Raises UsageError.

    >>> built_in("k8s:app=x,tier=y").selector, built_in("k8s:team:app=x").namespace
    ('app=x,tier=y', 'team')
    >>> built_in("k8s:arn:aws:eks:a/b@team:app=x").context
    'arn:aws:eks:a/b'
    """
    place, colon, selector = name.removeprefix(BUILT_IN).rpartition(":")
    context, _, namespace = place.rpartition("@")
    if colon and not is_name(namespace):
        raise UsageError(
            f"{name!r}: expected a namespace, found {namespace!r}", hint=f"{BUILT_IN}NAMESPACE:app=trainer"
        )
    if not _SELECTOR.fullmatch(selector):
        raise UsageError(f"{name!r}: expected {EXPECTED_SELECTOR}, found {selector!r}")
    return Pods(selector=selector, context=context, namespace=namespace)


def built_in_name(context: str, namespace: str, selector: str) -> str:
    """Return the name by which pods that are in no file are found, also where another context is the current one."""
    return f"{BUILT_IN}{context}@{namespace}:{selector}" if context else f"{BUILT_IN}{namespace}:{selector}"


def read(cluster: Mapping[str, tuple[Node, Node]], name: str, like: Host, problems: Problems) -> Source:
    """Read ``kubernetes:`` of a cluster, whose keys are given. The result is valid only without problems."""
    node, where = cluster[KEY][1], f"{name}.{KEY}"
    for other in INSTEAD:
        if other in cluster:
            problems.add(node, where, f"has {other}: beside it; its hosts are pods")
    for other in MEANINGLESS:
        if other in cluster:
            problems.add(cluster[other][0], f"{name}.{other}", f"has no meaning beside {KEY}:")
    written = [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []
    if {"image", "groups"} & {*written} and "selector" not in written:
        section = Section(node, where, MADE_KEYS, problems, "a mapping with image: or groups:")
        return read_made(section, problems.place(node, where))
    section = Section(node, where, EXISTING_KEYS, problems, "a mapping with selector: or image:")
    selector = section.text("selector", EXPECTED_SELECTOR)
    if not selector:
        problems.add(node, where, "expected selector: (pods that are there) or image: (pods that mesh makes)")
    elif not _SELECTOR.fullmatch(selector):
        section.unexpected("selector", EXPECTED_SELECTOR)
    order = section.text("order", " or ".join(ORDERS))
    if order and order not in ORDERS:
        section.unexpected("order", " or ".join(ORDERS))
    return Pods(
        selector=selector,
        context=section.text("context", "a context of kubeconfig"),
        namespace=name_of(section, "namespace"),
        container=name_of(section, "container"),
        place=problems.place(node, where),
        order="name" if order == "name" else "",
    )
