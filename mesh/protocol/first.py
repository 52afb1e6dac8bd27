"""The first message on a channel, which decides what the new process on the host does."""

from __future__ import annotations

from .kinds import (
    COUNT,
    NAME,
    OBJECT,
    OPEN_PORT,
    PATH,
    PORT,
    RANK,
    SECONDS,
    TEXT,
    TEXTS,
    TRUTH,
    containing,
    listed,
    mapping,
    nullable,
    word,
)
from .messages import CLIENT, Message, Table, Versioned
from .nodes import NODES_MAX, Node
from .records import field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PORTS_MAX = 16  # of a run on one host
PROGRAM_BYTES = 16 << 20


class First(Versioned, sender=CLIENT):
    """The first message on a channel."""

    marker: str = field(NAME)  # the line that the process writes before its first frame
    run: str = field(NAME)
    node: int = field(RANK)  # index of the host in the run
    remote_dir: str = field(PATH)


class Begin(First, name="begin"):
    """Makes the process the agent of a run."""

    project: str = field(TEXT)  # the workspace's directory on the host
    about: Mapping[str, object] = field(OBJECT)  # the run, as other clients see it
    owner: Mapping[str, object] | None = field(nullable(containing("run", NAME)))  # of the lock; None: take no lock
    lock: bool = field(TRUTH)  # take the lock at once
    announce: bool = field(TRUTH)  # name the run to other users, and look for their runs
    exclusive: bool = field(TRUTH)  # with announce: busy where another user's run is
    share: bool = field(TRUTH)  # work in a copy of the workspace
    existing: bool = field(TRUTH)  # fail unless the workspace is there
    workspace_links: bool = field(TRUTH)  # the workspace may be a symbolic link
    needs_home: bool = field(TRUTH)  # fail where HOME is read-only
    stacks: bool = field(TRUTH)  # prepare every Python of the ranks to write its stacks
    devices: Sequence[str] = field(TEXTS)  # patterns of device files
    device_patience: float = field(SECONDS)  # in which devices must be free after the run
    lease: float = field(SECONDS)  # without a beat, after which the agent ends the run
    return_within: float = field(SECONDS)  # for a client to be back
    grace: float = field(SECONDS)  # from SIGTERM to SIGKILL
    drain: float = field(SECONDS)  # for other ranks after the first failure
    timeout: float = field(SECONDS)  # of the whole run; 0: none
    keep_going: bool = field(TRUTH)  # a failed rank ends no others
    spool: int = field(COUNT)  # bytes of output that may wait on the host
    ports: Sequence[int] = field(listed(PORT, PORTS_MAX))  # to keep for the ranks until they start
    plan: Mapping[str, object] = field(OBJECT)  # of the run, for a client that comes back
    nodes: Sequence[Node] = field(listed(record(Node), NODES_MAX), default=())  # of a program, on this host
    node_ports: Sequence[int] = field(listed(OPEN_PORT, 2), default=())  # the first and last one for them; (): any
    program: bool = field(TRUTH, default=False)  # ranks are nodes of a program, though there may be none on this host
    debug: bool = field(TRUTH, default=False)  # ranks stop in a debugger
    term_limit: float = field(SECONDS, default=0.0)  # from a SIGTERM of the host's scheduler to its SIGKILL; 0: unknown
    tied: str = field(TEXT, default="")  # why the run ends with its client; "": it can go on alone


class Channel(First, name="channel"):
    """Has the process hand its channel to the agent of a run, for a client that has lost its own."""

    have: int = field(COUNT)  # the place in the agent's stream up to which the client has everything
    cgroup: str = field(PATH)  # where the run's processes are, if its agent was killed
    age: float = field(SECONDS, default=0.0)  # of the run


class Follow(First, name="follow"):
    """Has the process read the journal of a detached run to the client."""

    client: str = field(NAME)  # the same through all channels of a client
    have: Mapping[str, int] = field(mapping(COUNT))  # bytes of each stream that the client has
    only_reads: bool = field(TRUTH)  # end nothing there
    only_end: bool = field(TRUTH)  # the output stays to be fetched
    place: int = field(COUNT)  # bytes that came through earlier channels


class Reach(First, name="reach"):
    """Has the process connect the client to a node of the run, or send it the node's result, or the run's plan.

    The answer is one line of JSON with ``why``, "" for success, and then bytes of the node, its result, or the plan.
    """

    rank: int = field(RANK)
    wants: str = field(word("calls", "result", "plan"))


class Forward(First, name="forward"):
    """Has the process connect streams of the client to ports of its host's loopback, until the client leaves."""

    debug: bool = field(TRUTH, default=False)  # and to ranks of the run that wait in their debuggers


class Program(Message, name="agent", sender=CLIENT, data_bytes=PROGRAM_BYTES):
    """Carries the agent's program, for a host that lacks it; the starter reads it."""


FIRST: Table[First] = Table(Begin, Channel, Follow, Reach, Forward)
AT_START: Table[Message] = Table(Program)
