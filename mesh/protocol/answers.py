"""The messages of an agent to the client of its run."""

from __future__ import annotations

from .first import PORTS_MAX
from .kinds import (
    ANYTHING,
    COUNT,
    END_SIGNAL,
    HASH,
    LINES,
    OPEN_PORT,
    PID,
    PLACE_MAX,
    PORT,
    RANK,
    RANK_OR_NONE,
    SHORT_TEXT,
    SHOWN,
    SPAN,
    STATUS,
    TEXT,
    TEXTS,
    TIME,
    TRUTH,
    Wrong,
    integer,
    listed,
    mapping,
    named,
    number,
    word,
)
from .messages import PIECE_BYTES, Table, Versioned
from .nodes import NODES_MAX, OF_NODES, AgentMessage, NodeSockets
from .records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES_MAX = 2000  # of a Python
OUTPUT_BYTES = 1 << 20  # in one message; agents send at most 116 KiB
HEADER_BYTES = 1 << 20  # of a message; lists of processes and paths are the longest
ANSWER_BYTES = 16 << 20  # of the header of ``answer``: stacks, or all detached runs of a host
LACKS_BYTES = 16 << 20  # of what a host lacks, beyond what the workspace explains
NOTICE_S_MAX = 1e6
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # variables that name a network interface
STEPS = ("lock", "home", "port", "sync", "interface", "devices", "module", "prerun", "start", "agent", "pull")
STREAMS = ("stdout", "stderr")  # of a rank
STREAM = word(*STREAMS, "prerun", "setup", "module")
LOGIN_END = word("", "login", "logins")  # the end of which ends the processes of a detached run there


class Owner(Record, loose=True):
    """A run as its client describes it, perhaps a client of another version; the owner of a lock."""

    run: str = field(SHOWN, default="")
    cluster: str = field(SHOWN, default="")
    user: str = field(SHOWN, default="")
    machine: str = field(SHOWN, default="")  # of the client
    command: str = field(SHOWN, default="")
    name: str = field(SHOWN, default="")  # that its user has given it
    tags: Sequence[str] = field(LINES, default=())  # likewise
    boot: str = field(SHORT_TEXT, default="")  # id of the machine's start
    start: str = field(SHORT_TEXT, default="")  # of the client's process, since then
    pid: int | None = field(COUNT, default=None)  # of the client
    hosts: int | None = field(COUNT, default=None)
    since: float | None = field(TIME, default=None)
    ends_by: float | None = field(TIME, default=None)  # without a sign of its client
    watch: bool = field(TRUTH, default=False)  # the run is brief, and repeats
    detached: bool = field(TRUTH, default=False)
    other_user: bool = field(TRUTH, default=False)  # its files are not readable here


class OtherUser(Record):
    """A run of another Unix user on the machine."""

    user: str = field(SHOWN)
    run: str = field(SHOWN)
    since: float = field(TIME)


OTHERS = listed(record(OtherUser), 1024)


class Lack(Record):
    """A content that a host lacks; rows of these follow ``lacks``."""

    hash: str = field(HASH)
    size: int = field(COUNT)
    base: str = field(HASH, default="")  # another version, which the host has; "": none
    base_size: int = field(COUNT, default=0)
    head: Sequence[str] = field(listed(HASH), default=())  # hashes of the blocks of the base from its start
    tail: Sequence[str] = field(listed(HASH), default=())  # the same from its end


LACKING = listed(record(Lack))


class Hello(AgentMessage, Versioned, name="hello"):
    """Greets the client: the agent is there."""

    time: float = field(TIME)  # on the host's clock, as all times of agents
    machine: str = field(SHOWN)
    pid: int = field(PID, default=0)
    runs: Sequence[str] = field(LINES, default=())  # other runs of the user on the machine


class Locked(AgentMessage, name="locked"):
    """Reports that the run has the host, and what is there."""

    tree: str = field(HASH)  # of the last complete sync
    bare: bool = field(TRUTH)  # there is no workspace
    cgroup: str = field(SHORT_TEXT)  # where the run's processes are, in case that its agent is killed
    ports: Sequence[int] = field(listed(OPEN_PORT, PORTS_MAX))
    others: Sequence[OtherUser] = field(OTHERS)
    sockets: Sequence[NodeSockets] = field(listed(record(NodeSockets), NODES_MAX), default=())


