"""The supervisor: hands each event to the part that decides about it, and returns the orders."""

from __future__ import annotations

import signal

from mesh.core.cluster import Placement
from mesh.core.events import (
    CONNECTING,
    Answered,
    Busy,
    Cleared,
    Connected,
    Detached,
    Ended,
    Event,
    Exited,
    Gone,
    HostEvent,
    HostNotice,
    Interrupted,
    Introduced,
    Locked,
    Lost,
    Output,
    PrepareFailed,
    PrerunDecided,
    Ready,
    Started,
    StaysAttached,
    StdoutClosed,
    Stopped,
    Synced,
    Tick,
    WorkspaceFailed,
)
from mesh.core.interfaces import CLIENT_RETURN_S
from mesh.core.module import NO_PREPARATION, Applied, Preparation
from mesh.core.nodes import Adopted, Kept, MoveAsked, ProgramStopped, RankReady, Released, Restarted, Restarting
from mesh.core.outcome import (
    EXIT_BUSY,
    EXIT_LOST,
    EXIT_OUTPUT_CLOSED,
    EXIT_PREPARE,
    EXIT_TIMEOUT,
    Cause,
    Outcome,
)
from mesh.core.run import Kind, RunSpec
from mesh.engine.orders import Order, Say, Tell
from mesh.engine.supervisor.clearing import Clearing
from mesh.engine.supervisor.ending import ANSWER_LIMIT_S, Ending, Stage
from mesh.engine.supervisor.hang import HangWatch
from mesh.engine.supervisor.leave import Leave
from mesh.engine.supervisor.lock import Locks
from mesh.engine.supervisor.modules import Rounds
from mesh.engine.supervisor.moving import Moves
from mesh.engine.supervisor.naming import alike
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.program import ProgramWatch
from mesh.engine.supervisor.skips import Skips
from mesh.engine.supervisor.start import Steps
from mesh.engine.supervisor.state import State


