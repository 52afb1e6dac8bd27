"""The messages of streams that share a channel of their own: one end is a client, the other a forwarder on a host."""

from __future__ import annotations

from .kinds import COUNT, NAME, OPEN_PORT, RANK, SHOWN, integer, listed
from .messages import Message, Table
from .records import field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STREAM_WINDOW_BYTES = 1 << 18  # of one stream and direction, on their way or not taken yet
STREAM_PIECE_BYTES = 1 << 16  # in one message
STREAMS_MAX = 1024  # of one host at a time
BEAT_INTERVAL_S = 5.0  # between two messages of a client
SILENCE_LIMIT_S = 60.0  # after which an end takes the other one for dead

STREAM = integer(1, 1 << 31)


class Connect(Message, name="connect", sender="client"):
    """Opens a stream to a port of the host's loopback."""

    stream: int = field(STREAM)
    port: int = field(OPEN_PORT)


class Loopback(Message, name="loopback", sender="forwarder"):
    """Names the loopback of the host. Sent first, because a client that has the same one must leave it its ports."""

    name: str = field(NAME)  # equal for two processes if they have the same ports; "": unknown


class Attach(Message, name="attach", sender="client"):
    """Opens a stream to the debugger of a rank that waits."""

    stream: int = field(STREAM)
    rank: int = field(RANK)


class StopRank(Message, name="stop-rank", sender="client"):
    """Has a rank stop in its debugger."""

    rank: int = field(RANK)


class NotStopped(Message, name="not-stopped", sender="forwarder"):
    """Reports that a rank cannot be stopped."""

    rank: int = field(RANK)
    why: str = field(SHOWN)


class Waiting(Message, name="waiting", sender="forwarder"):
    """Names the ranks of this host that wait in their debuggers now. Sent at each change."""

    ranks: Sequence[int] = field(listed(RANK))
    asked: Sequence[int] = field(listed(RANK))  # that a client has stopped, and others leave to it


class Carry(Message, name="carry", sender="client or forwarder", data_bytes=STREAM_PIECE_BYTES):
    """Carries bytes of a stream."""

    stream: int = field(STREAM)


class Took(Message, name="took", sender="client or forwarder"):
    """Counts bytes that the program at this end of a stream has taken."""

    stream: int = field(STREAM)
    bytes: int = field(COUNT)


class Finish(Message, name="finish", sender="client or forwarder"):
    """Ends one direction of a stream; bytes may still come the other way."""

    stream: int = field(STREAM)


class Break(Message, name="break", sender="client or forwarder"):
    """Ends a stream at once, or reports that it could not be opened."""

    stream: int = field(STREAM)
    why: str = field(SHOWN, default="")


class Alive(Message, name="alive", sender="client or forwarder"):
    """Shows that the sender is there. A forwarder answers each one."""


OF_STREAMS: Table[Message] = Table(
    Connect, Loopback, Attach, StopRank, NotStopped, Waiting, Carry, Took, Finish, Break, Alive
)