class Busy(AgentMessage, name="busy"):
    """Reports that another run has the host."""

    owner: Owner = field(record(Owner))


class Lacks(AgentMessage, name="lacks", data_bytes=LACKS_BYTES):
    """Lists the contents that the host lacks: rows of JSON, compressed, follow (record Lack)."""

    attempt: int = field(RANK)


class OtherTree(AgentMessage, name="other-tree"):
    """Reports that the workspace there is not the one that the changes begin at."""

    tree: str = field(HASH)
    attempt: int = field(RANK)


class Serving(AgentMessage, name="serving"):
    """Reports where other hosts get the pack."""

    tree: int = field(COUNT)
    port: int = field(PORT)


class Unfetched(AgentMessage, name="unfetched"):
    """Reports that a pack could not be served, or fetched from another host."""

    tree: int = field(COUNT)
    reason: str = field(SHOWN)


class Synced(AgentMessage, name="synced"):
    """Reports that the workspace is in place."""

    files: int = field(COUNT)
    seconds: float = field(SPAN)
    tree: str = field(HASH)
    attempt: int = field(RANK)


class Decided(AgentMessage, name="decided"):
    """Reports why an entry of prerun runs, or that it does not."""

    entry: int = field(RANK)
    why: str = field(SHOWN)  # "": it does not
    missing: Sequence[str] = field(LINES)  # inputs that are not there


class Ready(AgentMessage, name="ready"):
    """Reports that the ranks can start."""

    interfaces: Mapping[str, str] = field(named(INTERFACES, SHORT_TEXT, all_needed=False))
    status: int = field(integer(126, 127), default=0)  # as a shell's, if the command cannot be executed
    nearest: str = field(SHOWN, default="")  # a program with a similar name
    packages: Mapping[str, str] = field(
        mapping(SHOWN, PACKAGES_MAX), default={}
    )  # of the first host: versions by names


class Failed(AgentMessage, name="failed"):
    """Reports the first failure outside of the ranks' processes."""

    step: str = field(word(*STEPS))
    message: str = field(SHOWN)
    hint: str = field(SHOWN)
    time: float = field(TIME)
    signal: int | None = field(END_SIGNAL, default=None)  # it ends the agent; 0: its guardian got one


class Started(AgentMessage, name="started"):
    """Reports that the process of a rank runs."""

    rank: int = field(RANK)
    pid: int = field(PID)
    time: float = field(TIME)


class Output(AgentMessage, name="output", data_bytes=OUTPUT_BYTES):
    """Carries output of a rank, of prerun or of a setup."""

    rank: int = field(RANK_OR_NONE)  # -1: of prerun
    stream: str = field(STREAM)
    at: int | None = field(COUNT, default=None)  # bytes of the stream before it


class LeftOut(AgentMessage, name="left-out"):
    """Counts output that the spool had no room for."""

    rank: int = field(RANK_OR_NONE)
    stream: str = field(STREAM)
    bytes: int = field(COUNT)


class Taken(AgentMessage, name="taken"):
    """Counts bytes that a rank's standard input has taken."""

    rank: int = field(RANK)
    bytes: int = field(integer(1, PLACE_MAX))


class End(AgentMessage):
    """The end of a rank."""

    rank: int = field(RANK)
    time: float = field(TIME)
    code: int | None = field(STATUS, default=None)
    signal: int | None = field(END_SIGNAL, default=None)
    during: str = field(TEXT, default="")  # the command of a setup that failed
    oom: bool = field(TRUTH, default=False)  # the kernel ended it for want of memory
    last: bool = field(TRUTH, default=False)  # nothing of the run is left on the host
    printed: Mapping[str, int] = field(mapping(COUNT, 2), default={})  # bytes of each stream

    def verify(self) -> None:
        if (self.code is None) == (self.signal is None):
            raise Wrong("expected either code or signal")