class Supervisor:
    """Decides what a run does next: no thread, socket or clock. Time comes with each Tick."""

    ending_type = Ending  # a subclass may leave the end to the hosts

    def __init__(
        self,
        spec: RunSpec,
        placement: Placement,
        preparation: Preparation = NO_PREPARATION,
        return_s: float = CLIENT_RETURN_S,
    ) -> None:
        """return_s: seconds that an agent waits for a client whose connection has ended"""
        self._spec = spec
        self._state = State(spec, placement)
        self._clearing = Clearing(self._state)
        self._leave = Leave(self._state)
        self._ending = self.ending_type(self._state, self._leave, self._clearing)
        self._locks = Locks(self._state)
        self._steps = Steps(self._state, self._ending, Rounds(preparation, placement))
        self._skips = Skips(spec.prerun, placement)
        self._hang_watch = HangWatch(self._state)
        self._program = ProgramWatch(self._state)
        self._moves = Moves(self._state, self._program, return_s)

    @property
    def done(self) -> bool:
        """True once every agent has left, or is not waited for."""
        is_over = self._ending.stage is Stage.LEAVING or self._state.phases.have_all(Phase.OVER)
        return self._leave.is_over or is_over

    def locks_at_once(self, node: int) -> bool:
        """Return True if a host takes its lock without an order: the first host, or where no run waits for another."""
        return node == 0 or not self._spec.lock

    @property
    def prepares_at_once(self) -> bool:
        """True if hosts prepare themselves without an order."""
        return self._steps.prepares_at_once

    def handle(self, event: Event) -> list[Order]:
        """Take note of an event; return what is to be done now, in this order."""
        match event:
            case Output():
                self._ending.last_output = self._state.clock.monotonic
                self._hang_watch.note()
            case Tick():
                self._state.clock.set(event)
                return self._look_at_the_clock()
            case WorkspaceFailed(time=time, message=message, hint=hint):
                failure = PrepareFailed(time=time, node=0, step="workspace", message=message, hint=hint)
                return self._fail(failure, Cause.PREPARE)
            case Interrupted(signal=number):
                return self._ending.interrupt(number)
            case Stopped(time=time):
                self._ending.signal = self._ending.signal or signal.SIGTERM
                orders = self._ending.end(Cause.SIGNAL)
                self._state.ranks.order_ends(time)  # the ranks may have ended by now
                return orders
            case StdoutClosed():
                return self._ending.end(Cause.OUTPUT_CLOSED)
            case Connected() | Locked() | Busy() | Synced() | Applied() | PrerunDecided() | Ready() | PrepareFailed():
                return self._before_start(event)
            case HostEvent():
                return self._after_start(event)
        return []

    def _before_start(self, event: HostEvent) -> list[Order]:
        match event:
            case Connected():
                return [*self._steps.connected(event), *self._locks.order()]
            case Locked(node=node) if self._locks.is_backing_off:
                return [*self._locks.release(node), *self._locks.name_others(event)]
            case Locked():
                return [*self._steps.locked(event), *self._locks.order(), *self._locks.name_others(event)]
            case Busy():
                if self._locks.may_wait(event):
                    return self._locks.wait(event)
                return self._fail(self._locks.refuse(event), Cause.BUSY)
            case Synced(node=node):
                return self._steps.move(node, Phase.SYNCED)
            case Applied():
                return self._steps.applied(event)
            case PrerunDecided():
                return self._skips.take(event)
            case Ready():
                return self._steps.ready(event)
            case PrepareFailed(time=time, node=node, message=reason, killed_by=by):
                self._moves.shun(node)
                if self._state.ranks.started and event.step != "start":  # the agent itself was ordered to end
                    return self._lose(Lost(time=time, node=node, reason=reason, killed_by=by), Phase.RUNNING)
                return self._fail(event, Cause.PREPARE)
        return []

    def _after_start(self, event: HostEvent) -> list[Order]:
        match event:
            case HostNotice(seconds=seconds):
                self._state.clock.extend("finish", seconds + ANSWER_LIMIT_S)
            case Started(rank=rank):
                self._hang_watch.note()
                return self._leave.have_started([rank])
            case Detached():
                return self._leave.detached(event)
            case StaysAttached(node=node):
                return self._stay(node)
            case Introduced():
                return self._leave.introduced(event)
            case RankReady() | Restarting():
                return self._program.take(event)
            case MoveAsked() | Released() | Kept() | Adopted() | Restarted():
                return [*self._moves.take(event), *self._ending.settle()]
            case ProgramStopped(time=time, code=code):
                self._ending.code = code if self._state.cause is None else self._ending.code
                stopped = self._ending.end(Cause.PROGRAM)
                self._state.ranks.order_ends(time)
                return stopped
            case Answered(node=node):
                self._ending.answered(node)
            case Ended():
                return self._ending.suspect(event) if self._state.ranks.announce(event) else []
            case Cleared(node=node):
                self._clearing.clear(node)
            case Exited():
                return self._exit(event)
            case Lost(node=node):
                phase, self._state.phases[node] = self._state.phases[node], Phase.OVER
                if (moved := self._replace(event, phase)) is not None:
                    return moved
                return [*self._program.take(event), *self._moves.lose(event), *self._lose(event, phase)]
            case Gone():
                return self._part(event)
        return []

    def outcome(self, ended: float) -> Outcome:
        """Return how it all ended; ended is in seconds since the epoch. Valid once ``done``."""
        if self._leave.is_over:
            return self._left(ended, Cause.DETACHED, 0)
        state, ranks, skipped = self._state, self._state.ranks, self._steps.skipped
        first = ranks.first()
        cause = state.cause
        if cause is None:
            cause = Cause.COMPLETED if first is None else Cause.RANK
        if skipped and ranks.started and cause in (Cause.COMPLETED, Cause.RANK, Cause.LOST):
            cause = Cause.LOST  # that came first
        elif cause in (Cause.RANK, Cause.LOST):
            cause = Cause.LOST if isinstance(first, Lost) else Cause.RANK
        else:
            first = None
        failures = [*state.failures, *skipped.values(), *self._steps.no_command.values()]
        waited_for = [node for node in range(len(state.phases)) if state.phases[node] is not Phase.OVER]
        left_alone = [f"{state.name(node)}: not waited for; its agent ends the run there" for node in waited_for]
        return Outcome(
            run=self._spec.run,
            exit_code=self._exit_code(cause, first),
            cause=cause,
            started=ranks.started,
            ended=ended,
            ending_since=self._ending.since,
            unclean=tuple(sorted(self._clearing.unclean() | set(waited_for))),
            first=first,
            alike=alike(first, ranks.failed()) if isinstance(first, Exited) else (),
            exits=tuple(ranks.exits[rank] for rank in sorted(ranks.exits)),
            stopped=tuple(sorted(ranks.stopped)),
            lost=tuple(sorted(ranks.lost, key=lambda lost: lost.node)),
            failures=tuple(sorted(failures, key=lambda failure: failure.node)),
            unverified=(*self._clearing.lines(), *left_alone),
            goes_on=self._leave.is_kept and not state.failures,
            moved=tuple(sorted(self._moves.moved.items())),
            signal=self._ending.signal,
        )

    def _left(self, ended: float, cause: Cause, exit_code: int) -> Outcome:
        """Return the outcome of a run that goes on without us."""
        ranks = self._state.ranks
        return Outcome(
            run=self._spec.run,
            exit_code=exit_code,
            cause=cause,
            started=ranks.started,
            ended=ended,
            exits=tuple(ranks.exits[rank] for rank in sorted(ranks.exits)),
            goes_on=True,
        )

    def _exit_code(self, cause: Cause, first: Exited | Lost | None) -> int:
        if isinstance(first, Exited) and cause is Cause.RANK:
            return first.status
        no_command = self._steps.no_command
        if cause is Cause.RANK and no_command:  # the first host decides, as all reported it before the start
            return no_command[min(no_command)].status
        return {
            Cause.COMPLETED: 0,
            Cause.LOST: EXIT_PREPARE if self._spec.kind is Kind.SETUP else EXIT_LOST,
            Cause.BUSY: EXIT_BUSY,
            Cause.TIMEOUT: EXIT_TIMEOUT,
            Cause.SIGNAL: 128 + self._ending.signal,
            Cause.OUTPUT_CLOSED: EXIT_OUTPUT_CLOSED,
            Cause.PROGRAM: self._ending.code,
        }.get(cause, EXIT_PREPARE)

    def _stay(self, node: int) -> list[Order]:
        """Stay with a run that a host cannot keep; a failure from the time when we were leaving ends it."""
        if not self._leave.stay(node):
            return []
        suspects = self._state.ranks.suspects
        if suspects:
            self._ending.blame(min(suspects.values(), key=lambda suspect: suspect.time))
        again = f"`mesh detach {self._spec.run}` tries again"
        text = (
            f"the run stays with this client; {again}, and until then hosts that can keep it keep what is printed there"
        )
        return [Say(text=text), *self._ending.settle()]

    def _fail(self, failure: PrepareFailed, cause: Cause) -> list[Order]:
        """End or go on without a host that cannot take part. The others have time to report their own failures."""
        state, node = self._state, failure.node
        if self._steps.may_skip(failure):
            if self._steps.skip(failure):
                return [*self._locks.order(), *self._steps.advance()]
            return self._ending.settle()
        state.failures.append(failure)
        self._locks.fail(failure)
        if failure.step in CONNECTING:
            state.phases[node] = Phase.OVER
        if failure.step == "start":
            state.ranks.drop(node)
        if state.cause is None:
            state.cause = cause
            state.clock.restart("drain", self._spec.rules.drain)
        return [*self._locks.order(), *self._ending.settle()]

    def _exit(self, event: Exited) -> list[Order]:
        is_failure = self._state.ranks.end(event)
        told = [*self._moves.take(event), *self._program.take(event)]
        if self._program.is_over and not is_failure:
            told += self._ending.end(Cause.COMPLETED)
        if event.is_last:
            self._clearing.clear(event.node)
            self._clearing.idle.add(event.node)
        if is_failure:
            return [*told, *self._ending.suspect(event), *self._ending.settle()]
        done = f"[{self._state.name(event.node)}] setup completed"
        is_setup = self._spec.kind is Kind.SETUP and not event.status
        return [*told, *([Say(text=done)] if is_setup else ()), *self._ending.settle()]

    def _lose(self, event: Lost, phase: Phase) -> list[Order]:
        """Take the loss of a host, or of its agent; phase: the host's last one."""
        node, ranks = event.node, self._state.ranks
        if phase is not Phase.FINISHING and not ranks.started:
            if event.is_clear or phase is Phase.APPLYING or (phase is Phase.PREPARING and self._spec.prerun):
                self._clearing.lose(event)
            step = CONNECTING[0] if self._spec.rules.skip_unreachable else phase.name.lower()
            by = event.killed_by
            failed = PrepareFailed(time=event.time, node=node, step=step, message=event.reason, killed_by=by)
            return self._fail(failed, Cause.PREPARE)
        if phase is Phase.FINISHING or ranks.have_ended(node) or event.time > ranks.ordered_ends[node]:
            self._clearing.lose_at_end(event)
            ranks.drop(node)
            return self._ending.settle()
        self._clearing.lose(event)
        ranks.lose(event)
        suspected = self._ending.suspect(event)
        started = self._leave.have_started(self._state.placement.ranks(node))
        return [*suspected, *started, *self._leave.introduce(), *self._ending.settle()]

    def _part(self, event: Gone) -> list[Order]:
        """Take the leave of an agent. One that leaves before its ranks have ended, and unasked, is lost."""
        node, state = event.node, self._state
        self._clearing.leave(event)
        phase, state.phases[node] = state.phases[node], Phase.OVER
        said = [Say(text=f"[{state.name(node)}] stays in the background: {line}") for line in event.stays]
        if state.cause is None and phase not in (Phase.FINISHING, Phase.OVER) and not state.ranks.have_ended(node):
            reason = "its agent left before its ranks had ended"
            lost = Lost(time=event.time, node=node, reason=reason, is_clear=not event.left)
            return [*said, Tell(event=lost), *self._lose(lost, phase)]
        return [*said, *self._leave.introduce()]

    def _replace(self, event: Lost, phase: Phase) -> list[Order] | None:
        """Move the ranks of a lost host to a spare one; return None if its loss counts."""
        if phase is not Phase.RUNNING or event.time > self._state.ranks.ordered_ends[event.node]:
            return None
        moved = self._moves.replace(event)
        if moved is not None:
            self._clearing.lose(event)
        return moved

    def _look_at_the_clock(self) -> list[Order]:
        clock = self._state.clock
        orders = self._locks.look_at_the_clock()
        if moved := self._moves.look_at_the_clock():
            orders += [*moved, *self._ending.settle()]
        for failure in [*self._steps.overdue(), *self._program.overdue()]:
            orders += [Tell(event=failure), *self._fail(failure, Cause.PREPARE)]
        orders += self._ending.look_at_the_clock()
        orders += self._leave.look_at_the_clock()
        orders += self._hang_watch.look_at_the_clock()
        orders += self._program.changes()
        if "drain" in clock and self._may_stop():
            orders += self._ending.stop()
        if clock.passed("stop"):
            orders += self._ending.finish()
        if clock.passed("finish"):
            self._clearing.give_up()
        return orders

    def _may_stop(self) -> bool:
        """Return True if, after the first failure, the other ranks had time for their last lines."""
        return self._ending.may_stop()
