"""The way of every host from its connection to the start of the ranks."""

from __future__ import annotations

from mesh.core.events import CONNECTING, Connected, Locked, NoCommand, PrepareFailed, Ready, Synced
from mesh.core.module import Applied, ModuleError, Step
from mesh.core.outcome import EXIT_NOT_FOUND, Cause
from mesh.engine.orders import Apply, Order, Prepare, Say, Start, Sync, Tell
from mesh.engine.supervisor.ending import Ending, Stage
from mesh.engine.supervisor.modules import Rounds
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State
from mesh.engine.wrapping import host_program


class Steps:
    """Has each host sync and prepare, and starts all ranks at once when all hosts are ready."""

    def __init__(self, state: State, ending: Ending, rounds: Rounds) -> None:
        """rounds: of modules"""
        self._state, self._ending, self._rounds = state, ending, rounds
        self._has_ranks = bool(state.spec.has_command or state.spec.commands)
        self._prepared_at_once: set[int] = set()  # hosts that prepare themselves without an order
        self._trees: dict[int, str] = {}  # of the workspaces on hosts that are locked
        self.skipped: dict[int, PrepareFailed] = {}  # hosts that the run goes on without; they have no ranks
        self.no_command: dict[int, NoCommand] = {}  # hosts that are prepared, and cannot execute the command

    @property
    def prepares_at_once(self) -> bool:
        """True if hosts prepare themselves without an order: nothing runs before the ranks, and nothing is held."""
        spec = self._state.spec
        is_plain = not (self._rounds or spec.commands or spec.sync or spec.lock or spec.prerun or spec.claim)
        is_plain = is_plain and not spec.is_program  # the files of nodes come before
        return self._has_ranks and is_plain

    def connected(self, event: Connected) -> list[Order]:
        self._prepared_at_once |= {event.node} if event.is_preparing else set()
        orders = self.move(event.node, Phase.CONNECTED)
        if event.is_locking and self._state.phases[event.node] is Phase.CONNECTED:
            self._state.phases[event.node] = Phase.LOCKING
        return orders

    def locked(self, event: Locked) -> list[Order]:
        """Sync a host that is locked. A run that waits for busy hosts changes nothing on any host before it has all."""
        state, spec, node = self._state, self._state.spec, event.node
        self._trees[node] = event.tree
        orders = self.move(node, Phase.LOCKED)
        is_ours = state.phases[node] is Phase.LOCKED and state.cause is None
        if not is_ours or (spec.wait and not state.phases.have_all(Phase.LOCKED)):
            return orders
        for other in state.phases.of(Phase.LOCKED):
            if spec.sync:
                if spec.sync_timeout:
                    state.clock.start("sync", spec.sync_timeout)
                orders += [Sync(node=other), *self.move(other, Phase.SYNCING)]
            elif spec.fetched:
                orders += self._fetched(other)
            else:
                orders += self.move(other, Phase.SYNCED)
        return orders

    def _fetched(self, node: int) -> list[Order]:
        """Record the workspace that a host has fetched by itself; refuse one that is not as on the first host."""
        state, tree = self._state, self._trees[node]
        first, other = next(iter(self._trees.items()))
        if tree and tree == other:
            source = state.spec.fetched
            synced = Synced(time=state.clock.time, node=node, files=0, bytes=0, seconds=0.0, tree=tree, source=source)
            return [Tell(event=synced), *self.move(node, Phase.SYNCED)]
        if state.cause is not None:
            return self.move(node, Phase.SYNCED)
        message = f"its workspace differs from that on {state.names([first])}: tree {tree or 'unknown'}, and {other}"
        hint = "name a commit by ref:, then make the pods anew: mesh down CLUSTER"
        return self.refuse(PrepareFailed(time=state.clock.time, node=node, step="sync", message=message, hint=hint))

    def applied(self, event: Applied) -> list[Order]:
        self._rounds.take(event)
        return self.move(event.node, Phase.APPLIED)

    def ready(self, event: Ready) -> list[Order]:
        if event.status:
            self.no_command[event.node] = self._lacking(event)
        return self.move(event.node, Phase.READY)

    def move(self, node: int, phase: Phase) -> list[Order]:
        """Note that a host is further, and begin the next step if it was the last one."""
        state = self._state
        if state.phases[node] >= Phase.FINISHING:
            return []
        state.phases[node] = phase
        if state.phases.have_all(Phase.SYNCED):
            state.clock.cancel("sync")
        if state.cause is not None:
            return self._ending.finish(nodes=[node]) if self._ending.stage >= Stage.STOPPING else []
        return self.advance()

    def advance(self) -> list[Order]:
        """Begin the next step if all hosts have come so far."""
        state, phases = self._state, self._state.phases
        # The environment names every host, so that modules and prerun wait until all have answered.
        if phases.have_all(Phase.SYNCING) and (synced := phases.of(Phase.SYNCED)) and self._rounds:
            phases.put(synced, Phase.APPLYING)
            if not self._has_ranks:
                self._start_timeout()
            return [self._apply(node, self._rounds.first(node)) for node in synced]
        before = Phase.SYNCED
        if self._rounds:
            before = Phase.APPLIED
            if phases.have_all(before) and (orders := self._second_round()):
                return orders
        # A second round begins only once all hosts have reported.
        may_prepare = phases.have_all(before if self._rounds else Phase.SYNCING)
        if self._has_ranks and may_prepare and (done := phases.of(before)):
            phases.put(done, Phase.PREPARING)
            return [Prepare(node=node) for node in done if node not in self._prepared_at_once]
        if phases.have_all(before) and not self._has_ranks:
            state.cause = Cause.COMPLETED
            return self._ending.finish()
        if not phases.have_all(Phase.READY):
            return []
        if self.no_command:
            state.cause = Cause.RANK
            told: list[Order] = [Tell(event=self.no_command[node]) for node in sorted(self.no_command)]
            return [*told, *self._ending.finish()]
        state.ranks.started = state.clock.time  # gang start: all ranks or none
        self._ending.last_output = state.clock.monotonic
        self._start_timeout()
        nodes = phases.of(Phase.READY)
        phases.put(nodes, Phase.RUNNING)
        return [*self._name_skipped(), *(Start(node=node) for node in nodes)]

    def _start_timeout(self) -> None:
        state = self._state
        if state.spec.rules.timeout:
            state.clock.start("timeout", state.spec.rules.timeout)

    def _apply(self, node: int, steps: tuple[Step, ...]) -> Order:
        return Apply(node=node, steps=steps, undo=self._rounds.is_undo)

    def _second_round(self) -> list[Order]:
        """Begin the steps that depend on the reports of all hosts. Refuse hosts that do not fit together."""
        state = self._state
        try:
            further = self._rounds.second()
        except ModuleError as error:
            failure = PrepareFailed(time=state.clock.time, node=0, step="modules", message=str(error), hint=error.hint)
            return self.refuse(failure)
        state.phases.put(further, Phase.APPLYING)
        return [self._apply(node, steps) for node, steps in further.items()]

    def refuse(self, failure: PrepareFailed) -> list[Order]:
        """End the run for a reason that concerns all hosts together."""
        self._state.failures.append(failure)
        self._state.cause = Cause.PREPARE
        return [Tell(event=failure), *self._ending.finish()]

    def may_skip(self, failure: PrepareFailed) -> bool:
        """Return True if the run may start without a host that failed."""
        return self._state.spec.rules.skip_unreachable and self._state.cause is None and failure.step in CONNECTING

    def skip(self, failure: PrepareFailed) -> bool:
        """Go on without a host that cannot be reached; return False, and end the run, if it was the last one."""
        state = self._state
        self.skipped[failure.node] = failure
        state.phases[failure.node] = Phase.OVER
        state.ranks.drop(failure.node)
        if len(self.skipped) == len(state.phases):
            state.cause = Cause.PREPARE
        return state.cause is None

    def overdue(self) -> list[PrepareFailed]:
        """Return a failure for each host whose sync takes longer than the run allows."""
        state = self._state
        if not state.clock.passed("sync") or state.cause is not None:
            return []
        message = f"the workspace is not there after {state.spec.sync_timeout:g} s"
        hint = "`mesh push --list` shows what is sent, the biggest first; give it more time, or less to send"
        return [
            PrepareFailed(time=state.clock.time, node=node, step="sync", message=message, hint=hint)
            for node in state.phases.of(Phase.SYNCING)
        ]

    def _name_skipped(self) -> list[Order]:
        if not self.skipped:
            return []
        count = len(self._state.phases)
        names = self._state.names(self.skipped)
        return [Say(text=f"not reached: {names}; the ranks start on {count - len(self.skipped)} of {count} hosts")]

    def _lacking(self, event: Ready) -> NoCommand:
        program = host_program(self._state.spec, self._state.placement, event.node)
        return NoCommand(
            time=event.time,
            node=event.node,
            step="command",
            message=f"{program}: {'no such command' if event.status == EXIT_NOT_FOUND else 'not executable'}",
            hint=f"the nearest name there is {event.nearest}" if event.nearest else "",
            program=program,
            status=event.status,
            nearest=event.nearest,
        )
