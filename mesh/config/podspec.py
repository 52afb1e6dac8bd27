"""Reader of pods that mesh makes: ``kubernetes:`` with ``image:`` in cluster.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, SequenceNode

from mesh.config.section import Section
from mesh.core.cluster import Source

MADE_KEYS = (
    "context",
    "namespace",
    "nodes",
    "image",
    "resources",
    "hold",
    "start_timeout",
    "switchboard_from",
    "gang",
    "queue",
    "node_selector",
    "tolerations",
    "volumes",
    "shm",
    "service_account",
    "priority_class",
    "image_pull_secrets",
    "labels",
    "annotations",
    "env",
    "pod",
)
PODS_MAX = 1024
DEFAULT_HOLD_S = 600.0
DEFAULT_START_S = 600.0
DEFAULT_SWITCHBOARD_FROM = 64  # pods
VOLCANO = "volcano"
GANGS = ("none", VOLCANO)
VOLUME_KINDS = ("claim", "host_path", "empty_dir", "secret", "config_map", "nfs")
VOLUME_KEYS = (*VOLUME_KINDS, "path", "read_only")
NAME_CHARACTERS = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
EXPECTED_NAME = f"a name of at most {NAME_CHARACTERS} small letters, digits and dashes"
_QUANTITY = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
EXPECTED_LABEL = f"at most {NAME_CHARACTERS} letters, digits, dashes, dots and underscores"
EXPECTED_QUANTITY = "a quantity, as 16, 500m or 64Gi"
Plain = Mapping[str, object]


class Volume(Struct, frozen=True, kw_only=True):
    """A volume of a pod, and the path of it in the container."""

    kind: str  # one of VOLUME_KINDS
    value: str  # the claim, directory, size, Secret, ConfigMap, or SERVER:/PATH
    path: str
    read_only: bool = False


class PodTemplate(Struct, frozen=True, kw_only=True):
    """All pods of a cluster, as they are asked for."""

    image: str
    requests: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Plain, ...] = ()
    volumes: tuple[Volume, ...] = ()
    shm: str = ""  # size of /dev/shm; "": as the runtime has it
    service_account: str = ""  # "": none, and no token
    priority_class: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    gang: str = ""  # one of GANGS: binds pods to nodes all at once; "": none
    queue: str = ""  # of the gang's scheduler; "": its default one
    pod: Plain = {}  # fields of a pod spec, merged last


class MadePods(Source, frozen=True, kw_only=True):
    """Pods that mesh makes when a command needs them."""

    backend: ClassVar[str] = "pods"

    template: PodTemplate
    nodes: int = 1
    context: str = ""  # as in Pods
    namespace: str = ""
    hold: float = DEFAULT_HOLD_S  # seconds that idle pods wait for the next command
    start_timeout: float = DEFAULT_START_S  # seconds until all pods run
    switchboard_from: int = DEFAULT_SWITCHBOARD_FROM  # pods, from which on a switchboard carries their streams
    place: str = ""  # as in Pods


def read_made(section: Section, place: str = "") -> MadePods:
    """Read the keys of pods that mesh makes. The result is valid only without problems. place: of the section"""
    image = section.text("image", "an image, as team/train:3")
    if any(character.isspace() for character in image) or not image:
        section.unexpected("image", "an image, as team/train:3")
    requests, limits = _resources(section)
    shm = section.text("shm", EXPECTED_QUANTITY)
    if shm and not _QUANTITY.fullmatch(shm):
        section.unexpected("shm", EXPECTED_QUANTITY)
    gang = _gang(section)
    template = PodTemplate(
        image=image,
        requests=requests,
        limits=limits,
        node_selector=_labels(section, "node_selector"),
        tolerations=_mappings(section, "tolerations"),
        volumes=_volumes(section),
        shm=shm,
        service_account=section.text("service_account", "the name of a service account"),
        priority_class=section.text("priority_class", "the name of a priority class"),
        image_pull_secrets=section.texts("image_pull_secrets", "a list of names of Secrets"),
        labels=_labels(section, "labels"),
        annotations=section.environment("annotations"),
        env=section.environment("env"),
        gang=gang,
        queue=name_of(section, "queue"),
        pod=_mapping(section, "pod"),
    )
    hold = section.seconds("hold", DEFAULT_HOLD_S)
    start = section.seconds("start_timeout", DEFAULT_START_S)
    for key, value in (("hold", hold), ("start_timeout", start)):
        if not math.isfinite(value):
            section.unexpected(key, "a time, as 10m")
    return MadePods(
        template=template,
        nodes=section.integer("nodes", 1, 1, PODS_MAX),
        context=section.text("context", "a context of kubeconfig"),
        namespace=name_of(section, "namespace"),
        hold=hold,
        start_timeout=start,
        switchboard_from=section.integer("switchboard_from", DEFAULT_SWITCHBOARD_FROM, 2, PODS_MAX + 1),
        place=place,
    )


def _gang(section: Section) -> str:
    """Return the kind of gang, "" for none."""
    expected = " or ".join(GANGS)
    found = section.text("gang", expected)
    if found and found not in GANGS:
        section.unexpected("gang", expected)
    if "queue" in section and found in ("", "none"):
        section.add("queue", f"has no meaning without gang: {VOLCANO}")
    return "" if found == "none" else found


def is_name(text: str) -> bool:
    """Return True for a name that objects of Kubernetes may have everywhere."""
    return len(text) <= NAME_CHARACTERS and bool(_NAME.fullmatch(text))


def is_quantity(text: str) -> bool:
    """Return True for a quantity of Kubernetes.

    >>> is_quantity("64Gi"), is_quantity("many")
    (True, False)
    """
    return bool(_QUANTITY.fullmatch(text))


def name_of(section: Section, key: str) -> str:
    """Return the name below a key; a problem is noted for one that is none."""
    found = section.text(key, EXPECTED_NAME)
    if found and not is_name(found):
        section.unexpected(key, EXPECTED_NAME)
    return found


def plain(node: Node) -> object:
    """Return a value of a YAML file as it is."""
    return SafeConstructor().construct_document(node)


def _mapping(section: Section, key: str) -> Plain:
    if key not in section:
        return {}
    node = section.node(key)
    if not isinstance(node, MappingNode):
        section.unexpected(key, "fields of a pod spec")
        return {}
    found = plain(node)
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def _mappings(section: Section, key: str) -> tuple[Plain, ...]:
    if key not in section:
        return ()
    node = section.node(key)
    if not isinstance(node, SequenceNode) or not all(isinstance(one, MappingNode) for one in node.value):
        section.unexpected(key, "a list of mappings")
        return ()
    found = plain(node)
    assert isinstance(found, list)
    return tuple({str(name): value for name, value in one.items()} for one in found)


def _resources(section: Section) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return requests and limits; quantities beside neither word are both."""
    found = _mapping(section, "resources")
    if found.keys() & {"requests", "limits"}:
        parts = [found.get(key, {}) for key in ("requests", "limits")]
        if not all(isinstance(part, dict) for part in parts) or found.keys() - {"requests", "limits"}:
            section.unexpected("resources", "requests: and limits:, each with quantities")
            return {}, {}
        return _quantities(section, parts[0]), _quantities(section, parts[1])
    both = _quantities(section, found)
    return both, both


