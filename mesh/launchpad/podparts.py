"""TLaunch's descriptions of pods as groups of a ``kubernetes:`` cluster. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct
from msgspec.structs import replace

from mesh.config.gpushare import KEY, GpuShare
from mesh.config.podcode import GIT, Code, has_credentials, is_url
from mesh.config.podspec import GROUP_NAME_CHARACTERS, PODS_MAX, MadePods, PodGroup, PodTemplate
from mesh.core.errors import UsageError
from mesh.hosts.kubernetes.render import merged, safe
from mesh.launchpad.runtime.pods import Config, GitSource, Resource, Source

GROUP_VARIABLE = "LP_GROUP"  # has the name of its group in each pod
HOLD_S = 60.0  # that pods outlive the program of a client that was killed
ENTRY = "tlaunch.lp_k8s.process_entry"
SHELLS = ("sh", "bash", "dash", "zsh")
DEFAULT_PYTHON = ("python", "python3")
_ENTRY = re.compile(
    r"(?P<before>.*?)(?:exec\s+)?(?P<python>[^\s;&|]*python[0-9.]*)(?:\s+-[A-Za-z]+)*?"
    r"\s+-m\s*(?:tlaunch\.lp_k8s|launchpad_kubernetes)\.process_entry(?P<flags>\s[^;&|<>]*)?\s*",
    re.DOTALL,
)
_ENDED = re.compile(r"(;|&&|\n)\s*$")  # a command before another one
_SHARES = {"nvidia_gpu_memory": "memory", "nvidia_gpu_cores": "cores"}  # TLaunch's names: keys of gpu_share:
NO_SHARE = GpuShare()  # where mesh.yaml names no resources
_UPPER = {"ipc": "IPC", "pid": "PID", "fqdn": "FQDN"}  # in names of fields of a pod spec
REFUSED_FIELDS = {
    "containers": "the container is `container=`",
    "restart_policy": "mesh starts no container again",
}


class PodPart(Struct, frozen=True, kw_only=True):
    """The pods of one label of a program."""

    label: str  # in the program
    group: PodGroup
    prerun: str = ""  # shell text before the nodes start
    python: str = ""  # the interpreter of the nodes; "": python3
    flags: tuple[str, ...] = ()  # of their command lines

    @property
    def hosts(self) -> list[str]:
        """The hosts of the nodes, one each."""
        return [f"{self.group.name}-{index}" for index in range(self.group.nodes)]


class Command(Struct, frozen=True):
    """A command of a container, which ends in TLaunch's entry of processes."""

    prerun: str
    python: str
    flags: tuple[str, ...]


def parts_of(
    counts: Mapping[str, int], configs: Mapping[str, Config], base: MadePods | None, share: GpuShare = NO_SHARE
) -> tuple[PodPart, ...]:
    """Return the pods of each label.

    counts: nodes of each label; base: a cluster with the values of what lacks here; share: resources of parts of GPUs
    Raises UsageError for an unknown label, a label without an image, and for what mesh does not have.
    """
    for label in configs:
        if label not in counts:
            near = get_close_matches(label, counts, 1) or [*counts][:1]
            raise UsageError(f"group_config: the program has no label {label!r}; the nearest is {near[0]!r}")
    if sum(counts.values()) > PODS_MAX:
        raise UsageError(f"{sum(counts.values())} nodes: expected at most {PODS_MAX} pods")
    likes = {group.name: group.template for group in base.groups} if base else {}
    found, names = list[PodPart](), set[str]()
    for label, count in counts.items():
        name = safe(label, GROUP_NAME_CHARACTERS)
        like = likes.get(name) or (base.template if base else PodTemplate(image=""))
        group = PodGroup(name=name, nodes=count, template=like)
        found.append(_part(label, group, configs.get(label) or Config(), share))
        names.add(name)
    if len(names) < len(counts):
        raise UsageError(f"labels {', '.join(counts)}: two of them have the same letters", hint="rename one of them")
    return tuple(found)


def _part(label: str, like: PodGroup, config: Config, share: GpuShare) -> PodPart:
    container = config.container
    command = read_command(label, container.command or ())
    image = container.image or like.template.image
    if not image:
        raise UsageError(
            f"{label}: no image is named",
            hint=f'group_config={{"{label}": Config(Container(image="team/train:3"))}}, or MESH_CLUSTER=NAME of a '
            "cluster with `kubernetes: {image: ...}`",
        )
    requests, limits = like.template.requests, like.template.limits
    if container.resources is not None:
        requests, limits = _resources(label, container.resources, share)
    template = replace(
        like.template,
        image=image,
        requests=requests,
        limits=limits,
        env={**like.template.env, **{name: str(value) for name, value in container.env.items()}, **_own(like.name)},
        pod=merged(like.template.pod, _fields(label, config)),
    )
    return PodPart(
        label=label,
        group=replace(like, template=template),
        prerun=command.prerun,
        python="" if command.python in DEFAULT_PYTHON else command.python,
        flags=(*command.flags, *container.flags),
    )


