"""The spec of a run: one value, built once and read by every layer below."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, convert, field, to_builtins
from msgspec.structs import replace

from mesh.core.cluster import Host, Placement, place_groups
from mesh.core.naming import NAME

RANKS_PER_HOST_MAX = 1024
# Specs are read from files and hosts as well: these limits hold there.
Seconds = Annotated[float, Meta(ge=0.0, le=1e18)]
Bytes = Annotated[int, Meta(ge=0)]
Restarts = Annotated[int, Meta(ge=0, le=1_000_000)]
Sockets = Annotated[int, Meta(ge=0, le=16)]
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{0,128}\Z")]
Label = Annotated[str, Meta(pattern=r"\A([A-Za-z_][A-Za-z0-9_.-]*)?\Z")]
Name = Annotated[str, Meta(pattern=rf"\A({NAME.pattern})?\Z")]

DEFAULT_GRACE = 10.0
DEFAULT_DRAIN = 2.0
DEFAULT_HOST_GRACE = 60.0
DEFAULT_LEASE = 60.0
DEFAULT_READY_TIMEOUT = 300.0
HANG_WATCH_ON_A_TERMINAL_S = 300.0
DEFAULT_SPOOL = 10_000_000_000
DEFAULT_LOGS = 10_000_000_000
MULTI_NODE_ARGS = "{multi_node_args}"  # as a word of a command; see RunSpec.multi_node
SHELL = ("bash", "-c")
ENTRY_CHARACTERS = 60  # of a prerun entry in a message


AUTO = 0  # as a number of ranks on each host: as many as it has GPUs
NO_DEVICES = "-1"  # of VISIBLE_DEVICES: no device has this number, so that none is visible
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # NVIDIA's, and AMD's own name, which wins there


class Launch(Enum):
    """The launcher of a framework that starts the processes on a host."""

    NONE = ""  # mesh itself
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


class Kind(Enum):
    """The purpose of a run."""

    RUN = "run"
    SETUP = "setup"
    SYNC = "sync"  # of the workspace, and nothing else
    PULL = "pull"  # files from the hosts
    MODULES = "modules"  # modules alone, set up or undone


class SetupCommand(Struct, frozen=True, kw_only=True):
    """An entry of ``commands:`` in mesh.yaml."""

    run: str  # shell text
    unless: str = ""  # shell text; where it succeeds, the command is skipped
    sudo: bool = False  # as root, by sudo


class PrerunEntry(Struct, frozen=True, kw_only=True):
    """An entry of ``prerun:`` in mesh.yaml, or the text that enters the environment of a module."""

    run: str  # shell text
    # Paths and patterns, relative to the workspace: the entry is skipped where it last succeeded with the same text and
    # the same contents of these; (): it always runs.
    inputs: tuple[str, ...] = ()
    module: str = ""  # whose environment it enters; its text may hold values of variables, and is never written down

    @property
    def told(self) -> str:
        """The shell text in one line, for people.

        >>> PrerunEntry(run="uv venv &&\\n  uv sync").told
        '"uv venv && uv sync"'
        """
        line = self.module or " ".join(self.run.split())
        return f'"{line}"' if len(line) <= ENTRY_CHARACTERS else f'"{line[: ENTRY_CHARACTERS - 3]}..."'


class RuleOptions(Struct, frozen=True, kw_only=True):
    """The rules that the user's options hold by the same name and with the same default."""

    keep_going: bool = False  # a failed rank does not stop the others
    stdin: str = "none"  # ranks that get the client's standard input: "none", "rank0" or "all"
    pty: bool = False  # rank 0 has a terminal, which is ours
    debug: bool = False  # a rank stops at breakpoint() and at an exception, and waits for us
    slurm_env: bool = False  # ranks get Slurm's variables, as if srun had started each of them


