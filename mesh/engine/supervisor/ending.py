"""The end of a run: its cause, the signals, and how long anything is waited for."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from enum import IntEnum

from mesh.core.events import EndOrdered, Exited, Lost
from mesh.core.outcome import Cause
from mesh.core.ranks import told_ranks
from mesh.core.run import Kind
from mesh.engine.orders import Ask, Finish, Kill, Order, Say, Signal
from mesh.engine.supervisor.clearing import Clearing
from mesh.engine.supervisor.leave import Leave
from mesh.engine.supervisor.naming import NAMING_DELAY_S, alike, by_time
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State
from mesh.protocol.questions import AskStacks

ANSWER_LIMIT_S = 10.0  # beyond grace, for an agent's answer; 5 s after SIGKILL the agent names what is left
OUTPUT_PAUSE_S = 0.5  # without output after a failure: the other ranks have printed their last lines
STACKS_LIMIT_S = 7.0  # for the stacks of all hosts; an agent gives itself 5 s


class Stage(IntEnum):
    """How hard the run is being ended; each Ctrl-C goes one further."""

    NOT = 0
    STOPPING = 1  # signalled, grace is running
    KILLING = 2
    LEAVING = 3  # we go; the hosts finish by themselves


class Ending:
    """Decides what ends the run, signals all ranks, and has the agents clear their hosts and leave."""

    def __init__(self, state: State, leave: Leave, clearing: Clearing) -> None:
        self._state, self._leave, self._clearing = state, leave, clearing
        self.stage = Stage.NOT
        self.since = 0.0  # seconds since the epoch: when the ranks were ordered to end; 0.0: they were not
        self.signal = 0  # the first one that asked for the end; 0: none did
        self.code = 0  # exit status of a program that a node has ended
        self.grace = state.spec.rules.grace
        self.last_output = 0.0  # monotonic
        self._unnamed: list[int] = []  # failed ranks that the next line names
        self._asked: set[int] = set()  # hosts whose stacks are awaited before the run ends

    def suspect(self, event: Exited | Lost) -> list[Order]:
        """Take a failure that no order of ours explains. The first one ends the run, after a pause for the others."""
        spec, ranks = self._state.spec, self._state.ranks
        ranks.suspect(event)
        follows = False
        if self._leave.is_leaving and isinstance(event, Exited):
            follows = len(ranks.suspects) > 1
        elif not spec.rules.keep_going:
            follows = self._state.cause is not None
            self.blame(event)
        if isinstance(event, Lost):
            return []  # a loss has a line of its own
        if spec.kind is Kind.SETUP:
            text = f"[{self._state.name(event.node)}] setup failed in {event.during!r}: {event.told()}"
            return [] if follows else [Say(text=text)]
        if self._unnamed or not follows:
            self._unnamed.append(event.rank)
            self._state.clock.start("naming", NAMING_DELAY_S)
        return self._name_failures() if self._leave.is_leaving else []

    def blame(self, event: Exited | Lost) -> None:
        """Make a failure the cause of the end, unless there is one or the run is to go on."""
        if self._state.cause is None and not self._state.spec.rules.keep_going:
            self._state.cause = Cause.LOST if isinstance(event, Lost) else Cause.RANK
            self.last_output = self._state.clock.monotonic
            self._state.clock.restart("drain", self._state.spec.rules.drain)

    def interrupt(self, number: int) -> list[Order]:
        """End the run for a signal; harder with each one."""
        self.signal = self.signal or number
        if self.stage is Stage.NOT:
            return self.end(Cause.SIGNAL, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        if self.stage is not Stage.STOPPING:
            self.stage = Stage.LEAVING
            return []
        self.stage = Stage.KILLING
        self.grace = 0.0
        clock = self._state.clock
        for name in ("stop", "finish"):
            if name in clock:
                clock.restart(name, ANSWER_LIMIT_S)
        return [Say(text="killing"), *(Kill(node=node) for node in self._state.answering())]

    def end(self, cause: Cause, number: int = signal.SIGTERM) -> list[Order]:
        """End the run now, whatever it is doing; the first cause holds."""
        self._state.cause = self._state.cause or cause
        if self.stage is not Stage.NOT:
            return []
        return [*self.stop(number), *self.settle()]

    def stop(self, number: int = signal.SIGTERM) -> list[Order]:
        """Signal the ranks that run; where none has started, release what was prepared."""
        state, ranks = self._state, self._state.ranks
        self.stage = Stage.STOPPING
        state.clock.cancel("drain", "timeout")
        if not ranks.started:
            # Hosts that are still connecting have nothing to release; the launcher stops connecting.
            state.phases.put(state.phases.of(Phase.CONNECTING), Phase.OVER)
            return self.finish(number)
        ranks.order_ends(state.clock.time)
        self.since = state.clock.time
        state.clock.restart("stop", self.grace + ANSWER_LIMIT_S)
        nodes = [node for node in state.answering() if not ranks.have_ended(node)]
        orders: list[Order] = [
            Signal(node=node, number=number, grace=self.grace, why=self._why(number)) for node in nodes
        ]
        named = self._name_failures()
        if orders:
            count = ranks.unfinished(nodes)
            what = f"{count} {'setup' if state.spec.kind is Kind.SETUP else 'rank'}{'s' * (count != 1)}"
            text = f"stopping {what}: {signal.Signals(number).name}, {self.grace:g} s of grace, then SIGKILL"
            orders.insert(0, Say(text=text))
        return [*named, *orders]

    def _why(self, number: int) -> EndOrdered | None:
        """Return the cause of the end for the nodes of a program; None for a run without nodes."""
        state = self._state
        if not state.spec.is_program or state.cause is None:
            return None
        return EndOrdered(time=state.clock.time, node=0, cause=state.cause.value, signal=number, code=self.code)

    def settle(self) -> list[Order]:
        """Clear the hosts if all ranks have ended; close a run that will never start."""
        if self._state.ranks.started:
            if self._state.ranks.running:
                return []
            if not self._leave.is_leaving:
                return self.finish()
            if not self._leave.is_meeting:  # some host may keep what its ranks have printed
                self._state.clock.start("leaving", ANSWER_LIMIT_S)
        elif self._state.cause is not None and self._state.phases.have_all(Phase.OVER):
            self.stage = max(self.stage, Stage.STOPPING)
        return []

    def finish(self, number: int = signal.SIGTERM, nodes: Iterable[int] | None = None) -> list[Order]:
        """Have agents end what is left and leave; nodes: None for all hosts."""
        orders: list[Order] = []
        named = self._name_failures()
        phases = self._state.phases
        for node in self._state.answering() if nodes is None else nodes:
            if not Phase.CONNECTING < phases[node] < Phase.FINISHING:
                continue
            if node in self._clearing.idle:
                phases[node] = Phase.OVER
            else:
                phases[node] = Phase.FINISHING
                orders.append(Finish(node=node, number=number, grace=self.grace))
        if orders:
            self.stage = max(self.stage, Stage.STOPPING)
            self._state.clock.cancel("drain")
            self._state.clock.restart("finish", self.grace + ANSWER_LIMIT_S)
        return [*named, *orders]

    def answered(self, node: int) -> None:
        """Note that a host has sent its stacks; after the last one, the next tick ends the run."""
        self._asked.discard(node)
        if not self._asked and "stacks" in self._state.clock:
            self._state.clock.restart("stacks", 0.0)

    def may_stop(self) -> bool:
        """Return True if, after the first failure, the other ranks had time for their last lines."""
        state = self._state
        is_late = state.clock.is_late("drain")
        if not state.ranks.started:  # connecting has its own deadline, and each host that fails is to be named
            failed = {failure.node for failure in state.failures}
            at_work = (Phase.LOCKING, Phase.SYNCING, Phase.APPLYING, Phase.PREPARING)
            open_phases = (Phase.CONNECTING, *(() if is_late else at_work))
            return all(state.phases.seen_in(phase) <= failed for phase in open_phases)
        return is_late or state.clock.monotonic - self.last_output >= OUTPUT_PAUSE_S

    def look_at_the_clock(self) -> list[Order]:
        """Name failures, and end a run whose time is over."""
        state = self._state
        orders: list[Order] = []
        if state.clock.passed("naming"):
            orders += self._name_failures()
        if state.clock.passed("timeout"):
            orders += [Say(text=f"timed out after {state.spec.rules.timeout:g} s")]
            orders += self._take_stacks() if state.spec.stacks_on_timeout else self.end(Cause.TIMEOUT)
        if state.clock.passed("leaving"):
            orders += self.finish()
        if state.clock.passed("stacks"):
            orders += self.end(Cause.TIMEOUT)
        return orders

    def _name_failures(self) -> list[Order]:
        """Name the ranks that failed first; where the run goes on, all that have failed since the last time."""
        suspects = self._state.ranks.suspects
        failures = by_time(end for rank in self._unnamed if isinstance(end := suspects["rank", rank], Exited))
        self._unnamed = []
        self._state.clock.cancel("naming")
        said: list[Order] = []
        while failures:
            first = failures[0]
            ranks = alike(first, failures)
            failures = [one for one in failures if one.rank not in ranks and self._state.spec.rules.keep_going]
            if len(ranks) > 1:
                said.append(Say(text=f"{told_ranks(ranks)} failed alike: {first.told()}"))
            else:
                said.append(Say(text=f"rank {first.rank} on {self._state.name(first.node)}: {first.told()}"))
        return said

    def _take_stacks(self) -> list[Order]:
        """Ask for stacks before the end. A failure from now on is not its cause."""
        state = self._state
        state.cause = state.cause or Cause.TIMEOUT
        self._asked = {node for node in state.answering() if not state.ranks.have_ended(node)}
        state.clock.restart("stacks", STACKS_LIMIT_S)
        return [Ask(node=node, question=AskStacks()) for node in self._asked]
