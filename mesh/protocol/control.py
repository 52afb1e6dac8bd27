"""The messages at an agent's control socket, from processes of the same user, and between the agents of a run."""

from __future__ import annotations

from .kinds import COUNT, NAME, RANK, RANK_OR_NONE, SECONDS, SIGNAL, STATUS, TEXT, Wrong, listed, nullable, word
from .messages import CONTROL, PEER, Message, Table
from .nodes import NodeState
from .records import Record, field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class AtControlSocket(Message, sender=CONTROL):
    """A request at the control socket. The answer is one object without a type."""


class About(AtControlSocket, name="about"):
    """Asks for the state of the run; the answer is the record Run."""


class Channel(AtControlSocket, name="channel"):
    """Hands a new channel of the client over, as two descriptors. The connection lasts as long as the channel."""

    have: int = field(COUNT)  # the place in the agent's stream up to which the client has everything


class Follow(AtControlSocket, name="follow"):
    """Stays to pass orders on, and to be woken when the journal grows; each answer is the record Confirmed."""

    client: str = field(NAME)


class Detach(AtControlSocket, name="detach"):
    """Has the run go on without its client; the answer is the record Run."""


class Over(AtControlSocket, name="over"):
    """Ends the run because its client is over; the answer is the record Run."""


class Pass(AtControlSocket, name="pass"):
    """Signals ranks as their user would; the answer is the record Passed."""

    signal: int = field(SIGNAL)
    ranks: Sequence[int] | None = field(nullable(listed(RANK)))  # None: all
    id: str = field(NAME)  # the same signal may come through several hosts of one machine


class Restart(AtControlSocket, name="restart"):
    """Has ranks started again in place of their processes; the answer is the record NewProcesses, once they are."""

    ranks: Sequence[int] = field(listed(RANK))
    grace: float | None = field(nullable(SECONDS))  # from SIGTERM to SIGKILL; None: as the run was started with
    to: int = field(RANK_OR_NONE, default=-1)  # index of the host that they move to; -1: they stay on theirs
    id: str = field(NAME)  # the same request may come through several hosts of one machine


class Stop(AtControlSocket, name="stop"):
    """Ends the run; the answer is the record Run."""

    grace: float | None = field(nullable(SECONDS))  # None: as the run was started with


class Confirmed(Record):
    """The answer to ``follow`` and to each order that is passed on; without a number, the journal grew."""

    obeyed: int = field(COUNT, default=-1)  # the number of the client's last order


AT_CONTROL_SOCKET: Table[AtControlSocket] = Table(About, Channel, Follow, Detach, Over, Pass, Restart, Stop)


class PeerMessage(Message, sender=PEER):
    """A message between two agents of a detached run."""


class Join(PeerMessage, name="join"):
    """Names the host of the agent that has connected to the first host's agent."""

    node: int = field(RANK)


class News(PeerMessage, name="news"):
    """Passes on why the run ends everywhere."""

    cause: str = field(word("rank", "lost", "signal", "program"))
    signal: int | None = field(SIGNAL, default=None)  # needed for "signal"
    lost: int | None = field(RANK, default=None)  # index of the host; needed for "lost"
    reason: str | None = field(TEXT, default=None)  # needed for "lost"; of a node, for "program"
    code: int | None = field(STATUS, default=None)  # needed for "program"

    def verify(self) -> None:
        if self.cause == "lost" and (self.lost is None or self.reason is None):
            raise Wrong("no lost, or no reason")
        if self.cause == "signal" and self.signal is None:
            raise Wrong("no signal")
        if self.cause == "program" and self.code is None:
            raise Wrong("no code")


class Changed(PeerMessage, name="changed"):
    """Passes on how nodes of a program have changed. It is not the news that ends a run."""

    nodes: Sequence[NodeState] = field(listed(record(NodeState)))


class Welcome(PeerMessage, name="welcome"):
    """Answers ``join``."""


class Beat(PeerMessage, name="beat"):
    """Shows that the agent and its host are alive."""


class Done(PeerMessage, name="done"):
    """Reports that the ranks of the host have ended."""


class Bye(PeerMessage, name="bye"):
    """Answers ``done``: the first host's agent needs the other one no more."""


FROM_PEER: Table[PeerMessage] = Table(Join, News, Changed, Welcome, Beat, Done, Bye)
