"""A run as it was asked for: one value, built once, read by every layer below."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from msgspec import Struct, field

DEFAULT_GRACE = 10.0
DEFAULT_DRAIN = 2.0
DEFAULT_HOST_GRACE = 60.0
DEFAULT_LEASE = 60.0
DEFAULT_SPOOL = 10_000_000_000
DEFAULT_LOGS = 10_000_000_000
MULTI_NODE_ARGS = "{multi_node_args}"  # as a word of a command; see RunSpec.multi_node
MOST_TOLD = 60  # characters of a prerun entry in a message


AUTO = 0  # as a number of ranks on each host: as many as it has GPUs
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # NVIDIA's, and AMD's own name, which wins there


class Launch(Enum):
    """Which launcher of a framework starts the ranks' processes on a host."""

    NONE = ""  # mesh itself
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


class Kind(Enum):
    """What a run is for."""

    RUN = "run"
    SETUP = "setup"
    SYNC = "sync"  # of the workspace, and nothing else
    PULL = "pull"  # files from the hosts


class SetupCommand(Struct, frozen=True, kw_only=True):
    """One of the ``commands:`` of mesh.yaml."""

    run: str  # shell text
    unless: str = ""  # shell text; where it succeeds, the command is skipped
    sudo: bool = False  # as root, by sudo


class PrerunEntry(Struct, frozen=True, kw_only=True):
    """One entry of ``prerun:``."""

    run: str  # shell text
    # Paths and patterns, relative to the workspace: the entry is skipped where it last succeeded with the same text and
    # the same contents of these; (): it always runs.
    inputs: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """In one line, for people.

        >>> PrerunEntry(run="uv venv &&\\n  uv sync").told
        '"uv venv && uv sync"'
        """
        line = " ".join(self.run.split())
        return f'"{line}"' if len(line) <= MOST_TOLD else f'"{line[: MOST_TOLD - 3]}..."'


class RunSpec(Struct, frozen=True, kw_only=True):
    """What one run does, on whatever hosts. Times are in seconds.

    A setup is a run as well: its ``commands`` take the place of the command, one rank to a host.
    """

    run: str  # the run's id, unique for this user
    project: str  # the name of the directory on the hosts: the project's name and a hash of who and where
    workspace: Path  # the local directory that every host gets a copy of
    command: tuple[str, ...]  # the words for execve; undecodable bytes as surrogates (os.fsdecode); (): none
    kind: Kind = Kind.RUN
    commands: tuple[SetupCommand, ...] = ()  # of a setup, in order
    force: bool = False  # run also what ``unless`` or ``inputs`` would skip
    ignore: tuple[str, ...] = ()  # patterns of mesh.yaml: git's rules, relative to the workspace
    include_git: bool = False  # .git belongs to the workspace
    prerun: tuple[PrerunEntry, ...] = ()  # run in one bash session per host
    env: Mapping[str, str] = field(default_factory=dict)  # the user's own; wins over what mesh sets
    nproc: int = 1  # processes on each host, at least 1; AUTO until its GPUs have been counted
    launcher: Launch = Launch.NONE  # starts them; it is then the only rank of its host
    multi_node: bool = False  # the word MULTI_NODE_ARGS becomes what madengine is told of the hosts, on each of them
    bind: bool = False  # each rank sees one GPU of its host
    master_port: int = 0  # 1 .. 65535, where the ranks meet on the first host; 0: one that is free
    grace: float = DEFAULT_GRACE  # from SIGTERM to SIGKILL
    drain: float = DEFAULT_DRAIN  # what the others may still say after the first failure
    timeout: float = 0.0  # wall clock from the start of the ranks; 0: none
    host_grace: float = DEFAULT_HOST_GRACE  # how long a host may be silent before it is lost
    lease: float = DEFAULT_LEASE  # how long the hosts keep the run without a sign of life from us
    spool: int = DEFAULT_SPOOL  # bytes of output that may wait on a host's disk
    logs: int = DEFAULT_LOGS  # bytes that the logs of the run may have on our disk, all together
    keep_going: bool = False  # a failed rank does not stop the others
    skip_unreachable: bool = False  # hosts that cannot be reached have no ranks; the ranks of the others start
    stdin: str = "none"  # which ranks get our standard input: "none", "rank0" or "all"
    watch: bool = False  # a sync that is repeated as files change: others wait for its end
    sync: bool = True  # send the workspace before the start
    sync_timeout: float = 0.0  # from the first host's sync to the end of the last one's; 0: none
    existing: bool = False  # the workspace on the hosts is one that is there already: without it there is no run
    fresh: bool = False  # remove from the workspaces on hosts what was made there
    fan_out: bool = True  # hosts may hand on among themselves what they all lack
    lock: bool = True  # take the lock of every host
    wait: float = 0.0  # how long to wait for hosts that are busy with another run; 0: not at all
    share: bool = False  # work in a copy of the workspace that is removed afterwards
    exclusive: bool = False  # refuse hosts where another Unix user's run is
    detach: bool = False  # leave once the ranks have started: the hosts keep the run by themselves
    claim: bool = False  # see that nobody holds a device before the start, and that they are free afterwards
    evict: bool = False  # end other processes of our user that hold one
    stacks: bool = False  # prepare every Python of the ranks to tell its stacks
    stacks_on_timeout: bool = False  # show all stacks before a timeout ends the run

    @property
    def needs_home(self) -> bool:
        """True unless the ranks find nothing on a host and leave nothing there, as with ``mesh exec``."""
        return not self.command or self.sync or self.lock or self.existing or self.share

    @property
    def is_announced(self) -> bool:
        """Return True if other Unix users of a host are to know of this run there."""
        return self.kind in (Kind.RUN, Kind.SETUP) and (self.lock or self.share)

    @property
    def ranks_per_host(self) -> int:
        """How many processes mesh starts on each host."""
        return self.nproc if self.launcher is Launch.NONE else 1


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that the user has named; (): all of them.

    >>> visible_devices({"CUDA_VISIBLE_DEVICES": "2, 3"}), visible_devices({})
    (('2', '3'), ())
    """
    listed = next((env[name] for name in VISIBLE_DEVICES if env.get(name)), "")
    return tuple(device.strip() for device in listed.split(",") if device.strip())


SHELL = ("bash", "-c")


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
