"""Reader of allocations: ``slurm:`` in cluster.yaml, ``slurm:JOB`` in a cluster's place, and their overrides."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node

from mesh.config.hosts import NoHost, split
from mesh.config.section import Section
from mesh.config.settings import read_seconds
from mesh.config.yamlfile import Problems, did_you_mean
from mesh.core.cluster import Cluster, Host, Source
from mesh.core.errors import UsageError

KEY = "slurm"  # of a cluster in cluster.yaml
WORD = KEY
BUILT_IN = f"{WORD}:"
BACKEND = "slurm"
NODES_MAX = 65536
DEFAULT_HOLD_S = 600.0
DEFAULT_START_S = 3600.0
WARN_MAX_S = 86400.0
# Keys that are options of sbatch, whose values are texts.
TEXTS = ("nodelist", "partition", "account", "qos", "reservation", "constraint", "exclude", "gres", "licenses", "begin")
NUMBERS = ("nodes", "cpus_per_task")
REQUEST_KEYS = (*NUMBERS, *TEXTS, "gpus_per_node", "mem", "time", "comment", "exclusive", "extra")
TIMES = ("hold", "start_timeout")
MADE_KEYS = (*REQUEST_KEYS, *TIMES, "warn", "local", "reach")
EXISTING_KEYS = ("jobid", "hold", "warn", "reach")
ALL_KEYS = (*MADE_KEYS, "jobid")
FLAGS = ("exclusive", "local")
SSH, SWITCHBOARD = "ssh", "switchboard"  # values of `reach`
INSTEAD = ("hosts", "slices")  # keys that list hosts
MEANINGLESS = ("port", "keep", "backend", "command", "tpu", "kubernetes")
LOGIN_KEYS = ("user", "identity_file", "password_env", "host_keys")  # of the login node, which gateway: names
# Words for sbatch by which the job would be another one than mesh waits for.
REFUSED_WORDS = ("array", "wrap", "job-name", "output", "error", "input", "export", "requeue", "no-requeue", "parsable")
JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?")
EXPECTED_JOB = "the number of a job, as 12345"
MEMORY = re.compile(r"[0-9]+[KMGT]?")
TIME = re.compile(r"[0-9]+|[0-9]+:[0-9]{1,2}(:[0-9]{1,2})?|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED")
GPUS = re.compile(r"([A-Za-z0-9_.-]+:)?[1-9][0-9]*")
SHAPES = {
    "mem": (MEMORY, "memory of each node, as 64G"),
    "time": (TIME, "a limit, as 30 (minutes), 2:00:00 or 1-12:00:00"),
    "gpus_per_node": (GPUS, "a number, as 8 or a100:8"),
}
EXPECTED_WARN = 'a signal and a time before the end, as "SIGUSR1 60s"'


class Warn(Struct, frozen=True, kw_only=True):
    """A signal that every rank gets before the end of an allocation."""

    signal: int
    before: float  # seconds


class Allocation(Source, frozen=True, kw_only=True):
    """An allocation that is there: the nodes of a running job. Nothing of it is ever cancelled."""

    backend: ClassVar[str] = BACKEND

    job: str = ""  # its number; "": that of SLURM_JOB_ID
    login: Host | None = None  # where Slurm's commands are; None: on this machine
    hold: float = DEFAULT_HOLD_S  # seconds that mesh's step waits for the next command
    warn: Warn | None = None
    is_by_ssh: bool = False  # nodes are reached by SSH, and mesh starts no step
    like: Host | None = None  # user and key of the nodes then
    place: str = ""  # in cluster.yaml, for messages; "": in no file


class MadeAllocation(Source, frozen=True, kw_only=True):
    """An allocation that mesh asks for when a command needs it."""

    backend: ClassVar[str] = BACKEND

    request: Mapping[str, str]  # by keys of REQUEST_KEYS, without `exclusive` and `extra`
    exclusive: bool = False
    extra: tuple[str, ...] = ()  # words for sbatch
    hold: float = DEFAULT_HOLD_S  # seconds that an idle allocation waits for the next command
    start_timeout: float = DEFAULT_START_S  # seconds until it begins; then it is cancelled
    warn: Warn | None = None
    login: Host | None = None  # as in Allocation
    local: bool = False  # mesh's directory is on each node, and goes with the allocation
    is_by_ssh: bool = False  # nodes are reached by SSH; the programs of the step only watch
    like: Host | None = None  # user and key of the nodes then
    place: str = ""

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 if ``nodelist`` alone has it."""
        return int(self.request.get("nodes", "0"))


