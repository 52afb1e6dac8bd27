"""The port through which the parts of the agent act: a few verbs in place of the agent itself.

A part gets a port, and by its constructor the values and the parts below it that it needs. It posts facts; the
decisions about the run answer with orders, and ``run/executor.py`` gives each order to the part that carries it out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from mesh.agent.base.background import Answer, Background
    from mesh.agent.run.facts import Fact
    from mesh.protocol.messages import Message
    from mesh.protocol.nodes import Taken
else:
    Protocol = object  # the module ``typing`` costs more to import than all of this


class Port(Protocol):
    """The verbs of a part that prepares, starts or follows a run."""

    @property
    def is_over(self) -> bool:
        """True once nothing new may begin: a part has failed, or the run is ending."""

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message to the client in its turn, which may be long after. Never blocks."""

    def send_now(self, message: Message) -> None:
        """Send a message before everything that waits, for messages that mean something by themselves."""

    def fail(self, step: str, message: str, hint: str = "") -> None:
        """Report a failure after which the run cannot begin or go on here; the first one counts."""

    def background(self, work: Callable[[], Answer], then: Callable[[Answer], None]) -> Background:
        """Call ``work`` in a child process, and ``then`` with its answer; requests wait meanwhile. Raises OSError."""

    def post(self, fact: Fact) -> None:
        """Report a fact, and have the orders carried out that follow from it."""


class LockPort(Port, Protocol):
    """The port of the lock."""

    def listen(self) -> None:
        """Open the control socket, unless it is open."""

    def keep_open(self, descriptor: int) -> None:
        """Have the guardian keep a descriptor open as well, until it has ended what a killed agent has left."""


class RanksPort(Port, Protocol):
    """The port of the ranks."""

    @property
    def stops_ranks(self) -> bool:
        """True if ranks that end now may have been ended by mesh."""

    def may_leave_unasked(self) -> bool:
        """Return True if nothing of the run is left or held here, so that the client need not ask for the end."""

    @property
    def is_detached(self) -> bool:
        """True if the run goes on without its client."""

    def listen(self) -> None:
        """Open the control socket, unless it is open."""

    def make_way(self) -> None:
        """Drop what only a run without ranks has, and import all that the end of a run with ranks needs."""

    def hold_output(self) -> None:
        """Hold output for a journal, because the client is to leave. Raises OSError."""

    def continue_output(self, taken: Taken) -> None:
        """Count the output of a rank on from what it has printed on the hosts before."""


class NodesPort(Port, Protocol):
    """The port of a program's nodes."""

    @property
    def stops_ranks(self) -> bool:
        """True if ranks that end now may have been ended by mesh."""

    @property
    def is_detached(self) -> bool:
        """True if the run goes on without its client."""


class ControlPort(Port, Protocol):
    """The port of the control socket."""

    @property
    def is_detached(self) -> bool:
        """True if the run goes on without its client."""

    @property
    def last_order(self) -> int:
        """The number of the client's last order."""

    def describe(self) -> dict[str, object]:
        """Return the run as other processes of this user may see it: the record Run of the protocol."""

    def pass_on(self, number: int, ranks: Sequence[int] | None) -> dict[int, int]:
        """Signal ranks as their user would; return to how many processes of each it went. ranks: None for all"""

    def restart(self, ranks: Sequence[int], grace: float | None, to: int) -> dict[int, str]:
        """Have ranks started again; return those that are here, each with the reason why it cannot be, or "".

        grace: seconds from SIGTERM to SIGKILL; None: as the run was started with
        to: index of the host that they move to; -1: they stay
        """


class AskPort(Port, Protocol):
    """The port of questions."""

    @property
    def has_ranks(self) -> bool:
        """True if ranks were started here."""

    def describe(self) -> dict[str, object]:
        """Return the run as other processes of this user may see it: the record Run of the protocol."""

    def listen(self) -> None:
        """Open the control socket, unless it is open."""

    def flush(self) -> None:
        """Send what the channel takes now."""

    def suspend_guardian(self) -> None:
        """Let the guardian wait for this agent however long it takes, until the next turn of the loop."""