def _own(group: str) -> dict[str, str]:
    return {GROUP_VARIABLE: group}


def _resources(label: str, resources: Resource, share: GpuShare) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return requests and limits. Raises UsageError for a resource that neither Kubernetes nor mesh.yaml has."""
    names = {name: name for name in resources.resources}
    for name in names:
        if name in _SHARES and not (found := str(getattr(share, _SHARES[name]))):
            hint = (
                f"mesh.yaml: `{KEY}: {{memory: nvidia.com/gpumem, cores: nvidia.com/gpucores}}`, as your plug-in has it"
            )
            raise UsageError(f"{label}: Resource: no resource is named for {name}", hint=hint)
        if name in _SHARES:
            names[name] = found
        elif "/" not in name and name not in ("cpu", "memory", "ephemeral-storage"):
            hint = 'Resource(**{"VENDOR/NAME": 4000}), with the name that the plug-in of your cluster has'
            raise UsageError(f"{label}: Resource: {name} is no resource of Kubernetes", hint=hint)
    requests, limits = resources.requests, resources.limits
    return {names[name]: one for name, one in requests.items()}, {names[name]: one for name, one in limits.items()}


def read_command(label: str, words: Sequence[str]) -> Command:
    """Return the parts of a container's command; () is TLaunch's own. Raises UsageError for another program.

    >>> read_command("a", ["bash", "-c", "pip install x; python3 -u -mtlaunch.lp_k8s.process_entry --n 3"])
    Command(prerun='pip install x', python='python3', flags=('--n', '3'))
    >>> read_command("a", [])
    Command(prerun='', python='python3', flags=())
    """
    if not words:
        return Command("", DEFAULT_PYTHON[-1], ())
    is_shell = len(words) == 3 and words[0].rpartition("/")[2] in SHELLS and re.fullmatch(r"-[a-z]*c", words[1])
    text = words[2] if is_shell else shlex.join(words)
    found = _ENTRY.fullmatch(text)
    before = found["before"] if found else ""
    if found is None or (before.strip() and not _ENDED.search(before)):
        hint = f'Container(command=["bash", "-c", "PREPARE; python3 -m {ENTRY}"])'
        raise UsageError(f"{label}: command {shlex.join(words)!r}: expected one that ends in {ENTRY}", hint=hint)
    return Command(_ENDED.sub("", before).strip(), found["python"], tuple(shlex.split(found["flags"] or "")))


def _fields(label: str, config: Config) -> dict[str, object]:
    for name, why in REFUSED_FIELDS.items():
        if name in config.fields:
            raise UsageError(f"{label}: Config: {name}= has no meaning: {why}")
    return {camel(name): plain(value) for name, value in config.fields.items() if value is not None}


def camel(name: str) -> str:
    """Return the name of a field as the API has it.

    >>> camel("node_selector"), camel("host_ipc"), camel("tolerations")
    ('nodeSelector', 'hostIPC', 'tolerations')
    """
    first, *others = name.split("_")
    return first + "".join(_UPPER.get(one, one.capitalize()) for one in others)


def plain(value: object) -> object:
    """Return a value as JSON has it; objects of Kubernetes' Python client become mappings."""
    names = getattr(value, "attribute_map", None)
    if isinstance(names, Mapping):
        found = {names[own]: plain(getattr(value, own, None)) for own in names}
        return {name: one for name, one in found.items() if one is not None}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def prerun_of(parts: Sequence[PodPart]) -> tuple[str, ...]:
    """Return the shell texts that prepare pods, each for its own group."""
    return tuple(
        f'if [ "${GROUP_VARIABLE}" = {part.group.name} ]; then\n{part.prerun}\nfi' for part in parts if part.prerun
    )


def code_of(source: Source | None) -> Code | None:
    """Return where pods get the code; None for the directory of the program. Raises UsageError for credentials."""
    if not isinstance(source, GitSource):
        return None
    hint = (
        "kubectl create secret generic forge --from-literal=username=NAME --from-literal=password=TOKEN\n"
        'GitSource(url, secret="forge")'
    )
    if source.username or source.password:
        raise UsageError(
            "GitSource: username and password would stand in the program: put them into a Secret", hint=hint
        )
    if has_credentials(source.url):
        raise UsageError("GitSource: credentials in the URL would stand in each pod: put them into a Secret", hint=hint)
    if not is_url(source.url) or source.ref.startswith("-"):
        raise UsageError(f"GitSource: expected a URL and a commit, tag or branch, found {source.url!r}, {source.ref!r}")
    return Code(kind=GIT, url=source.url, ref=source.ref, secret=source.secret)


def namespace_of(named: str | None, configs: Mapping[str, Config]) -> str:
    """Return the namespace that a launch or its configurations name; "" for none. Raises UsageError for several."""
    texts = [one for config in configs.values() for one in (config.namespace, config.container.namespace)]
    found = sorted({*filter(None, texts)})
    if named:
        return named
    if len(found) > 1:
        raise UsageError(f"group_config names several namespaces ({', '.join(found)})", hint="namespace= of launch")
    return found[0] if found else ""
