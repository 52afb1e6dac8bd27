"""Orders of the decisions of one run on one host; the agent carries them out in the order given."""

from __future__ import annotations

from mesh.agent.run.facts import PeerNews
from mesh.agent.values import Value


class Order(Value):
    """An action of the agent."""


# ---- processes


class SendSignal(Order):
    """Signal every process of the run, and kill the rest after ``grace`` seconds."""

    def __init__(self, signal: int, grace: float) -> None:
        self.signal, self.grace = signal, grace


class NotifyNodes(Order):
    """Report to the nodes of a program that it ends. cause: why; "" for a client that gave none"""

    def __init__(self, cause: str) -> None:
        self.cause = cause


class KillBy(Order):
    """Kill every process of the run in ``seconds``, or when that was ordered before, if sooner."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class BeginEnd(Order):
    """Signal every process of the run, and look for the rest until all are gone; then post AllGone."""

    def __init__(self, signal: int, grace: float) -> None:
        self.signal, self.grace = signal, grace


class ReleasePrerun(Order):
    """Let the prerun session end; it may run an EXIT trap."""


class RemoveScripts(Order):
    """Remove the scripts that stand in for docker and its kind; no container uses them."""


class CleanUp(Order):
    """Stop containers, wait for devices and remove the copy, in the background; then post CleanedUp."""

    def __init__(self, busy: tuple[str, ...], grace: float, patience: float) -> None:
        """Make the order. grace: seconds for containers; patience: seconds for the devices in ``busy``"""
        self.busy, self.grace, self.patience = busy, grace, patience


# ---- reports to the client


class ReportFailure(Order):
    """Send ``failed``, with the time."""

    def __init__(self, step: str, message: str, hint: str = "", killed_by: int | None = None) -> None:
        """Make the order. killed_by: the signal that ends this agent, 0 for a killed guardian, None for neither"""
        self.step, self.message, self.hint, self.killed_by = step, message, hint, killed_by


class ReportStopped(Order):
    """Send ``stopped`` out of turn, with the time."""


class ReportProgramStopped(Order):
    """Send ``program-stopped`` out of turn, with the time."""

    def __init__(self, rank: int, code: int, why: str) -> None:
        self.rank, self.code, self.why = rank, code, why


class AnnounceEnd(Order):
    """Send ``end-ordered``, with the time: why the ranks end, for clients that come back."""

    def __init__(self, cause: str, signal: int, more: dict[str, object] | None = None) -> None:
        self.cause, self.signal, self.more = cause, signal, more or {}


class ReportWait(Order):
    """Send a notice out of turn and at once: the end takes up to ``seconds`` longer."""

    def __init__(self, text: str, seconds: float) -> None:
        self.text, self.seconds = text, seconds


class ReleaseOutput(Order):
    """Send the output that was held back for a client that was to leave."""


class DropChannel(Order):
    """Close the client's channel in both directions."""


# ---- a run without its client


class Detach(Order):
    """Write the journal and the owner in the lock; then post Detached or DetachFailed."""


class ConfirmDetached(Order):
    """Send ``detached`` out of turn."""


class StayAttached(Order):
    """Send out of turn that the run cannot go on without its client, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class KeepJournal(Order):
    """Write a journal unless the client has received everything and no process is left; then post JournalKept.

    Without room for it, release the output instead.
    """


class SendNews(Order):
    """Send this report to the agents of the other hosts."""

    def __init__(self, news: PeerNews) -> None:
        self.news = news


class ReportDone(Order):
    """Report to the agents of the other hosts that no rank is left here."""


class NoteSilence(Order):
    """Write into the lock when the processes of a silent client will be gone."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class NoteReturn(Order):
    """Remove that time from the lock, because the client is back."""


# ---- leaving


class ClearRequests(Order):
    """Forget the requests that wait for background work."""


class StopSync(Order):
    """Stop changing the workspace: drop the sync, or ask its background process to stop if there is any."""


class CollectChildren(Order):
    """Wait for every child that has ended."""


class DropSync(Order):
    """Remove everything of the sync but the workspace."""


class RelayRest(Order):
    """Pass on the last output and the ends of all processes; then post Relayed."""


class Leave(Order):
    """Report the end out of turn if output waits, give back the lock and remove the control group."""

    def __init__(self, left: tuple[str, ...] = (), *, stays: bool = False, is_reported: bool = True) -> None:
        """Make the order.

        left: what is still there and why, one line each
        stays: name the processes that a setup has left on purpose
        is_reported: also send ``gone`` in turn
        """
        self.left, self.stays, self.is_reported = left, stays, is_reported
