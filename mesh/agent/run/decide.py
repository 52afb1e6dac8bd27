"""The decisions of one run on one host, without processes, descriptors or clocks: facts in, orders out."""

from __future__ import annotations

from mesh.agent.detached.rules import NEVER, UnattendedRules
from mesh.agent.detached.unattended import Unattended
from mesh.agent.run import facts, orders
from mesh.agent.run.facts import Fact
from mesh.agent.run.lease import Lease
from mesh.agent.run.leaving import Leaving
from mesh.agent.run.orders import Order
from mesh.agent.run.rules import Rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SIGNAL_TERM = 15  # signal(7)
STUCK_LIMIT_S = 10.0  # while processes are being ended, the loop turns at least this often


class Decisions:
    """The state of one run on one host, and the orders that follow from facts and from time.

    ``handle`` takes facts as they come. ``tick`` decides by the clock: it is called once after the facts of each turn
    of the loop, so that facts of one turn count together. Every time is monotonic.
    """

    def __init__(self, rules: Rules, lease: Lease) -> None:
        """Start with a connected client and no rank. lease: a new one, which only the decisions change"""
        self._rules, self._lease = rules, lease
        self._leaving = Leaving(rules.grace, rules.device_patience)
        self._orders: list[Order] = []
        self._unattended = Unattended()
        self._has_ranks = False  # a process of a rank or setup was started
        self._is_to_detach = False  # the client leaves once all ranks of the run have started
        self._sent: set[int] = set()  # signals that clients have ordered
        self._is_signalled = False  # a client has ordered a signal for the ranks
        self._is_stopped = False  # a node has ended its program
        self._has_failed = False
        self._terminated: facts.Terminated | None = None
        self._owns_lock = False
        self._silence_noted = False  # the lock names the time at which the processes of a silent client end
        self.is_kept = False  # the journal stays for a client that is over, as that of a detached run

    # ---- queries

    @property
    def is_ending(self) -> bool:
        """True if everything of the run is to end, and the agent is to leave."""
        return self._leaving.is_ending

    @property
    def is_clear(self) -> bool:
        """True if every process of the run is gone or named."""
        return self._leaving.is_clear

    @property
    def is_over(self) -> bool:
        """True once nothing new may begin."""
        return self._has_failed or self.is_ending

    @property
    def is_detached(self) -> bool:
        """True if the run goes on without its client."""
        return self._lease.is_detached

    @property
    def stops_ranks(self) -> bool:
        """True if ranks that end now may have been ended by mesh."""
        return self._is_signalled or self.is_ending

    def is_silent(self, now: float) -> bool:
        """True if the client receives nothing now."""
        return self._lease.is_silent(now)

    def may_leave_unasked(self, holds: bool) -> bool:
        """True if the client need not ask for the end. holds: a lock, a copy, devices, containers or a process"""
        return not (holds or self.is_over or self.is_detached)

    def is_done(self, now: float, is_acknowledged: bool, is_needed: bool) -> bool:
        """Return True if the agent can exit.

        is_acknowledged: the client has received everything; is_needed: an agent of another host waits for this one
        """
        if not self.is_clear:
            return False
        if self.is_detached:
            return self._lease.is_silent(now) and not is_needed
        return is_acknowledged or now > self._lease.ends_at()

    def must_turn_by(self, now: float, kill_at: float) -> float:
        """Return the time until which ranks may live without another turn of the loop. kill_at: of the next SIGKILL"""
        if self.is_ending and not self.is_clear:
            return max(now, kill_at) + STUCK_LIMIT_S
        return max(now, self._lease.ends_at())

    def due_at(self, now: float) -> float:
        """Return the time at which ``tick`` or ``is_done`` may have another answer without a new fact."""
        lease, unattended = self._lease, self._unattended
        moments = [NEVER]
        if self.is_clear or not self.is_ending:
            moments.append(lease.ends_at())
        if self._notes_silence() and not self._silence_noted:
            moments.append(lease.silent_at)
        if self.is_detached and self.is_clear and not lease.is_silent(now):
            moments.append(lease.silent_at)
        if self.is_detached:
            moments.append(unattended.due_at())
        if not self.is_ending and (self._terminated or (self.is_detached and self._may_finish(now))):
            moments.append(now)
        elif not self.is_ending and self.is_detached and unattended.is_over:
            moments.append(lease.silent_at)
        return min(moments)

    # ---- facts and time

    def handle(self, fact: Fact, now: float) -> list[Order]:
        """Return the orders that follow from a fact."""
        self._orders = []
        HANDLERS[type(fact)](self, fact, now)
        return self._orders

    def tick(self, now: float) -> list[Order]:
        """Return the orders that follow from the time and from all facts so far."""
        self._orders = []
        self._note_silence(now)
        if self._terminated is not None and not self.is_ending:
            self._terminate(self._terminated)
        if self.is_detached:
            self._look_after_ranks(now)
        if not self.is_ending and now > self._lease.ends_at():
            self._end_lease()
        return self._orders

    def _end_lease(self) -> None:
        """End the run of a client that does not come back; one that was to be detached keeps how its ranks ended."""
        was_killed = self._lease.was_killed()
        if not (self._is_to_detach and was_killed):
            self._fail("agent", self._lease.loss_reason())
        if self._is_to_detach or not was_killed:
            self._keep()
        self._announce_end("signal", SIGNAL_TERM, {})
        self._lease.settle()
        self._finish(SIGNAL_TERM, self._rules.grace)

    def _note_silence(self, now: float) -> None:
        is_silent = self._lease.is_silent(now)
        if not self._notes_silence() or is_silent == self._silence_noted:
            return
        self._silence_noted = is_silent
        if is_silent:
            self._order(orders.NoteSilence(self._lease.ends_at() - now + self._rules.grace))
        else:
            self._order(orders.NoteReturn())

    def _notes_silence(self) -> bool:
        return self._owns_lock and not (self.is_detached or self.is_over)

    def _terminate(self, fact: facts.Terminated) -> None:
        reason = "its guardian was killed" if fact.is_orphaned else "the agent received SIGTERM"
        self._orders += self._unattended.lose(reason)
        self._fail("agent", reason, killed_by=0 if fact.is_orphaned else SIGNAL_TERM)
        self._notify("lost" if fact.is_orphaned else "preempted")
        self._finish(SIGNAL_TERM, self._rules.grace if fact.is_orphaned else self._rules.outer_grace)

    def _look_after_ranks(self, now: float) -> None:
        """Decide in place of the client's supervisor."""
        cause, more = self._unattended.due(now)
        if cause:
            self._signal(SIGNAL_TERM, self._rules.grace, cause, more)
        if self._may_finish(now) and not self.is_ending:
            self._finish(SIGNAL_TERM, self._rules.grace)

    def _may_finish(self, now: float) -> bool:
        """Return True if the ranks have ended and the client has left, as it does once the agents have met.

        The end signals every process of the run here, also one that looks for the other agents. Without a meeting, a
        failure on this host would not end the ranks on others.
        """
        return self._unattended.is_over and self._lease.is_silent(now)

    # ---- the client

    def _client_lost(self, fact: facts.ClientLost, now: float) -> None:
        self._lease.lose_channel(now)

    def _client_back(self, fact: facts.ClientBack, now: float) -> None:
        self._lease.take_channel(now)

    def _client_left(self, fact: facts.ClientLeft, now: float) -> None:
        """End the run of a client that leaves on purpose; a detached run goes on."""
        if self.is_detached:
            self._drop_channel(now)
            return
        self._lease.leave()
        self._finish(SIGNAL_TERM, self._rules.grace)

    def _client_over(self, fact: facts.ClientOver, now: float) -> None:
        """End the run of a client that no longer exists, and keep what the client has not received."""
        if not self.is_detached:
            self._keep()
            self._lease.leave()
            self._finish(SIGNAL_TERM, self._rules.grace)

    def _client_refused(self, fact: facts.ClientRefused, now: float) -> None:
        """End the run of a client that breaks the protocol; a detached run only drops that client."""
        if self.is_detached:
            self._drop_channel(now)
            return
        self._lease.refuse(now)
        self._fail("agent", f"its client does not speak our protocol: {fact.error}")
        self._finish(SIGNAL_TERM, self._rules.grace)

    def _drop_channel(self, now: float) -> None:
        self._lease.settle()
        self._lease.lose_channel(now)
        self._order(orders.DropChannel())

    def _keep(self) -> None:
        if self._unattended.has_rules and not (self.is_detached or self.is_kept or self._lease.has_left):
            self._order(orders.KeepJournal())

    def _journal_kept(self, fact: facts.JournalKept, now: float) -> None:
        self.is_kept = True
        if self._is_to_detach and not self._unattended.is_over:  # the ranks do not end by themselves
            self._orders += self._unattended.announce_end("signal", SIGNAL_TERM, {})

    # ---- requests

    def _signal_asked(self, fact: facts.SignalAsked, now: float) -> None:
        self._signal(fact.signal, fact.grace, fact.cause, fact.more)

    def _kill_asked(self, fact: facts.KillAsked, now: float) -> None:
        self._is_signalled = True
        self._order(orders.ReleaseOutput())
        self._order_about_processes(orders.KillBy(0.0))

    def _stop_asked(self, fact: facts.StopAsked, now: float) -> None:
        self._order(orders.ReportStopped())
        self._announce_end("signal", SIGNAL_TERM, {})
        self._notify("signal")
        self._finish(SIGNAL_TERM, self._rules.grace if fact.grace is None else fact.grace)
        if fact.grace is not None:  # the run may have been ending already, with more time
            self._order_about_processes(orders.KillBy(fact.grace))

    def _node_stopped(self, fact: facts.NodeStopped, now: float) -> None:
        """End the ranks here at once; the client, or the agents of a detached run, end those on other hosts."""
        if not (self._is_signalled or self.is_over):
            self._is_stopped = True
            self._order(orders.ReportProgramStopped(fact.rank, fact.code, fact.why))
            self._signal(SIGNAL_TERM, self._rules.grace, "program", {"code": fact.code, "reason": fact.why})

    def _detach_asked(self, fact: facts.DetachAsked, now: float) -> None:
        if self._unattended.has_rules and self._has_ranks and not (self.is_detached or self.is_over):
            self._order(orders.Detach())

    def _detached(self, fact: facts.Detached, now: float) -> None:
        self._lease.detach(is_at_start=self._is_to_detach)
        self._order(orders.ConfirmDetached())

    def _detach_failed(self, fact: facts.DetachFailed, now: float) -> None:
        self._order(orders.ReleaseOutput())
        self._order(orders.StayAttached(fact.reason))

    def _signal(self, number: int, grace: float, cause: str, more: dict[str, object]) -> None:
        self._announce_end(cause, number, more)
        self._is_signalled = True
        self._order(orders.ReleaseOutput())
        # By another client, or by this one after a node's stop: the ranks get each signal once.
        is_repeated = (self.is_detached or self._is_stopped) and number in self._sent
        self._sent.add(number)
        self._notify(cause)
        self._order_about_processes(orders.KillBy(grace) if is_repeated else orders.SendSignal(number, grace))

    def _notify(self, cause: str) -> None:
        if self._rules.has_nodes:
            self._order_about_processes(orders.NotifyNodes(cause))

    def _announce_end(self, cause: str, number: int, more: dict[str, object]) -> None:
        if self.is_detached:
            self._orders += self._unattended.announce_end(cause, number, more)

    # ---- ranks and other hosts

    def _ranks_starting(self, fact: facts.RanksStarting, now: float) -> None:
        rules, self._is_to_detach = self._rules, fact.is_to_detach
        timeout_at = now + rules.timeout if rules.timeout else NEVER
        self._unattended.start(
            UnattendedRules(fact.count, drain=rules.drain, timeout_at=timeout_at, keep_going=rules.keep_going)
        )

    def _rank_started(self, fact: facts.RankStarted, now: float) -> None:
        self._has_ranks = True

    def _rank_ended(self, fact: facts.RankEnded, now: float) -> None:
        self._orders += self._unattended.rank_ended(fact.is_failure, now)

    def _printed(self, fact: facts.Printed, now: float) -> None:
        self._unattended.printed(now)

    def _peers_ready(self, fact: facts.PeersReady, now: float) -> None:
        self._orders += self._unattended.meet(fact.node)

    def _peer_news(self, fact: facts.PeerNews, now: float) -> None:
        if self._unattended.take(fact, now):
            more: dict[str, object] = {"code": fact.code, "reason": fact.reason} if fact.cause == "program" else {}
            self._signal(fact.signal or SIGNAL_TERM, self._rules.grace, fact.cause, more)

    # ---- this host

    def _lock_taken(self, fact: facts.LockTaken, now: float) -> None:
        self._owns_lock = True

    def _lock_released(self, fact: facts.LockReleased, now: float) -> None:
        self._owns_lock = False

    def _was_terminated(self, fact: facts.Terminated, now: float) -> None:
        self._terminated = fact

    def _failed(self, fact: facts.Failed, now: float) -> None:
        self._fail(fact.step, fact.message, fact.hint)

    def _fail(self, step: str, message: str, hint: str = "", killed_by: int | None = None) -> None:
        """Report the first failure only; nothing new begins after it."""
        if not self._has_failed:
            self._has_failed = True
            self._order(orders.ReportFailure(step, message, hint, killed_by))

    # ---- the end

    def _finish(self, number: int, grace: float) -> None:
        """End everything that is left of the run, and leave."""
        self._orders.append(orders.ReleaseOutput())
        self._notify("lost" if self._has_failed else "")
        self._orders += self._leaving.finish(number, grace, self._is_signalled)

    def _setup_ended(self, fact: facts.SetupEnded, now: float) -> None:
        self._leaving.is_set_up = True

    def _all_gone(self, fact: facts.AllGone, now: float) -> None:
        self._orders += self._leaving.all_gone(fact)

    def _cleaned_up(self, fact: facts.CleanedUp, now: float) -> None:
        self._orders += self._leaving.cleaned_up(fact.left)

    def _clean_up_failed(self, fact: facts.CleanUpFailed, now: float) -> None:
        self._orders += self._leaving.clean_up_failed(fact.reason)

    def _relayed(self, fact: facts.Relayed, now: float) -> None:
        last = self._leaving.relayed()
        if last is not None:
            self._orders += self._unattended.report_done()
            is_reported = not self._lease.has_left or self.is_kept
            self._order(orders.Leave(last.left, stays=last.stays, is_reported=is_reported))

    def _order_about_processes(self, order: Order) -> None:
        if not self._leaving.is_past_signals:
            self._order(order)

    def _order(self, order: Order) -> None:
        self._orders.append(order)


