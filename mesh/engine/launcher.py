"""Carries a run out: the loop that reads events, and the parts that it hands them to. The decider makes all decisions.

A thread per host blocks on its channel and posts events. The loop runs in the caller's thread, owns all state and
blocks on nothing else. Further threads feed the sinks, send the beats, open the channels and pack the workspace.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from msgspec.structs import replace

from mesh.core.errors import MeshError, OutputClosed
from mesh.core.events import (
    AsksPassword,
    Chosen,
    Event,
    Finished,
    Interrupted,
    Lacks,
    Lost,
    Notice,
    OtherTree,
    PrepareFailed,
    Serving,
    StdoutClosed,
    Synced,
    Tick,
    Unfetched,
    WantsPassword,
    WorkspaceFailed,
)
from mesh.core.interfaces import Sink
from mesh.core.nodes import ProgramStopped
from mesh.core.outcome import Outcome
from mesh.core.progress import Progress, Sending
from mesh.engine import orders
from mesh.engine.channels import Channels
from mesh.engine.courier import Courier, Luggage
from mesh.engine.dispatch import Dispatcher, Facts
from mesh.engine.inbox import Arrival, Inbox
from mesh.engine.masking import Masking
from mesh.engine.pace import Pace
from mesh.engine.run import Run
from mesh.engine.showing import Sinks
from mesh.engine.signals import noted_signals
from mesh.engine.stdin import StandardInput
from mesh.engine.threads import Threads
from mesh.engine.watchdog import Watchdog

TICK_S = 0.1  # between two looks at the clock and at signals when nothing else happens
SHORTEST_TICK_S = 0.01  # between two looks at the clock while much happens
PROGRESS_INTERVAL_S = 0.2  # between two Sending
JOIN_LIMIT_S = 5.0  # for the threads to end after their channels were closed


class Launcher:
    """Runs one run to its end, in any thread. Several may run in one process."""

    def __init__(self, run: Run, sinks: Sequence[Sink]) -> None:
        spec = run.spec
        self._run, self._spec, self._decider = run, spec, run.decider
        self._inbox = Inbox()
        self._threads = Threads(self._inbox.post_urgent)
        self._over = threading.Event()
        self._sinks = Sinks(sinks, self._sink_failed)
        self._stdin = StandardInput(run.local.stdin, run.local.terminal, lambda: self.interrupt(signal.SIGINT))
        self._channels = Channels(run, self._inbox, self._threads, self._over, self._stdin.taken)
        self._watchdog = Watchdog(run, self._channels, self._inbox, self._threads, self._over)
        self._luggage: Future[Luggage] = Future()
        facts = Facts(run)
        self._courier = Courier(
            spec,
            len(run.placement.hosts),
            self._luggage,
            facts.address_of,
            self._threads.start,
            self._workspace_failed,
        )
        self._facts = facts
        self._masking = Masking(run.local.secrets, run.placement, run.local.before)
        self._dispatcher = Dispatcher(run, facts, self._channels.sessions, self._courier, self._threads)
        self.is_shown = True  # False after a run whose reader stood still when it was interrupted
        self._pace = Pace(run.placement)
        self._ticked_at = 0.0  # monotonic: the last Tick
        self._progress_at = 0.0  # monotonic: the next Sending

    def run(self, conclude: Callable[[Outcome], object] = lambda outcome: None) -> Outcome:
        """Run until every process of the run is gone, or cannot be reached.

        In the main thread, signals that ask for the end are events of the run meanwhile.
        conclude: called with what is returned; signals that come from then on are too late
        Raises whatever went wrong in mesh itself; the channels are closed then, and the agents end the run.
        """
        with noted_signals(self._inbox.interrupt):
            self._sinks.start()
            try:
                self._channels.open()
                self._watchdog.start()
                if self._spec.sync:
                    self._threads.start("mesh-pack", self._list_workspace)
                    self._courier.start()
                self._drive()
                outcome = self._run.local.secrets.outcome(self._decider.outcome(time.time()))
                if outcome.goes_on:
                    self._masking.forget()
                code, cause = outcome.exit_code, outcome.cause.value
                self._show(Finished(time=outcome.ended, exit_code=code, cause=cause, run=self._spec.run))
            finally:
                self._hang_up()
                self.is_shown = self._sinks.finish(lambda: bool(self._inbox.late_signal()))
            self._inbox.raise_errors()
            outcome = replace(outcome, signal=outcome.signal or self._inbox.late_signal())
            conclude(outcome)
        return replace(outcome, signal=outcome.signal or self._inbox.late_signal())

    def interrupt(self, number: int) -> None:
        """End the run as a signal of the user does. From any thread, also before ``run``; after it without effect."""
        self._inbox.interrupt(Interrupted(time=time.time(), signal=number))

    def notice(self, text: str) -> None:
        """Show a line of ours. From any thread, during ``run``."""
        self._inbox.post_urgent(Notice(time=time.time(), text=text))

    # ---- the thread of ``run``

    def _drive(self) -> None:
        """Run until every agent has left; the only loop that touches state."""
        while not self._decider.done:
            self._pass_time()
            for output in self._masking.due():
                self._sinks.show(output, self._pass_time)
            passed = time.monotonic()
            with contextlib.suppress(queue.Empty):
                arrival = self._inbox.next(TICK_S)
                while arrival is not None:
                    if self._inbox.has_urgent:  # it may explain what has arrived
                        self._pass_time()
                    self._handle(arrival)
                    if time.monotonic() - passed > TICK_S:
                        break
                    arrival = self._inbox.next()

    def _pass_time(self) -> bool:
        """Look at the clock and at urgent items; return True once every agent has left."""
        now = time.monotonic()
        if now >= self._ticked_at + SHORTEST_TICK_S:
            self._ticked_at = now
            self._decide(Tick(time=time.time(), monotonic=now))
        while (event := self._inbox.next_urgent()) is not None:
            self._decide(event)
            if isinstance(event, Notice | ProgramStopped):
                self._show(event)
        for behind in self._pace.look(now, time.time()):
            self._show(behind)
        if time.monotonic() >= self._progress_at:
            self._progress_at = time.monotonic() + PROGRESS_INTERVAL_S
            if sending := self._courier.sending():
                self._sinks.show_progress(Sending(time=time.time(), sent=sending[0], of=sending[1]))
        return self._decider.done

    def _handle(self, arrival: Arrival) -> None:
        event = arrival.event
        if isinstance(event, Progress):
            self._sinks.show_progress(event)
            return
        self._facts.note(event)
        if isinstance(event, Lacks | OtherTree | Serving | Synced | Unfetched):
            if isinstance(event, Synced) and not self._courier.accepts(event):
                return  # a file has changed meanwhile: it is synced once more
            self._courier.handle(event)
            event = self._checked(event)
        elif isinstance(event, WantsPassword):  # the user is asked now, and the host gets it when its command runs
            self._channels.expect_password(event)
        elif isinstance(event, AsksPassword):
            self._channels.give_password(event)
        if isinstance(event, Lost):
            self._channels.relay.lose(event.node)
        self._pace.note(event)
        self._decide(self._masking.event(event))
        self._show(event)
        if arrival.session is not None:
            arrival.session.acknowledge(arrival.place)

    def _checked(self, event: Event) -> Event:
        """Replace a Synced with another tree than ours by a failure: no rank starts on such a tree."""
        if isinstance(event, Synced) and event.tree != self._courier.tree:
            message = "what is there now is not what was sent"
            return PrepareFailed(time=event.time, node=event.node, step="sync", message=message)
        return event

    def _decide(self, event: Event) -> None:
        """Have the decider handle an event, and carry out its orders: those to hosts first, as showing takes time."""
        ordered = self._decider.handle(event)
        if isinstance(event, Interrupted):
            # While the user is asked, readers stand still on purpose and miss nothing.
            self._sinks.is_interrupted |= not any(isinstance(order, orders.AskUser) for order in ordered)
        elif isinstance(event, Chosen):
            self._sinks.is_interrupted |= event.answer != "go on"
        for order in ordered:
            if isinstance(order, orders.Take):
                self._channels.relay.move(order.rank, order.node)
            if isinstance(order, orders.HostOrder):
                self._dispatcher.carry_out(order)
            elif isinstance(order, orders.AskUser):
                self._threads.start("mesh-ask", self._ask_user)
        started = [order.node for order in ordered if isinstance(order, orders.Start)]
        if self._spec.rules.stdin != "none" and started:
            self._feed_stdin(started)
        for order in ordered:
            if isinstance(order, orders.Say):
                self._show(Notice(time=time.time(), text=order.text))
            elif isinstance(order, orders.Tell):
                self._show(order.event)

    def _feed_stdin(self, started: Sequence[int]) -> None:
        """Begin to send standard input, once the last host has its order to start: no earlier byte has a reader.

        started: the hosts whose ranks were started; a host that was skipped reads nothing
        """
        sessions = self._channels.sessions
        readers = {rank.rank: sessions[node] for node in started for rank in self._dispatcher.ranks(node) if rank.stdin}
        is_terminal = self._spec.rules.pty
        self._threads.start("mesh-stdin", lambda: self._stdin.feed(readers, terminal=is_terminal))

    def _show(self, event: Event) -> None:
        """Hand an event to every sink. Behind a reader that is slow or paused, time and signals go on.

        Notices that come of it are shown from within; there are only as many as a user can cause.
        """
        for shown in self._masking.shown(event):
            self._sinks.show(shown, self._pass_time)

    def _hang_up(self) -> None:
        """Begin nothing more; close every channel and end every thread but those of the sinks."""
        self._over.set()
        self._stdin.close()
        self._courier.stop()
        self._channels.close()
        self._threads.join(JOIN_LIMIT_S)

    # ---- the other threads

    def _sink_failed(self, error: Exception) -> None:
        self._inbox.post_urgent(StdoutClosed(time=time.time()) if isinstance(error, OutputClosed) else error)

    def _ask_user(self) -> None:
        answer = self._run.local.choose(self._over.is_set)
        self._inbox.post_urgent(Chosen(time=time.time(), answer=answer))

    def _list_workspace(self) -> None:
        try:
            self._luggage.set_result(self._run.local.luggage(self._post_of_workspace))
        except (MeshError, OSError) as error:
            self._workspace_failed(error)
            self._luggage.set_exception(error)
        except BaseException as error:
            self._luggage.set_exception(error)
            raise

    def _post_of_workspace(self, event: Event) -> None:
        """Post an event of listing, hashing or packing. Raises MeshError once the run is over, to end that work."""
        if self._over.is_set():
            raise MeshError("the run is over")
        self._inbox.post(event)

    def _workspace_failed(self, error: Exception) -> None:
        hint = error.hint if isinstance(error, MeshError) else ""
        self._inbox.post(WorkspaceFailed(time=time.time(), message=str(error), hint=hint))