class Rules(RuleOptions, frozen=True, kw_only=True):
    """How a run may go and end; agents receive all of it. Times are in seconds, sizes in bytes."""

    grace: Seconds = DEFAULT_GRACE  # from SIGTERM to SIGKILL
    drain: Seconds = DEFAULT_DRAIN  # of output of the other ranks after the first failure
    timeout: Seconds = 0.0  # wall clock from the start of the ranks; 0: none
    host_grace: Seconds = DEFAULT_HOST_GRACE  # a host that is silent for longer is lost
    hang_watch: Seconds = 0.0  # without output of any rank, after which all stacks are taken; 0: never
    lease: Seconds = DEFAULT_LEASE  # hosts keep the run for so long without a sign of life from the client
    skip_unreachable: bool = False  # hosts that cannot be reached have no ranks; the ranks of the others start
    spool: Bytes = DEFAULT_SPOOL  # of output that may wait on a host's disk
    logs: Bytes = DEFAULT_LOGS  # of the client's disk for all logs of the run together


class Group(Struct, frozen=True, kw_only=True):
    """Ranks that run the same command."""

    label: Label = ""  # "": the only group of a run without roles
    command: tuple[str, ...] = ()  # the words for execve; undecodable bytes as surrogates (os.fsdecode); (): none
    env: Mapping[str, str] = field(default_factory=dict)  # the user's own; wins over what mesh sets; never written down
    nproc: Annotated[int, Meta(ge=0, le=RANKS_PER_HOST_MAX)] = (
        1  # processes on each host, at least 1; AUTO until its GPUs have been counted
    )
    hosts: tuple[str, ...] = ()  # their names; (): all hosts of the cluster
    counts: tuple[Annotated[int, Meta(ge=1, le=RANKS_PER_HOST_MAX)], ...] = ()  # ranks on each of hosts; (): nproc
    # The fields below are those of nodes of a program; a group that has any of them is a group of nodes.
    sockets: Sockets = 0  # that its ranks listen at: one at which other nodes call, and further ones by TCP
    payloads: tuple[Hash, ...] = ()  # of the bytes that each rank finds in a file, by its index in the group; (): none
    devices: tuple[str, ...] = ()  # GPUs of each rank, as "0,1" or NO_DEVICES, by its index; "" and (): all
    ready: bool = False  # each rank reports that it is ready
    may_fail: bool = False  # a rank that fails ends nothing
    restarts: Restarts = 0  # of each rank that fails; one more failure counts
    elsewhere: bool = False  # ranks of a lost host start again on a spare one, as often as ``restarts`` allows
    ends_run: bool = False  # a rank that exits 0 ends the run with status 0
    serves: bool = False  # ranks are stopped, with status 0, once all ranks of other groups have ended
    alone: bool = False  # its only rank is called by the label, without a number

    @property
    def is_node(self) -> bool:
        """True if the ranks are nodes of a program."""
        flags = self.ready or self.may_fail or self.ends_run or self.serves
        return bool(self.sockets or self.payloads or self.restarts or flags)

    @property
    def told(self) -> str:
        """The command in one line, for people.

        >>> Group(label="actor", command=("bash", "-c", "make run")).told, Group(command=("echo", "a b")).told
        ('actor: make run', "echo 'a b'")
        """
        words = self.command[2:] if self.label and self.command[:2] == SHELL else ()
        text = words[0] if len(words) == 1 else shlex.join(self.command)
        return f"{self.label}: {text}" if self.label else text


