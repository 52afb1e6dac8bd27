"""Reader of pods that mesh makes: ``kubernetes:`` with ``image:`` in cluster.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, SequenceNode

from mesh.config import yamlfile
from mesh.config.podcode import Code, read_code
from mesh.config.section import Section
from mesh.core.cluster import Source

# Keys of a pod's description, for a cluster or a group of pods.
POD_KEYS = (
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
MADE_KEYS = (
    "context",
    "namespace",
    "nodes",
    "slices",
    "image",
    "resources",
    "hold",
    "start_timeout",
    "switchboard_from",
    "gang",
    "queue",
    "source",
    *POD_KEYS,
    "groups",
)
# Keys of a group of pods. Each replaces that of the cluster.
GROUP_KEYS = (
    "nodes",
    "image",
    "resources",
    *POD_KEYS,
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
GROUP_NAME_CHARACTERS = 40
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
EXPECTED_NAME = f"a name of at most {NAME_CHARACTERS} small letters, digits and dashes"
EXPECTED_GROUP_NAME = f"a name of at most {GROUP_NAME_CHARACTERS} small letters, digits and dashes"
_QUANTITY = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
EXPECTED_IMAGE = "an image, as team/train:3"
EXPECTED_GROUPS = "groups of pods by their names, as actor: {nodes: 8}"
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
    source: Code | None = None  # where pods fetch the workspace; None: mesh sends it
    pod: Plain = {}  # fields of a pod spec, merged last


class PodGroup(Struct, frozen=True, kw_only=True):
    """Pods of a cluster that are made alike."""

    template: PodTemplate
    nodes: int = 1
    name: str = ""  # "": the cluster has no groups


class MadePods(Source, frozen=True, kw_only=True):
    """Pods that mesh makes when a command needs them."""

    backend: ClassVar[str] = "pods"

    template: PodTemplate  # of pods without a group
    nodes: int = 1  # in all groups
    slices: int = 1  # parts of the pods with as many pods each
    groups: tuple[PodGroup, ...] = ()  # in the order of their pods; (): all pods are alike
    context: str = ""  # as in Pods
    namespace: str = ""
    server: str = ""  # as in PodPlace, of a request that was written down
    hold: float = DEFAULT_HOLD_S  # seconds that idle pods wait for the next command
    start_timeout: float = DEFAULT_START_S  # seconds until all pods run
    switchboard_from: int = DEFAULT_SWITCHBOARD_FROM  # pods, from which on a switchboard carries their streams
    archive: bytes = b""  # of the workspace, for a ConfigMap; b"": none
    place: str = ""  # as in Pods

    @property
    def parts(self) -> tuple[PodGroup, ...]:
        """The groups; one without a name where there are none."""
        return self.groups or (PodGroup(template=self.template, nodes=self.nodes),)

    @property
    def images(self) -> str:
        """The images of all pods, for people."""
        return ", ".join(dict.fromkeys(group.template.image for group in self.parts))

    def group_at(self, index: int) -> tuple[PodGroup, int]:
        """Return the group of a pod, and the pod's index within it. index: among all pods, 0 .. nodes - 1

        >>> actors, learner = (PodGroup(template=PodTemplate(image="x"), nodes=n, name=f"g{n}") for n in (8, 1))
        >>> found = MadePods(template=PodTemplate(image="x"), nodes=9, groups=(actors, learner)).group_at(8)
        >>> found[0].name, found[1]
        ('g1', 0)
        """
        if not self.groups:
            return self.parts[0], index
        for group in self.groups:
            if index < group.nodes:
                return group, index
            index -= group.nodes
        raise IndexError(index)


def read_made(section: Section, place: str = "") -> MadePods:
    """Read the keys of pods that mesh makes. The result is valid only without problems. place: of the section"""
    template = _template(section, PodTemplate(image=""))
    groups = _groups(section, template)
    if not groups and not template.image:
        section.unexpected("image", EXPECTED_IMAGE)
    hold = section.seconds("hold", DEFAULT_HOLD_S)
    start = section.seconds("start_timeout", DEFAULT_START_S)
    for key, value in (("hold", hold), ("start_timeout", start)):
        if not math.isfinite(value):
            section.unexpected(key, "a time, as 10m")
    nodes = sum(group.nodes for group in groups) or section.integer("nodes", 1, 1, PODS_MAX)
    slices = section.integer("slices", 1, 1, PODS_MAX)
    if slices and nodes % slices:
        section.add("slices", f"expected a divisor of nodes: {nodes}, found {slices}")
    return MadePods(
        template=template,
        nodes=nodes,
        slices=slices,
        groups=groups,
        context=section.text("context", "a context of kubeconfig"),
        namespace=name_of(section, "namespace"),
        hold=hold,
        start_timeout=start,
        switchboard_from=section.integer("switchboard_from", DEFAULT_SWITCHBOARD_FROM, 2, PODS_MAX + 1),
        place=place,
    )


def _groups(section: Section, like: PodTemplate) -> tuple[PodGroup, ...]:
    """Return the groups of pods. like: the template of the cluster"""
    if "groups" not in section:
        return ()
    node, where = section.node("groups"), section.where("groups")
    found = []
    for name, (key, value) in yamlfile.mapping(node, where, section.problems, EXPECTED_GROUPS).items():
        if len(name) > GROUP_NAME_CHARACTERS or not _NAME.fullmatch(name):
            section.problems.unexpected(key, where, EXPECTED_GROUP_NAME)
        own = Section(value, f"{where}.{name}", GROUP_KEYS, section.problems, "a mapping, as {nodes: 8}")
        template = _template(own, like)
        if not template.image:
            section.problems.add(key, f"{where}.{name}", "expected image:, in the group or beside groups:")
        found.append(PodGroup(name=name, nodes=own.integer("nodes", 1, 1, PODS_MAX), template=template))
    if not found and isinstance(node, MappingNode):
        section.unexpected("groups", EXPECTED_GROUPS)
    if "nodes" in section:
        section.add("nodes", "has no meaning beside groups:")
    if (count := sum(group.nodes for group in found)) > PODS_MAX:
        section.add("groups", f"expected at most {PODS_MAX} pods in all, found {count}")
    return tuple(found)


def _template(section: Section, like: PodTemplate) -> PodTemplate:
    """Return the template with the keys of a section. like: has the values of all others"""
    found = {key: reader(section, key) for key, reader in _READERS.items() if key in section}
    if "resources" in section:
        found["requests"], found["limits"] = _resources(section)
    return replace(like, **found)


def _image(section: Section, key: str) -> str:
    found = section.text(key, EXPECTED_IMAGE)
    if any(character.isspace() for character in found) or not found:
        section.unexpected(key, EXPECTED_IMAGE)
    return found


def _shm(section: Section, key: str) -> str:
    found = section.text(key, EXPECTED_QUANTITY)
    if found and not _QUANTITY.fullmatch(found):
        section.unexpected(key, EXPECTED_QUANTITY)
    return found


def _gang(section: Section, key: str) -> str:
    """Return the kind of gang, "" for none."""
    expected = " or ".join(GANGS)
    found = section.text(key, expected)
    if found and found not in GANGS:
        section.unexpected(key, expected)
    return "" if found == "none" else found


def _queue(section: Section, key: str) -> str:
    if "gang" not in section or section.node("gang").value == "none":
        section.add(key, f"has no meaning without gang: {VOLCANO}")
    return name_of(section, key)


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


def _volumes(section: Section, key: str) -> tuple[Volume, ...]:
    volumes = []
    for one in _mappings(section, key):
        kinds = [kind for kind in VOLUME_KINDS if kind in one]
        path = str(one.get("path", ""))
        if len(kinds) != 1 or not path.startswith("/") or one.keys() - set(VOLUME_KEYS):
            section.unexpected(key, f"one of {', '.join(VOLUME_KINDS)} each, and path: /...")
            return ()
        volumes.append(
            Volume(kind=kinds[0], value=str(one[kinds[0]] or ""), path=path, read_only=one.get("read_only") is True)
        )
    return tuple(volumes)


_READERS: Mapping[str, Callable[[Section, str], object]] = {
    "image": _image,
    "node_selector": _labels,
    "tolerations": _mappings,
    "volumes": _volumes,
    "shm": _shm,
    "service_account": lambda section, key: section.text(key, "the name of a service account"),
    "priority_class": lambda section, key: section.text(key, "the name of a priority class"),
    "image_pull_secrets": lambda section, key: section.texts(key, "a list of names of Secrets"),
    "labels": _labels,
    "annotations": lambda section, key: section.environment(key),
    "env": lambda section, key: section.environment(key),
    "gang": _gang,
    "queue": _queue,
    "source": read_code,
    "pod": _mapping,
}