# Each handler takes the decisions, a fact of the class under which it stands, and the time.
HANDLERS: dict[type[Fact], Callable[..., None]] = {
    facts.ClientHeard: lambda self, fact, now: self._lease.receive(now),
    facts.Printed: Decisions._printed,
    facts.ClientLost: Decisions._client_lost,
    facts.ClientBack: Decisions._client_back,
    facts.ClientLeft: Decisions._client_left,
    facts.ClientOver: Decisions._client_over,
    facts.ClientRefused: Decisions._client_refused,
    facts.SignalAsked: Decisions._signal_asked,
    facts.KillAsked: Decisions._kill_asked,
    facts.FinishAsked: lambda self, fact, now: self._finish(fact.signal, fact.grace),
    facts.StopAsked: Decisions._stop_asked,
    facts.NodeStopped: Decisions._node_stopped,
    facts.DetachAsked: Decisions._detach_asked,
    facts.Detached: Decisions._detached,
    facts.DetachFailed: Decisions._detach_failed,
    facts.JournalKept: Decisions._journal_kept,
    facts.RanksStarting: Decisions._ranks_starting,
    facts.RankStarted: Decisions._rank_started,
    facts.RankEnded: Decisions._rank_ended,
    facts.SetupEnded: Decisions._setup_ended,
    facts.PeersReady: Decisions._peers_ready,
    facts.PeersMet: lambda self, fact, now: self._lease.settle(),
    facts.PeerNews: Decisions._peer_news,
    facts.LockTaken: Decisions._lock_taken,
    facts.LockReleased: Decisions._lock_released,
    facts.Terminated: Decisions._was_terminated,
    facts.Failed: Decisions._failed,
    facts.AllGone: Decisions._all_gone,
    facts.CleanedUp: Decisions._cleaned_up,
    facts.CleanUpFailed: Decisions._clean_up_failed,
    facts.Relayed: Decisions._relayed,
}