class RunSpec(Struct, frozen=True, kw_only=True):
    """The work of one run, on whatever hosts. Times are in seconds.

    A setup is a run as well: its ``commands`` take the place of the groups' commands, one rank to a host.
    """

    run: str  # the run's id, unique for this user
    project: str  # the name of the directory on the hosts: the project's name and a hash of who and where
    workspace: Path  # the local directory that every host gets a copy of
    groups: tuple[Group, ...] = (Group(),)  # at least one; only those of a program share hosts
    rules: Rules = Rules()
    kind: Kind = Kind.RUN
    commands: tuple[SetupCommand, ...] = ()  # of a setup, in order
    force: bool = False  # run also what ``unless`` or ``inputs`` would skip, and apply modules that are in place
    modules: tuple[str, ...] = ()  # names of those that prepare the hosts
    undo: bool = False  # they are undone
    ignore: tuple[str, ...] = ()  # patterns of mesh.yaml: git's rules, relative to the workspace
    include_git: bool = False  # .git belongs to the workspace
    keep_tree: bool = False  # the contents of the workspace stay on this machine, for ``mesh replay``
    as_is: bool = False  # the workspace is a snapshot: all of it is sent, and no ignore file is read
    prerun: tuple[PrerunEntry, ...] = ()  # run in one bash session per host
    launcher: Launch = Launch.NONE  # starts the processes; it is then the only rank of its host
    multi_node: bool = False  # madengine gets the hosts in place of the word MULTI_NODE_ARGS
    bind: bool = False  # each rank sees one GPU of its host
    master_port: int = 0  # 1 .. 65535, where the ranks meet on the first host; 0: one that is free
    watch: bool = False  # a sync that is repeated as files change: others wait for its end
    sync: bool = True  # send the workspace before the start
    sync_timeout: float = 0.0  # from the first host's sync to the end of the last one's; 0: none
    existing: bool = False  # the workspace on the hosts is one that is there already: without it there is no run
    fetched: str = ""  # where the hosts have got that workspace from, for people; "": it was sent
    fresh: bool = False  # remove from the workspaces on hosts what was made there
    fan_out: bool = True  # hosts may hand on among themselves what they all lack
    lock: bool = True  # take the lock of every host
    wait: float = 0.0  # for hosts that are busy with another run; 0: not at all; math.inf: without an end
    spares: Annotated[int, Meta(ge=0)] = 0  # hosts at the end that have no ranks until one moves there
    share: bool = False  # work in a copy of the workspace that is removed afterwards
    exclusive: bool = False  # refuse hosts where another Unix user's run is
    detach: bool = False  # leave once the ranks have started: the hosts keep the run by themselves
    claim: bool = False  # see that nobody holds a device before the start, and that they are free afterwards
    evict: bool = False  # end other processes of our user that hold one
    stacks: bool = False  # prepare every Python of the ranks to send its stacks
    stacks_on_timeout: bool = False  # show all stacks before a timeout ends the run
    secrets: tuple[str, ...] = ()  # names of variables whose values are masked
    env_files: tuple[Path, ...] = ()  # full paths of files with variables, whose values are masked too
    name: Name = ""  # that the user has given it
    tags: tuple[Name, ...] = ()  # by which the user finds it among others
    ready_timeout: Seconds = DEFAULT_READY_TIMEOUT  # for all nodes of a program to be ready; 0: none
    program: str = ""  # the id of a program, which its nodes expect of their callers
    keep_results: bool = False  # write what nodes return to the run directory
    retries: Annotated[int, Meta(ge=0)] = 0  # attempts that the scheduler of its hosts may start after this one
    tied: str = ""  # why the run ends with its client, so that no host can keep it; "": it can go on alone

    @property
    def is_program(self) -> bool:
        """True if ranks are nodes of a program."""
        return any(group.is_node for group in self.groups)

    @property
    def is_exec(self) -> bool:
        """True for a run of ``mesh exec``: it leaves workspace and lock alone.

        >>> is_exec = RunSpec(run="r", project="p", workspace=Path("/"), groups=(Group(command=("true",)),), lock=False)
        >>> replace(is_exec, sync=False).is_exec, is_exec.is_exec
        (True, False)
        """
        return self.kind is Kind.RUN and not self.needs_home

    @property
    def has_command(self) -> bool:
        """True if ranks run a command: not so in a setup, a sync or a pull."""
        return any(group.command for group in self.groups)

    @property
    def told(self) -> str:
        """The commands of all groups in one line, for people."""
        return "; ".join(group.told for group in self.groups)

    @property
    def needs_home(self) -> bool:
        """True unless the ranks find nothing on a host and leave nothing there, as with ``mesh exec``."""
        return not self.has_command or self.sync or self.lock or self.existing or self.share

    @property
    def is_announced(self) -> bool:
        """True if hosts announce the run to their other Unix users."""
        return self.kind in (Kind.RUN, Kind.SETUP, Kind.MODULES) and (self.lock or self.share)

    def with_nproc(self, nproc: int) -> RunSpec:
        """Return the spec with another number of processes on each host of every group."""
        return replace(self, groups=tuple(replace(group, nproc=nproc) for group in self.groups))

    def placed(self, hosts: Sequence[Host], slices: Sequence[int] = ()) -> Placement:
        """Number the ranks on hosts, a framework's launcher as one rank; AUTO counts as 1.

        slices: as in Cluster
        """
        shares: dict[str, list[tuple[int, int]]] = {}
        for number, group in enumerate(self.groups):
            counts = group.counts or (self._on_each_host(group),) * len(group.hosts)
            for name, count in zip(group.hosts, counts, strict=True):
                shares.setdefault(name, []).append((number, count))
        others = [(0, self._on_each_host(self.groups[0]))]
        labels = [group.label for group in self.groups]
        count = len(hosts) - self.spares
        found = [shares.get(host.name, others) if node < count else [] for node, host in enumerate(hosts)]
        return place_groups(hosts, found, labels=labels, slices=slices)

    def _on_each_host(self, group: Group) -> int:
        return 1 if self.launcher is not Launch.NONE else max(1, group.nproc)

    def to_json(self) -> dict[str, object]:
        """Return the spec as JSON has it, without the values of variables, which may be secrets."""
        written: dict[str, object] = to_builtins(self, enc_hook=str)
        written["groups"] = [{**to_builtins(group), "env": sorted(group.env)} for group in self.groups]
        written["prerun"] = [{**to_builtins(entry), "run": "" if entry.module else entry.run} for entry in self.prerun]
        written["wait"] = None if math.isinf(self.wait) else self.wait  # JSON has no infinity
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, object], env: Mapping[str, str] | None = None) -> RunSpec:
        """Return the spec of which ``to_json`` was written, by this version of mesh or another one.

        env: the values of the variables; those that it lacks are left out
        Raises ValueError if it is none.
        """
        values = env or {}
        groups = convert(written.get("groups"), Annotated[list[dict[str, object]], Meta(min_length=1)])
        with_env = [
            {**group, "env": {name: values[name] for name in convert(group.get("env"), list[str]) if name in values}}
            for group in groups
        ]
        wait = math.inf if written.get("wait") is None else written["wait"]
        return convert({**written, "groups": with_env, "wait": wait}, cls, dec_hook=lambda kind, value: kind(value))