def value_of(node: Node, name: str) -> Node:
    """Return the node of a key of a mapping, also of one within it; the mapping without any."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            found: Node = value if key.value == name else value_of(value, name)
            if found is not value or key.value == name:
                return found
    return node


def _labels(section: Section, key: str) -> Mapping[str, str]:
    """Return labels; a problem is noted for each value that the API would refuse."""
    found = section.environment(key)
    for name, value in found.items():
        if len(value) > NAME_CHARACTERS or not _LABEL.fullmatch(value):
            section.add(key, f"{name}: expected {EXPECTED_LABEL}, found {value!r}")
    return found


def _quantities(section: Section, found: object) -> Mapping[str, str]:
    assert isinstance(found, Mapping)
    for name, value in found.items():
        if isinstance(value, bool) or not _QUANTITY.fullmatch(str(value)):
            node = value_of(section.node("resources"), str(name))
            section.problems.add(
                node, section.where("resources"), f"{name}: expected {EXPECTED_QUANTITY}, found {value!r}"
            )
    return {str(name): str(value) for name, value in found.items()}


def _volumes(section: Section) -> tuple[Volume, ...]:
    volumes = []
    for one in _mappings(section, "volumes"):
        kinds = [kind for kind in VOLUME_KINDS if kind in one]
        path = str(one.get("path", ""))
        if len(kinds) != 1 or not path.startswith("/") or one.keys() - set(VOLUME_KEYS):
            section.unexpected("volumes", f"one of {', '.join(VOLUME_KINDS)} each, and path: /...")
            return ()
        volumes.append(
            Volume(kind=kinds[0], value=str(one[kinds[0]] or ""), path=path, read_only=one.get("read_only") is True)
        )
    return tuple(volumes)
