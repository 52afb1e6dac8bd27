"""The records of a program's nodes, which are ranks that call each other, and the agent's messages about them."""

from __future__ import annotations

from .kinds import (
    COUNT,
    HASH,
    NAME,
    OPEN_PORT,
    PATH,
    PID,
    RANK,
    SECONDS,
    SHOWN,
    SIGNAL_MAX,
    STATUS,
    TEXT,
    TIME,
    TRUTH,
    integer,
    listed,
    mapping,
    word,
)
from .messages import AGENT, PIECE_BYTES, Message
from .records import Record, Row, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SOCKETS_MAX = 16
NODES_MAX = 1024  # of one host
ATTEMPT = integer(0, 1 << 20)
PID_OR_NONE = integer(0, 1 << 31)
PAIR_STREAM_BITS = 30  # of the number of a connection that an agent asks for; above them is its host, from 1
STREAM_NUMBER = integer(1, 1 << 54)  # of a relayed connection; the client counts its own from 1
NODE_STATES = ("ready", "restarting", "ended", "failed", "lost")
WHY_CHARACTERS = 1000  # of the reason that a node gives for the end of its program
RELAY_WINDOW_BYTES = 1 << 21  # of a relayed connection that may be on their way: 30 ms of an SSH channel


class Node(Record):
    """A rank that is a node, as its agent treats it. A field that is left out is false, 0 or ""."""

    rank: int = field(RANK)
    label: str = field(NAME)
    sockets: int = field(integer(0, SOCKETS_MAX), default=0)  # that it listens at
    remote: bool = field(TRUTH, default=False)  # the first socket is by TCP as well: there are nodes on other hosts
    payload: str = field(HASH, default="")
    may_fail: bool = field(TRUTH, default=False)
    restarts: int = field(integer(0, 1 << 20), default=0)
    ends_run: bool = field(TRUTH, default=False)


class NodeSockets(Row):
    """The sockets at which a node listens."""

    rank: int = field(RANK)
    unix: str = field(PATH)  # "": there is none
    ports: Sequence[int] = field(listed(OPEN_PORT, SOCKETS_MAX))  # of TCP


class NodeAddress(Record):
    """The address of a node, as all nodes of its program get it."""

    label: str = field(NAME)
    host: int = field(RANK)  # index of the host
    address: str = field(TEXT)  # of the host, as the others reach it
    unix: str = field(PATH, default="")
    remote: bool = field(TRUTH, default=False)  # the first port is that of the socket at which other nodes call
    ports: Sequence[int] = field(listed(OPEN_PORT, SOCKETS_MAX), default=())
    serves: bool = field(TRUTH, default=False)  # it is stopped once all other nodes have ended


class NodeState(Row):
    """A change of a node, for all other nodes."""

    label: str = field(NAME)
    state: str = field(word(*NODE_STATES))
    attempt: int = field(ATTEMPT)
    why: str = field(TEXT)  # its process or host is gone; "": it is not, or has ended well


class AgentMessage(Message, sender=AGENT):
    """A message of an agent."""


class RankReady(AgentMessage, name="rank-ready"):
    """Reports that a node is ready for calls."""

    rank: int = field(RANK)
    attempt: int = field(ATTEMPT)
    time: float = field(TIME)


class Restarting(AgentMessage, name="restarting"):
    """Reports that the process of a node, or of a rank, has ended, and that the agent starts it again."""

    rank: int = field(RANK)
    attempt: int = field(ATTEMPT)  # that comes
    time: float = field(TIME)
    seconds: float = field(SECONDS)  # until then
    code: int = field(STATUS, default=0)
    signal: int = field(integer(0, 2 * SIGNAL_MAX), default=0)


class Restarted(AgentMessage, name="restarted"):
    """Reports that a node or a rank was started again."""

    rank: int = field(RANK)
    attempt: int = field(ATTEMPT)
    pid: int = field(PID)
    time: float = field(TIME)


class MoveAsked(AgentMessage, name="move-asked"):
    """Passes on that another client wants a rank to move to another host."""

    rank: int = field(RANK)
    to: int = field(RANK)  # index of the host
    grace: float = field(SECONDS)  # from SIGTERM to SIGKILL
    time: float = field(TIME)


class Released(AgentMessage, name="released"):
    """Reports that every process of a rank that moves has ended."""

    rank: int = field(RANK)
    attempt: int = field(ATTEMPT)  # that comes
    time: float = field(TIME)
    code: int = field(STATUS, default=0)
    signal: int = field(integer(0, 2 * SIGNAL_MAX), default=0)


class Taken(Record):
    """A rank that has come to a host from another one, as the host's journal has it."""

    rank: int = field(RANK)
    attempt: int = field(ATTEMPT)  # that began there
    printed: Mapping[str, int] = field(mapping(COUNT))  # bytes of each stream, on the hosts before


class Kept(AgentMessage, name="kept"):
    """Reports that a rank cannot leave its host."""

    rank: int = field(RANK)
    why: str = field(SHOWN)
    time: float = field(TIME)


class Adopted(AgentMessage, name="adopted"):
    """Reports that the sockets of a node that moves to this host are open."""

    rank: int = field(RANK)
    sockets: NodeSockets = field(record(NodeSockets))
    time: float = field(TIME)


class ProgramStopped(AgentMessage, name="program-stopped"):
    """Reports that a node has ended its program."""

    rank: int = field(RANK)
    code: int = field(STATUS)
    why: str = field(SHOWN, default="")
    time: float = field(TIME)


class Result(AgentMessage, name="result", data_bytes=PIECE_BYTES):
    """Carries a piece of the result of a node."""

    rank: int = field(RANK)
    last: bool = field(TRUTH)


class PairRelayed(AgentMessage, name="pair-relayed"):
    """Reports that a node reaches those of another host only through the client. Once for each other host."""

    rank: int = field(RANK)
    to: str = field(NAME)  # the label of the first such node that it has called
    why: str = field(SHOWN)  # the direct connection has failed
    time: float = field(TIME)


class Connecting(AgentMessage, name="connecting"):
    """Asks the client to connect a node of this host with one of another host, which it cannot reach."""

    stream: int = field(STREAM_NUMBER)
    label: str = field(NAME)  # of the node on the other host


class Relayed(AgentMessage, name="relayed", data_bytes=PIECE_BYTES):
    """Carries bytes of a node to the client, through a relayed connection."""

    stream: int = field(STREAM_NUMBER)


class RelayTaken(AgentMessage, name="relay-taken"):
    """Counts bytes that a node has taken from a relayed connection."""

    stream: int = field(STREAM_NUMBER)
    bytes: int = field(COUNT)


class RelayEnded(AgentMessage, name="relay-ended"):
    """Reports that a relayed connection has ended, or could not be made."""

    stream: int = field(STREAM_NUMBER)
    why: str = field(SHOWN, default="")


OF_NODES = (
    *(RankReady, Restarting, Restarted, ProgramStopped, Result),
    *(MoveAsked, Released, Kept, Adopted),
    *(PairRelayed, Connecting, Relayed, RelayTaken, RelayEnded),
)
