"""Reader of TPUs of Google Cloud: ``tpu:`` in cluster.yaml, and ``tpu:NAME`` in a cluster's place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import field
from yaml.nodes import MappingNode, Node

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Host, Source
from mesh.core.errors import UsageError

KEY = "tpu"  # of a cluster in cluster.yaml
BUILT_IN = "tpu:"
INTERNAL_IP = ("auto", "true", "false")
KEYS = ("name", "prefix", "project", "zone", "internal_ip", "iap")
# Keys of a cluster that list hosts, and so contradict tpu:
INSTEAD = ("hosts", "slices")

# Names in Google Cloud; a project may belong to a domain.
_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]*[a-z0-9]")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-[a-z]")
SHAPES = {
    "name": (_NAME, "the name of a TPU: lower-case letters, digits and dashes"),
    "project": (_PROJECT, "the id of a project, as my-project"),
    "zone": (_ZONE, "a zone, as us-central2-b"),
}


class TpuName(Source, frozen=True, kw_only=True):
    """TPU VMs of Google Cloud by their name: the API lists their hosts."""

    name: str
    is_prefix: bool = False  # where there is no TPU of that name: those called NAME-0, NAME-1, ..., one slice each
    project: str = ""  # "": gcloud's
    zone: str = ""  # "": gcloud's
    internal_ip: str = "auto"  # one of INTERNAL_IP; "auto": where it has no other address, and from Google's machines
    iap: bool = False  # connections go through Google's Identity-Aware Proxy, by gcloud
    like: Host = field(default_factory=lambda: Host(name="", address=""))  # user, port and key of every host


def built_in(name: str) -> TpuName:
    """Return the TPUs that ``tpu:[PROJECT/ZONE/]PREFIX`` names. Raises UsageError.

    >>> built_in("tpu:pod").name, built_in("tpu:lab/us-central2-b/pod").zone
    ('pod', 'us-central2-b')
    """
    parts = name.removeprefix(BUILT_IN).split("/")
    if len(parts) not in (1, 3):
        raise UsageError(f"{name!r}: expected tpu:PREFIX or tpu:PROJECT/ZONE/PREFIX")
    project, zone = parts[:-1] or ("", "")
    return prefix(parts[-1], project, zone, (name, name, name))


def prefix(name: str, project: str, zone: str, places: tuple[str, str, str]) -> TpuName:
    """Return the TPU of a name, or those that it begins; project and zone "" are gcloud's.

    places: where the three were given
    Raises UsageError with the place of a text that is none.
    """
    for kind, text, place in zip(("name", "project", "zone"), (name, project, zone), places, strict=True):
        shape, expected = SHAPES[kind]
        if (text or kind == "name") and not shape.fullmatch(text):
            raise UsageError(f"{place}: expected {expected}, found {text!r}")
    return TpuName(name=name, is_prefix=True, project=project, zone=zone)


def read(cluster: Mapping[str, tuple[Node, Node]], name: str, like: Host, problems: Problems) -> TpuName:
    """Read ``tpu:`` of a cluster, whose keys are given. The result is valid only without problems.

    like: user, port and key of every host
    """
    node, where = cluster["tpu"][1], f"{name}.tpu"
    for other in INSTEAD:
        if other in cluster:
            problems.add(node, where, f"has {other}: beside it; the hosts of a TPU are asked of its API")
    keys = yamlfile.mapping(node, where, problems, "a mapping with name: or prefix:")
    yamlfile.known(keys, KEYS, where, problems)

    def text(key: str, kind: str) -> str:
        if key not in keys:
            return ""
        shape, expected = SHAPES[kind]
        found = yamlfile.text(keys[key][1], f"{where}.{key}", problems, expected)
        if found and not shape.fullmatch(found):
            problems.unexpected(keys[key][1], f"{where}.{key}", expected)
        return found

    if isinstance(node, MappingNode) and ("name" in keys) == ("prefix" in keys):
        problems.add(node, where, "expected either name: or prefix:")
    iap = "iap" in keys and yamlfile.flag(keys["iap"][1], f"{where}.iap", problems)
    if iap and "gateway" in cluster:
        problems.add(cluster["gateway"][1], f"{name}.gateway", "has tpu.iap: true beside it; connections go one way")
    return TpuName(
        name=text("name", "name") or text("prefix", "name"),
        is_prefix="prefix" in keys,
        project=text("project", "project"),
        zone=text("zone", "zone"),
        internal_ip=_internal_ip(keys, where, problems),
        iap=iap,
        like=like,
    )


def _internal_ip(keys: Mapping[str, tuple[Node, Node]], where: str, problems: Problems) -> str:
    if "internal_ip" not in keys:
        return INTERNAL_IP[0]
    node, place = keys["internal_ip"][1], f"{where}.internal_ip"
    written = yamlfile.scalar(node, place, problems, "auto, true or false").lower()
    if written and written not in INTERNAL_IP:
        problems.unexpected(node, place, "auto, true or false")
    return written