def followed(spec: RunSpec) -> RunSpec:
    """Return the spec for a client that follows a run which goes on by itself: it brings, locks and starts nothing."""
    rules = replace(spec.rules, stdin="none", hang_watch=0.0, pty=False, debug=False)
    return replace(
        spec, project="", rules=rules, sync=False, lock=False, detach=False, prerun=(), stacks_on_timeout=False
    )


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that the user has named; (): all of them.

    >>> visible_devices({"CUDA_VISIBLE_DEVICES": "2, 3"}), visible_devices({})
    (('2', '3'), ())
    """
    listed = next((env[name] for name in VISIBLE_DEVICES if env.get(name)), "")
    return tuple(device.strip() for device in listed.split(",") if device.strip())


def command_words(words: list[str]) -> tuple[str, ...]:
    """Turn the words after CLUSTER into what execve gets (CONTRACT §1).

    >>> command_words(["python", "train.py", "--name", "a b"])
    ('python', 'train.py', '--name', 'a b')
    >>> command_words(["echo $RANK | tee log"])
    ('bash', '-c', 'echo $RANK | tee log')
    >>> command_words(["-c", "echo $1", "zero", "one"])
    ('bash', '-c', 'echo $1', 'zero', 'one')
    >>> command_words(["--", "-c", "x"])
    ('-c', 'x')
    """
    if words[:1] == ["--"]:
        return tuple(words[1:])
    if words[:1] == ["-c"] and len(words) > 1:
        return (*SHELL, *words[1:])
    if len(words) == 1 and any(character.isspace() for character in words[0]):
        return (*SHELL, words[0])
    return tuple(words)
