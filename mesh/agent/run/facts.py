"""Facts about one run on one host: everything that its decisions depend on.

The parts of the agent post them. A fact carries the state that its decision reads; the time comes with the fact.
"""

from __future__ import annotations

from mesh.agent.values import Value


class Fact(Value):
    """An event on this host, or a report of the agent's own parts."""


# ---- the client and its channel


class ClientHeard(Fact):
    """Bytes of the client have arrived on its channel."""


class ClientLost(Fact):
    """The channel has ended without a good-bye."""


class ClientBack(Fact):
    """The client has reconnected through another channel."""


class ClientLeft(Fact):
    """The client has sent its good-bye."""


class ClientOver(Fact):
    """A command of the same user has reported that the client of this run no longer exists."""


class ClientRefused(Fact):
    """The client has sent bytes that are no request."""

    def __init__(self, error: str) -> None:
        self.error = error


# ---- requests


class SignalAsked(Fact):
    """The ranks are to be signalled."""

    def __init__(self, signal: int, grace: float, cause: str = "signal", more: dict[str, object] | None = None) -> None:
        """Make the fact.

        grace: seconds until SIGKILL
        cause: why the ranks end, for readers of the journal; more: further fields of that entry
        """
        self.signal, self.grace, self.cause, self.more = signal, grace, cause, more or {}


class KillAsked(Fact):
    """The ranks are to be killed now."""


class FinishAsked(Fact):
    """Everything that is left of the run is to be ended."""

    def __init__(self, signal: int, grace: float) -> None:
        self.signal, self.grace = signal, grace


class StopAsked(Fact):
    """A command `mesh stop` has reached the control socket."""

    def __init__(self, grace: float | None = None) -> None:
        """Make the fact. grace: seconds until SIGKILL; None for those of the run"""
        self.grace = grace


class DetachAsked(Fact):
    """The run is to go on without its client."""


class Detached(Fact):
    """The journal is written, and the client may leave."""


class DetachFailed(Fact):
    """The run cannot go on without its client."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


# ---- ranks


class RanksStarting(Fact):
    """The client has ordered the start of ranks. Some may fail to start."""

    def __init__(self, count: int, is_to_detach: bool = False) -> None:
        """Make the fact. is_to_detach: the client leaves once all ranks of the run have started"""
        self.count, self.is_to_detach = count, is_to_detach


class RankStarted(Fact):
    """The process of a rank, or of a setup, was started."""


class RankEnded(Fact):
    """A rank has ended, and all its output was passed on."""

    def __init__(self, is_failure: bool) -> None:
        self.is_failure = is_failure


class NodeStopped(Fact):
    """A node has ended its program."""

    def __init__(self, rank: int, code: int, why: str) -> None:
        """Make the fact. code: exit status of the program; why: the reason that the node gave, for people"""
        self.rank, self.code, self.why = rank, code, why


class SetupEnded(Fact):
    """The process of a setup has ended."""


class Printed(Fact):
    """A rank has printed something."""


# ---- this host


class LockTaken(Fact):
    """This run owns the lock of the machine, and the lock names its owner."""


class LockReleased(Fact):
    """This run no longer owns the lock."""


class Terminated(Fact):
    """The agent has received SIGTERM."""

    def __init__(self, is_orphaned: bool) -> None:
        """Make the fact. is_orphaned: the guardian was killed, and the kernel sent the signal for that"""
        self.is_orphaned = is_orphaned


class Failed(Fact):
    """A part of the agent has failed, and the run cannot begin or go on here."""

    def __init__(self, step: str, message: str, hint: str = "") -> None:
        self.step, self.message, self.hint = step, message, hint


class JournalKept(Fact):
    """The journal holds all that the client has not received."""


# ---- other hosts


class PeersReady(Fact):
    """This agent listens for the agents of the other hosts, or connects to them."""

    def __init__(self, node: int) -> None:
        """Make the fact. node: the number of this host in the run"""
        self.node = node


class PeersMet(Fact):
    """The agent of another host has been met, so that all hosts of the run have detached."""


class PeerNews(Fact):
    """The first report about another host: why the run ends there."""

    def __init__(self, cause: str, signal: int = 0, lost: int = -1, reason: str = "", code: int = 0) -> None:
        """Make the report.

        cause: "rank", "lost", "signal", or "program" for a node that has ended its program
        signal: its number, for "signal"; lost, reason: number of the host and why it is lost, for "lost"
        code, reason: exit status and why, for "program"
        """
        self.cause, self.signal, self.lost, self.reason, self.code = cause, signal, lost, reason, code


# ---- the end


class AllGone(Fact):
    """Every process of the run is gone, or cannot be ended."""

    def __init__(
        self,
        left: tuple[str, ...] = (),
        *,
        busy: tuple[str, ...] = (),
        uses_containers: bool = False,
        has_copy: bool = False,
        was_killed: bool = False,
    ) -> None:
        """Make the fact.

        left: processes that cannot be ended, one line each
        busy: claimed device files that are still held
        uses_containers: a rank has started containers
        has_copy: the run has a copy of the workspace for itself
        was_killed: SIGKILL was sent after the order to end
        """
        self.left, self.busy, self.uses_containers = left, busy, uses_containers
        self.has_copy, self.was_killed = has_copy, was_killed


class CleanedUp(Fact):
    """Containers are stopped, devices are free and the copy is removed, as far as that was possible."""

    def __init__(self, left: tuple[str, ...] = ()) -> None:
        self.left = left


class CleanUpFailed(Fact):
    """The process that cleans up could not be started."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Relayed(Fact):
    """The last output and the ends of all processes were passed on."""