class Exited(End, name="exited"):
    """Reports the end of a rank, behind all of its output."""


class Ended(End, name="ended"):
    """Reports the end of a rank at once, while its output waits."""


class Step(AgentMessage, name="step"):
    """Reports that a command of a setup, or a step of a module, begins."""

    number: int = field(RANK)


class Applying(AgentMessage, name="applying"):
    """Reports that a step of a module is applied, or undone, and not just checked."""

    step: int = field(RANK)


class WantsFiles(AgentMessage, name="wants-files"):
    """Asks for the files of the step that is to be applied."""

    step: int = field(RANK)


class Applied(AgentMessage, name="applied"):
    """Reports that all steps of modules are done."""

    facts: Sequence[str] = field(TEXTS)  # the report of each step
    applied: Sequence[int] = field(listed(RANK))  # the steps that were not just checked


class WantsPassword(AgentMessage, name="wants-password"):
    """Announces that a later command of a setup will ask for a password."""


class AsksPassword(AgentMessage, name="asks-password"):
    """Reports that the command of a setup waits for a password."""


class Notice(AgentMessage, name="notice"):
    """Carries a line for the user."""

    text: str = field(SHOWN)
    seconds: float = field(number(0.0, NOTICE_S_MAX))  # that the agent needs for it


class Stopped(AgentMessage, name="stopped"):
    """Reports that another client has ordered the end of the run."""

    time: float = field(TIME)


class Leave(AgentMessage):
    """A report of processes and files that a run has left on the host."""

    left: Sequence[str] = field(LINES)  # and why, one line each
    stays: Sequence[str] = field(LINES)  # processes that stay on purpose


class Clear(Leave, name="clear"):
    """Reports at once that the run has ended on the host, while its output waits."""


class Gone(Leave, name="gone"):
    """Takes leave: the run has ended on the host. The agent's last message."""


class Beat(AgentMessage, name="beat"):
    """Answers a beat, and confirms orders."""

    echo: float = field(TIME)  # of the client's beat
    time: float = field(TIME)
    orders: int = field(COUNT)  # the number of the last order that was carried out
    held: float = field(SPAN, default=0.0)  # seconds that the answer has waited


class NoSocket(AgentMessage, name="no-door"):
    """Reports that a client that loses its channel cannot come back."""

    why: str = field(SHOWN, default="")


class Attached(AgentMessage, name="attached"):
    """Reports that the agent has the new channel."""

    orders: int = field(COUNT)


class NoAgent(AgentMessage, name="no-agent"):
    """Reports that the agent of the run is gone; the new process has ended what was left."""

    left: Sequence[str] = field(LINES)


class Detached(AgentMessage, name="detached"):
    """Reports that the run goes on without its client."""

    ends_with: str = field(LOGIN_END)


class StaysAttached(AgentMessage, name="stays-attached"):
    """Reports that the run cannot go on without its client."""


class Introduced(AgentMessage, name="introduced"):
    """Reports whether the agent has met the first host's agent."""

    port: int = field(PORT)  # on the first host, where the others reach it
    reason: str = field(SHOWN)  # "": it has


class Piece(AgentMessage, name="piece", data_bytes=PIECE_BYTES):
    """Carries frames of the pull reader."""


class Answer(AgentMessage, name="answer"):
    """Answers the oldest question. The record depends on the question."""

    answer: object = field(ANYTHING)


ANSWERS: Table[AgentMessage] = Table(
    *(Hello, Locked, Busy, Lacks, OtherTree, Serving, Unfetched, Synced, Decided, Ready, Failed, Started, Output),
    *(LeftOut, Taken, Exited, Ended, Step, Applying, WantsFiles, Applied, WantsPassword, AsksPassword, Notice),
    *(Stopped, Clear, Gone, Beat, NoSocket, Attached, NoAgent, Detached, StaysAttached, Introduced, Piece, Answer),
    *OF_NODES,
)


class WorkspaceSizes(Record):
    """The workspaces on a host."""

    sizes: Mapping[str, int] = field(mapping(COUNT))  # bytes on disk, by names
