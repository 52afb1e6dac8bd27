"""The orders of the supervisor; the launcher carries them out."""

from __future__ import annotations

from msgspec import Struct

from mesh.core.events import EndOrdered, Event
from mesh.core.module import Step
from mesh.protocol.questions import Question


class Say(Struct, frozen=True, kw_only=True):
    """Show a line to the user."""

    text: str


class Tell(Struct, frozen=True, kw_only=True):
    """Show an event that comes from no host."""

    event: Event


class HostOrder(Struct, frozen=True, kw_only=True):
    """The base of orders for one host."""

    node: int  # 0 .. number of hosts - 1


class Lock(HostOrder, frozen=True, kw_only=True):
    """Take the host's lock, if the run takes any."""


class Unlock(HostOrder, frozen=True, kw_only=True):
    """Release the host's lock."""


class Sync(HostOrder, frozen=True, kw_only=True):
    """Send the workspace."""


class Apply(HostOrder, frozen=True, kw_only=True):
    """Carry out steps of modules, or undo them."""

    steps: tuple[Step, ...]
    undo: bool = False


class Prepare(HostOrder, frozen=True, kw_only=True):
    """Run prerun."""


class Start(HostOrder, frozen=True, kw_only=True):
    """Start the ranks of this host, or its setup."""


class Ask(HostOrder, frozen=True, kw_only=True):
    """Send the agent a question."""

    question: Question[object]
    lasting: bool = False  # the answer takes long, so that a broken connection is made again meanwhile
    enclosed: bytes = b""  # bytes that belong to the question


class Release(HostOrder, frozen=True, kw_only=True):
    """End all processes of a rank that goes to another host."""

    rank: int
    grace: float  # seconds from SIGTERM to SIGKILL


class Adopt(HostOrder, frozen=True, kw_only=True):
    """Open the sockets of a node that comes to this host."""

    rank: int


class Take(HostOrder, frozen=True, kw_only=True):
    """Start a rank that comes to this host."""

    rank: int
    attempt: int  # 1 ..
    after: str  # how its last process ended


class Moved(HostOrder, frozen=True, kw_only=True):
    """Pass on how the move of a rank ended, to the client that has asked this host's agent for it."""

    rank: int
    pid: int = 0  # of the new process; 0: there is none
    why: str = ""


class Detach(HostOrder, frozen=True, kw_only=True):
    """Have the host keep the run without us."""


class Introduce(HostOrder, frozen=True, kw_only=True):
    """Have the host's agent meet the agents of the other hosts, so that they end the run together without us."""

    port: int  # of the first host's agent, which all others meet; 0: this is the first host


class Signal(HostOrder, frozen=True, kw_only=True):
    """Send a signal to every process of the run there; after grace seconds, kill the rest."""

    number: int
    grace: float
    why: EndOrdered | None = None  # for clients that attach to a detached run later


class Change(HostOrder, frozen=True, kw_only=True):
    """Pass on to the nodes there how nodes on other hosts have changed."""

    states: tuple[tuple[str, str, int, str], ...]  # label, state and attempt of each, and why


class Kill(HostOrder, frozen=True, kw_only=True):
    """Kill every process of the run there at once."""


class Finish(HostOrder, frozen=True, kw_only=True):
    """End all processes that are left, verify it, and have the agent leave."""

    number: int
    grace: float


class AskUser(Struct, frozen=True, kw_only=True):
    """Ask whether to stop the run or to leave it; Chosen is the answer."""


Order = Say | Tell | HostOrder | AskUser
