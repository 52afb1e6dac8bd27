"""The decisions about a detached run while a client is attached: a Supervisor that begins in the middle."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from msgspec.structs import replace

from mesh.core.cluster import Placement
from mesh.core.events import (
    CONNECTING,
    CaughtUp,
    Chosen,
    Connected,
    EndOrdered,
    Event,
    Gone,
    Interrupted,
    Lost,
    PrepareFailed,
    Started,
    StdoutClosed,
    Stopped,
)
from mesh.core.nodes import Arrived
from mesh.core.outcome import EXIT_OUTPUT_CLOSED, EXIT_PREPARE, Cause, Outcome
from mesh.core.run import RunSpec
from mesh.engine.orders import AskUser, Order, Say, Signal
from mesh.engine.supervisor.ending import Stage
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.supervisor import Supervisor

UNKNOWN_START_S = 1e-9  # the start of the ranks, before their Started comes


class Attachment(Supervisor):
    """Watches a detached run, and ends all ranks when one fails or a host has provably lost the run.

    A client that leaves or dies changes nothing for the ranks. A host that the client cannot reach may be well: it ends
    nothing for that, but does not learn the run's end either. Each host sends its earlier events in their order, but
    those of different hosts come in no order. So nothing is ended before all hosts have sent theirs.
    """

    def __init__(self, spec: RunSpec, placement: Placement, *, can_ask: bool, arrivals: Iterable[Arrived] = ()) -> None:
        """can_ask: a user can answer what Ctrl-C shall do; arrivals: the moves of ranks so far, in order"""
        super().__init__(spec, placement)
        for one in arrivals:
            self._state.move(one.rank, one.node)
            self._moves.moved[one.rank] = one.node
        self._ranks = self._state.ranks
        self._program.is_active = False
        self._can_ask, self._is_asking = can_ask, False
        self._leaves: tuple[Cause, int] | None = None  # cause and exit status
        self._unreached: set[int] = set()  # hosts in an unknown state
        self._without_files: set[int] = set()  # hosts without any files of the run
        self._refused: PrepareFailed | None = None  # there is no detached run to attach to
        self._ends: list[EndOrdered] = []
        self._ranks.started = UNKNOWN_START_S
        self._waiting = set(range(len(placement.hosts)))  # hosts that have not sent all earlier events

    @property
    def done(self) -> bool:
        return self._leaves is not None or self._refused is not None or super().done

    def handle(self, event: Event) -> list[Order]:
        match event:
            case Connected(node=node):
                return self._attached(node)
            case CaughtUp(node=node):
                return self._caught_up(node)
            case Gone(node=node):
                return [*super().handle(event), *self._caught_up(node)]
            case Started(time=time):
                started = self._ranks.started
                self._ranks.started = time if started == UNKNOWN_START_S else min(started, time)
                return []
            case EndOrdered():
                return self._end_ordered(event)
            case Stopped():
                return []  # EndOrdered reports it, even afterwards
            case PrepareFailed(step="attach"):
                self._refused = self._refused or event
                return []
            case PrepareFailed(step="journal"):
                return self._lost_files(event)
            case PrepareFailed(node=node, message=message) if event.step in CONNECTING:
                return self._unreachable(Lost(time=event.time, node=node, reason=message))
            case Lost(is_known=False, is_clear=False):
                return self._unreachable(event)
            case Lost(node=node):
                if not self._ranks.have_ended(node):
                    # Another host may have reported it already, with the time at which its agent noticed.
                    self._forget_loss(node)
                return [*super().handle(event), *self._caught_up(node)]
            case Interrupted(signal=number):
                return self._interrupted(number)
            case Chosen(answer=answer):
                return self._chosen(answer)
            case StdoutClosed():
                self._leaves = Cause.OUTPUT_CLOSED, EXIT_OUTPUT_CLOSED
                return []
        return self._with_reason(super().handle(event))

    def outcome(self, ended: float) -> Outcome:
        self._ranks.started = 0.0 if self._ranks.started == UNKNOWN_START_S else self._ranks.started
        if self._refused is not None:
            outcome = self._left(ended, Cause.PREPARE, EXIT_PREPARE)
            return replace(outcome, failures=(self._refused,))
        if self._leaves is not None:
            cause, code = self._leaves
            return replace(self._left(ended, cause, code), signal=self._ending.signal)
        why = min(self._ends, key=lambda end: end.time, default=None)
        first = min(self._ranks.suspects.values(), key=lambda suspect: suspect.time, default=None)
        ends = (Cause.TIMEOUT.value, Cause.SIGNAL.value, Cause.PROGRAM.value)
        if why and why.cause in ends and (not first or why.time <= first.time):
            self._state.cause, self._ending.signal, self._ending.code = Cause(why.cause), why.signal, why.code
            if why.cause == Cause.PROGRAM.value:
                self._ending.signal = 0
        last = max((exited.time for exited in self._ranks.exits.values()), default=ended)
        return replace(super().outcome(last), goes_on=bool(self._unreached))

    # ---- events of hosts

    def _attached(self, node: int) -> list[Order]:
        if self._state.phases[node] is not Phase.CONNECTING:
            return []
        self._state.phases[node] = Phase.RUNNING
        if self._ending.stage is Stage.NOT:
            return []
        # It was not connected when the others were ordered to end.
        return self._with_reason([Signal(node=node, number=signal.SIGTERM, grace=self._ending.grace)])

    def _caught_up(self, node: int) -> list[Order]:
        """Note that a host has sent its earlier events; after the last one, complete an end that others have begun."""
        if node not in self._waiting:
            return []
        self._waiting.discard(node)
        return self._complete()

    def _complete(self) -> list[Order]:
        if self._waiting or not self._ends or not self._ranks.running:
            return []
        first = min(self._ends, key=lambda end: end.time)
        if first.cause == Cause.RANK.value:
            return []  # the end of the rank itself does that
        self._ending.code = first.code
        if first.cause != Cause.PROGRAM.value:
            self._ending.signal = self._ending.signal or first.signal
        return self._with_reason(self._ending.end(Cause(first.cause)))

    def _end_ordered(self, event: EndOrdered) -> list[Order]:
        self._ranks.ordered_ends[event.node] = min(self._ranks.ordered_ends[event.node], event.time)
        self._ends.append(event)
        known = {one.node for one in self._ranks.lost if one.node not in self._unreached}
        if event.cause == Cause.LOST.value and event.lost >= 0 and event.lost not in known:
            self._forget_loss(event.lost)  # our failure to reach it came later
            self._unreached.discard(event.lost)
            lost = Lost(time=event.time, node=event.lost, reason=event.reason, is_known=True)
            self._ranks.lost.append(lost)
            self._ranks.suspects.setdefault(("host", event.lost), lost)
        return self._complete()

    def _forget_loss(self, node: int) -> None:
        self._ranks.lost = [lost for lost in self._ranks.lost if lost.node != node]
        self._ranks.suspects.pop(("host", node), None)

    def _lost_files(self, event: PrepareFailed) -> list[Order]:
        """Note that a host has lost its files of the run; if all have, there is no such run."""
        self._without_files.add(event.node)
        is_spare = not self._state.placement.ranks(event.node)
        if len(self._without_files) == len(self._state.phases):
            self._refused = event
            return []
        if is_spare:
            self._state.phases[event.node] = Phase.OVER
            return [*self._ending.settle(), *self._caught_up(event.node)]
        lost = Lost(time=event.time, node=event.node, reason=event.message, is_known=True, is_clear=True)
        return [Say(text=f"host {self._state.name(event.node)} is lost: {event.message}"), *self.handle(lost)]

    def _unreachable(self, event: Lost) -> list[Order]:
        node = event.node
        if self._state.phases[node] is Phase.OVER:
            return []
        self._state.phases[node] = Phase.OVER
        if not self._ranks.have_ended(node) and all(lost.node != node for lost in self._ranks.lost):
            self._unreached.add(node)
            self._ranks.lost.append(event)
            self._ranks.suspects.setdefault(("host", node), event)
        self._ranks.drop(node)
        self._clearing.doubt(node, "cannot be reached: the run may go on there")
        said = [Say(text=f"{self._state.name(node)} cannot be reached: {event.reason}; the others go on")]
        return [*said, *self._ending.settle(), *self._caught_up(node)]

    def _may_stop(self) -> bool:
        return not self._waiting and super()._may_stop()

    # ---- the user

    def _interrupted(self, number: int) -> list[Order]:
        """Leave at a signal; Ctrl-C on a terminal asks first. Once the run is ending, signals end it faster."""
        if self._ending.stage is not Stage.NOT:
            return self._with_reason(self._ending.interrupt(number))
        if number == signal.SIGINT and self._can_ask and not self._is_asking:
            self._is_asking = True
            return [AskUser()]
        self._leaves = Cause.SIGNAL, 128 + number
        self._ending.signal = number
        return []

    def _chosen(self, answer: str) -> list[Order]:
        self._is_asking = False
        if answer == "leave":
            self._leaves = Cause.DETACHED, 0
        if answer != "stop":
            return []
        return self._with_reason(self._ending.interrupt(signal.SIGINT))

    def _with_reason(self, orders: list[Order]) -> list[Order]:
        """Add the reason to signals, for clients that attach later."""
        cause = self._state.cause or Cause.RANK
        hosts = (one for one in self._ranks.suspects.values() if isinstance(one, Lost))
        lost = next(hosts, None) if cause is Cause.LOST else None
        why = EndOrdered(
            time=self._state.clock.time,
            node=0,
            cause=cause.value,
            signal=self._ending.signal or signal.SIGTERM,
            lost=lost.node if lost else -1,
            reason=lost.reason if lost else "",
            code=self._ending.code,
        )
        return [replace(order, why=why) if isinstance(order, Signal) else order for order in orders]
