"""The nodes of a program: which are ready, their changes for the others, and when only those that serve are left."""

from __future__ import annotations

from mesh.core.events import Event, Exited, Lost, PrepareFailed
from mesh.core.nodes import AllReady, RankReady, Restarting, told_end
from mesh.engine.orders import Change, Order, Tell
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State


class ProgramWatch:
    """Follows the nodes of a program. For a run without nodes it does nothing."""

    def __init__(self, state: State) -> None:
        self._state = state
        spec, placement = state.spec, state.placement
        self.is_active = spec.is_program  # False where the hosts look after the nodes by themselves
        groups = [spec.groups[place.group] for place in placement.table] if self.is_active else []
        self._unready = {rank for rank, group in enumerate(groups) if group.ready}  # that have not reported
        self._is_awaited = bool(self._unready)
        self._may_fail = {rank for rank, group in enumerate(groups) if group.may_fail}
        self._at_work = {rank for rank, group in enumerate(groups) if not group.serves}
        # Without any node at work from the beginning, the client ends the program.
        self._serving = any(group.serves for group in groups) and bool(self._at_work)
        self._changes: list[tuple[int, tuple[str, str, int, str]]] = []  # the host, and the change of a node there
        self._attempts = dict.fromkeys(range(len(groups)), 0)

    @property
    def is_over(self) -> bool:
        """True once only nodes that serve are left, and some do."""
        return self.is_active and self._serving and not self._at_work

    def take(self, event: Event) -> list[Order]:
        """Note how a node has changed, and report once all are ready."""
        if not self.is_active:
            return []
        match event:
            case RankReady(rank=rank, attempt=attempt):
                return [*self._change(rank, "ready", attempt), *self._settle(rank)]
            case Restarting(rank=rank, attempt=attempt, code=code, signal=number):
                return self._change(rank, "restarting", attempt, told_end(code, number))
            case Exited(rank=rank, status=status):
                self._at_work.discard(rank)
                why = told_end(event.code, event.signal, is_oom=event.oom) if status else ""
                self._change(rank, "failed" if status else "ended", self._attempts[rank], why)
                return [] if status and rank not in self._may_fail else self._settle(rank)
            case Lost(node=node, reason=reason):
                for rank in self._state.placement.ranks(node):
                    self._at_work.discard(rank)
                    self._change(rank, "lost", self._attempts[rank], reason)
        return []

    def note(self, rank: int, state: str, attempt: int, why: str = "") -> None:
        """Note a change of a node that its host does not report."""
        if self.is_active:
            self._change(rank, state, attempt, why)

    def overdue(self) -> list[PrepareFailed]:
        """Return a failure for each node that is not ready in time."""
        state, limit = self._state, self._state.spec.ready_timeout
        if not self._unready or not state.ranks.started or state.cause is not None or not limit:
            return []
        state.clock.start("ready", limit)
        if not state.clock.passed("ready"):
            return []
        late, self._unready = sorted(self._unready), set()
        return [self._not_ready(rank) for rank in late]

    def changes(self) -> list[Order]:
        """Return the changes since the last call, for each host those on others."""
        found, self._changes = self._changes, []
        orders: list[Order] = []
        for node in self._state.phases.of(Phase.RUNNING) if found else ():
            if rows := tuple(change for origin, change in found if origin != node):
                orders.append(Change(node=node, states=rows))
        return orders

    def _change(self, rank: int, state: str, attempt: int, why: str = "") -> list[Order]:
        placement = self._state.placement
        self._attempts[rank] = attempt
        self._changes.append((placement.node(rank), (placement.role(rank), state, attempt, why)))
        return []

    def _settle(self, rank: int) -> list[Order]:
        """Note that a node is ready, or never will be; report the last one."""
        self._unready.discard(rank)
        if self._unready or not self._is_awaited or self._state.cause is not None:
            return []
        self._is_awaited = False
        return [Tell(event=AllReady(time=self._state.clock.time))]

    def _not_ready(self, rank: int) -> PrepareFailed:
        state, label = self._state, self._state.placement.role(rank)
        return PrepareFailed(
            time=state.clock.time,
            node=state.placement.node(rank),
            step="ready",
            message=f"{label}: not ready after {state.spec.ready_timeout:g} s",
            hint=f"mesh logs {state.spec.run} --rank {label}",
        )