def is_requeued(cluster: Cluster) -> bool:
    """Return True if an allocation can begin the next attempt of a detached run by itself."""
    source = cluster.source
    return isinstance(source, MadeAllocation) and not (source.is_by_ssh or source.local)


def built_in(name: str) -> Allocation:
    """Return the allocation of ``slurm:JOB``, or of ``slurm:`` for the job that this process is in. Raises UsageError.

    >>> built_in("slurm:12345").job, built_in("slurm:").job
    ('12345', '')
    """
    job = name.removeprefix(BUILT_IN)
    if job and not JOB.fullmatch(job):
        raise UsageError(f"{name!r}: expected {EXPECTED_JOB}, found {job!r}", hint="squeue --me")
    return Allocation(job=job)


def read(cluster: Mapping[str, tuple[Node, Node]], name: str, like: Host, problems: Problems) -> Source:
    """Read ``slurm:`` of a cluster, whose keys are given. The result is valid only without problems."""
    node, where = cluster[KEY][1], f"{name}.{KEY}"
    for other in INSTEAD:
        if other in cluster:
            problems.add(node, where, f"has {other}: beside it; its hosts are nodes of an allocation")
    for other in MEANINGLESS:
        if other in cluster:
            problems.add(cluster[other][0], f"{name}.{other}", f"has no meaning beside {KEY}:")
    for other in LOGIN_KEYS:
        if other in cluster and "gateway" not in cluster:
            text = "has no meaning without gateway: (the login node)"
            problems.add(cluster[other][0], f"{name}.{other}", text)
    written = [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []
    login, place = _login(cluster, like), problems.place(node, where)
    if "jobid" in written:
        section = Section(node, where, EXISTING_KEYS, problems, "a mapping with jobid:")
        job = section.text("jobid", EXPECTED_JOB)
        if not JOB.fullmatch(job):
            section.unexpected("jobid", EXPECTED_JOB)
        by_ssh = _is_by_ssh(section)
        found = Allocation(job=job, hold=_hold(section), warn=_warn(section), login=login, place=place)
        return replace(found, is_by_ssh=by_ssh, like=like)
    section = Section(node, where, ALL_KEYS, problems, "a mapping with nodes: or jobid:")
    if "local" in section and "remote_dir" in cluster:
        section.add("local", "has remote_dir: beside it; one of the two names mesh's directory")
    request = _request(section)
    if not {"nodes", "nodelist"} & set(written):
        problems.add(node, where, "expected nodes: (how many), nodelist: or jobid: (an allocation that is there)")
    start = section.seconds("start_timeout", DEFAULT_START_S)
    if not math.isfinite(start):
        section.unexpected("start_timeout", "a time, as 1h")
    return MadeAllocation(
        request=request,
        exclusive=section.flag("exclusive"),
        local=section.flag("local"),
        extra=_extra(section),
        hold=_hold(section),
        start_timeout=start,
        warn=_warn(section),
        login=login,
        is_by_ssh=_is_by_ssh(section),
        like=like,
        place=place,
    )


def overridden(cluster: Cluster, nodes: int, changes: Mapping[str, str]) -> Cluster:
    """Return a cluster with another request for this command. Raises UsageError.

    nodes: 0 for those of cluster.yaml; changes: values by the keys of ``slurm:``
    """
    if not nodes and not changes:
        return cluster
    source = cluster.source
    if not isinstance(source, MadeAllocation):
        flag = "--nodes" if nodes else "--slurm"
        raise UsageError(f"{flag}: mesh asks for no allocation of {cluster.name}", hint=f"mesh clusters {cluster.name}")
    request, flags, times = dict(source.request), dict[str, bool](), dict[str, float]()
    if nodes:
        request["nodes"] = str(nodes)
    for key, value in changes.items():
        place = f"--slurm {key}"
        if key in TIMES:
            times[key] = read_seconds(place, value) or 0.0
        elif key in FLAGS:
            flags[key] = _flag(place, value)
        elif key in REQUEST_KEYS and key != "extra":
            if problem := _problem(key, value):
                raise UsageError(f"{place}: expected {problem}, found {value!r}")
            request[key] = value
        else:
            near = did_you_mean(key, [one for one in MADE_KEYS if one not in ("extra", "warn", "reach")])
            raise UsageError(f"--slurm: no key {key!r}{near}", hint="mesh run --slurm partition=debug CLUSTER COMMAND")
    return replace(cluster, source=replace(source, request=request, **flags, **times))


def read_change(flag: str, text: str) -> Mapping[str, str]:
    """Return the key and value of ``--slurm``. Raises UsageError.

    >>> read_change("--slurm", "time=1:00:00")
    {'time': '1:00:00'}
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{flag}: expected KEY=VALUE, found {text!r}", hint=f"{flag} partition=debug")
    return {key.replace("-", "_"): value}


def read_nodes(flag: str, text: str) -> int:
    """Return the number of nodes of ``--nodes``. Raises UsageError."""
    if problem := _problem("nodes", text):
        raise UsageError(f"{flag}: expected {problem}, found {text!r}")
    return int(text)


def read_warn(text: str) -> Warn | None:
    """Return a signal and a time; None for a text that is neither.

    >>> read_warn("SIGUSR1 60s").before, read_warn("USR1 2m").signal == read_warn("10 2m").signal, read_warn("60s")
    (60.0, True, None)
    """
    words = text.split()
    if len(words) != 2:
        return None
    name = words[0].upper().removeprefix("SIG")
    found = {one.name.removeprefix("SIG"): int(one) for one in signal.Signals}
    number = int(name) if name.isdecimal() else found.get(name, 0)
    try:
        before = read_seconds("warn", words[1]) or 0.0
    except UsageError:
        return None
    if number not in found.values() or not 0 < before <= WARN_MAX_S:
        return None
    return Warn(signal=number, before=before)


def _login(cluster: Mapping[str, tuple[Node, Node]], like: Host) -> Host | None:
    """Return the login node that ``gateway:`` names; None without any. Its own reader notes what is wrong with it."""
    if "gateway" not in cluster:
        return None
    try:
        user, address, port = split(str(cluster["gateway"][1].value))
    except NoHost:
        return None
    return replace(like, name=address, address=address, port=port, user=user or like.user)


def _request(section: Section) -> Mapping[str, str]:
    """Return what sbatch is asked for, by keys."""
    request = dict[str, str]()
    for key in REQUEST_KEYS:
        if key in ("exclusive", "extra") or key not in section:
            continue
        value = section.text(key, _problem(key, "") or "a text")
        if problem := _problem(key, value):
            section.unexpected(key, problem)
        elif value:
            request[key] = value
    return request


def _problem(key: str, value: str) -> str:
    """Return the kind of value that a key has, if this is not one; else ""."""
    if key in NUMBERS:
        is_number = value.isdecimal() and value.isascii() and 1 <= int(value) <= NODES_MAX
        return "" if is_number else f"a whole number from 1 to {NODES_MAX}"
    pattern, expected = SHAPES.get(key, (None, "a text in one line"))
    is_valid = bool(pattern.fullmatch(value)) if pattern else bool(value) and value.isprintable()
    return "" if is_valid else expected


def _extra(section: Section) -> tuple[str, ...]:
    """Return the words for sbatch; a problem is noted for those that mesh itself decides."""
    words = section.texts("extra", 'a list of words for sbatch, as ["--switches=1"]')
    for word in words:
        name = word.removeprefix("--").partition("=")[0]
        if not word.startswith("--") or not word.isprintable():
            section.add("extra", f'expected long options, as "--switches=1", found {word!r}')
        elif name in REFUSED_WORDS:
            section.add("extra", f"--{name} is set by mesh")
        elif name.replace("-", "_") in REQUEST_KEYS:
            section.add("extra", f"--{name} has a key of its own: {name.replace('-', '_')}:")
    return words


def _hold(section: Section) -> float:
    hold = section.seconds("hold", DEFAULT_HOLD_S)
    if not math.isfinite(hold):
        section.unexpected("hold", "a time, as 10m")
    return hold


def _warn(section: Section) -> Warn | None:
    text = section.text("warn", EXPECTED_WARN)
    found = read_warn(text) if text else None
    if text and found is None:
        section.unexpected("warn", EXPECTED_WARN)
    return found


def _is_by_ssh(section: Section) -> bool:
    reach = section.text("reach", f"{SWITCHBOARD} or {SSH}", SWITCHBOARD)
    if reach not in (SWITCHBOARD, SSH):
        section.unexpected("reach", f"{SWITCHBOARD} or {SSH}")
    return reach == SSH


def _flag(place: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(f"{place}: expected true or false, found {text!r}")
    return text == "true"
