"""Ranks that move to other hosts of the run: on request, or because their host is lost.

No rank starts on another host before its processes on the old one have ended. The old host reports that; after the loss
of the host, its lease is waited for.
"""

from __future__ import annotations

from msgspec import Struct

from mesh.agent.run.lease import SILENCE_LIMIT_S
from mesh.core.events import Event, Exited, Lost
from mesh.core.nodes import Adopted, Kept, MoveAsked, Moving, Released, Restarted, told_end
from mesh.core.run import Rules
from mesh.engine.orders import Adopt, Moved, Order, Release, Say, Take, Tell
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.program import ProgramWatch
from mesh.engine.supervisor.state import State

HOST_LOST = "its host is lost"  # begins the reason, by which other nodes close their links to the host
LEASE_MARGIN_S = 10.0  # for SIGKILL to take effect


def longest_stay(rules: Rules, return_s: float) -> float:
    """Return the seconds after which no process can be left on a host that the client has lost.

    return_s: as in ``Moves``

    >>> longest_stay(Rules(lease=60.0, grace=10.0), 5.0), longest_stay(Rules(lease=3.0, grace=1.0), 30.0)
    (140.0, 59.0)
    """
    # A beat that waits in the broken connection may arrive a lease later, and renew it once. An agent whose connection
    # ends while beats arrive has no lease, but waits for the client to return.
    renewed = rules.lease + max(rules.lease, SILENCE_LIMIT_S + return_s)
    return renewed + rules.grace + LEASE_MARGIN_S


class _Move(Struct, kw_only=True):
    """A rank that is on its way."""

    origin: int  # index of the host that it leaves
    to: int
    asked: bool  # the agent of ``origin`` waits for the answer
    attempt: int = 0  # that comes
    after: str = ""  # how its last process ended
    begins_at: float = -1.0  # monotonic: after the loss of its host; -1.0: the host reports that it has left
    code: int = 0
    signal: int = 0

    @property
    def has_left(self) -> bool:
        """True once its processes on the old host have ended."""
        return self.attempt > 0 and self.begins_at < 0


class Moves:
    """The moves of one run. Without spare hosts no rank moves."""

    def __init__(self, state: State, program: ProgramWatch, return_s: float) -> None:
        """Start without any. return_s: seconds that an agent waits for a client whose connection has ended"""
        self._state, self._program, self._return_s = state, program, return_s
        self._begin = state.placement  # at the start of the run
        self._moving: dict[int, _Move] = {}  # by rank
        self._attempts: dict[int, int] = {}  # of ranks that were started again
        self._losses: dict[int, int] = {}  # how often a rank has lost its host
        self._ending: set[int] = set()  # hosts whose agents are ending the run there, though they have not left
        self.moved: dict[int, int] = {}  # where ranks are that have moved

    def take(self, event: Event) -> list[Order]:
        """Take what a host reports about a rank that moves, or that is to."""
        match event:
            case MoveAsked():
                return self._ask(event)
            case Kept(rank=rank, why=why):
                return self._answer(rank, why=why)
            case Released(rank=rank) if rank in self._moving:
                return self._release(event, self._moving[rank])
            case Adopted(rank=rank) if rank in self._moving:
                return self._start(rank)
            case Restarted(rank=rank, attempt=attempt, pid=pid):
                self._attempts[rank] = attempt
                move = self._moving.get(rank)
                # Before it has left, its old host has started it again by itself, and releases the new process.
                return self._answer(rank, pid=pid) if move is not None and move.has_left else []
            case Exited(rank=rank):
                return self._answer(rank, why="the run is ending")
        return []

    def _ask(self, event: MoveAsked) -> list[Order]:
        rank, to = event.rank, event.to
        if why := self._refusal(rank, event.node, to):
            return [Moved(node=event.node, rank=rank, why=why)]
        self._moving[rank] = _Move(origin=event.node, to=to, asked=True)
        return [*self._tell(rank, to), Release(node=event.node, rank=rank, grace=event.grace)]

    def _refusal(self, rank: int, node: int, to: int) -> str:
        """Return why a rank cannot move; "" if it can."""
        state = self._state
        if state.cause is not None or not state.ranks.started:
            return "the run is ending" if state.cause is not None else "the ranks have not started"
        if rank in self._moving:
            return "it is moving already"
        if rank in state.ranks.exits or state.placement.node(rank) != node:
            return "it has ended there"
        if to >= len(state.phases) or to == node:
            return "there is no such other host"
        return self._unfit(rank, to)

    def _unfit(self, rank: int, to: int) -> str:
        """Return why a host can take no rank; "" if it can take this one."""
        home, name = self._begin.node(rank), self._state.name(to)
        if not self._may_take(to):
            return f"{name} is not connected"
        if to < self._begin.count and to != home:
            return f"{name} is no spare host: it has ranks of its own"
        others = [*self._state.placement.ranks(to), *(one for one, move in self._moving.items() if move.to == to)]
        if other := next((one for one in others if self._begin.node(one) != home), None):
            return f"{name} has ranks of {self._state.name(self._begin.node(other))} already"
        return ""

    def _may_take(self, node: int) -> bool:
        return self._state.phases[node] is Phase.RUNNING and node not in self._ending

    def _tell(self, rank: int, to: int, seconds: float = 0.0, why: str = "") -> list[Order]:
        state, node = self._state, self._state.placement.node(rank)
        name = state.placement.role(rank) or f"rank {rank}"
        after = f" in {seconds:.0f} s, once its lease there is over" if seconds else ""
        text = f"{name}: moves from {state.name(node)} to {state.name(to)}{after}"
        moving = Moving(time=state.clock.time, node=node, rank=rank, to=state.name(to), seconds=seconds, why=why)
        return [Tell(event=moving), Say(text=text)]

    def _release(self, event: Released, move: _Move) -> list[Order]:
        """Go on with a rank whose processes have ended on its old host."""
        state, rank = self._state, event.rank
        move.attempt, move.code, move.signal = event.attempt, event.code, event.signal
        move.after = f"signal {event.signal}" if event.signal else f"exit {event.code}"
        if state.cause is not None:
            return self._end(rank, move)
        refused: list[Order] = []
        if not self._may_take(move.to):  # it was lost meanwhile
            refused = self._dropped(rank, move)
            move.to, move.asked = move.origin, False
        self._program.note(rank, "restarting", event.attempt, told_end(event.code, event.signal))
        return [*refused, *self._place(rank, move)]

    def _place(self, rank: int, move: _Move) -> list[Order]:
        """Have the new host take a rank."""
        state = self._state
        state.move(rank, move.to)
        self.moved[rank] = move.to
        if state.spec.groups[state.placement.table[rank].group].is_node:
            return [Adopt(node=move.to, rank=rank)]
        return self._start(rank)

    def _start(self, rank: int) -> list[Order]:
        move = self._moving[rank]
        if self._state.cause is not None:
            return self._end(rank, move)
        return [Take(node=move.to, rank=rank, attempt=move.attempt, after=move.after)]

    def _answer(self, rank: int, *, pid: int = 0, why: str = "") -> list[Order]:
        """Note the end of a move, and report it to the agent that waits for it."""
        move = self._moving.pop(rank, None)
        if move is None or not move.asked:
            return []
        return [Moved(node=move.origin, rank=rank, pid=pid, why=why)]

    def _end(self, rank: int, move: _Move) -> list[Order]:
        """Count a rank that is between two hosts as ended, because the run ends."""
        state = self._state
        node, now = state.placement.node(rank), state.clock.time
        ended = Exited(time=now, node=node, rank=rank, code=move.code, signal=move.signal)
        state.ranks.end_between(ended)
        return [*self._answer(rank, why="the run is ending"), Tell(event=ended)]

    # ---- lost hosts

    def replace(self, event: Lost) -> list[Order] | None:
        """Move the ranks of a lost host to a spare one; None if they cannot, and their loss counts."""
        state, node = self._state, event.node
        ranks = [rank for rank in state.placement.ranks(node) if rank not in state.ranks.exits]
        groups = [state.spec.groups[state.placement.table[rank].group] for rank in ranks]
        if state.cause is not None or not ranks or not all(group.elsewhere for group in groups):
            return None
        if any(self._losses.get(rank, 0) >= group.restarts for rank, group in zip(ranks, groups, strict=True)):
            return None
        spares = range(self._begin.count, len(state.phases))
        to = next((one for one in spares if one != node and not self._unfit(ranks[0], one)), None)
        if to is None or len({self._begin.node(rank) for rank in ranks}) > 1:
            return None
        rules = state.spec.rules
        wait = 0.0 if event.is_clear else longest_stay(rules, self._return_s)
        orders: list[Order] = []
        for rank in ranks:
            before = self._moving.pop(rank, None)
            self._losses[rank] = self._losses.get(rank, 0) + 1
            begins_at = state.clock.monotonic + wait
            if before is not None and before.to == node and before.begins_at >= 0:  # it has not started there
                begins_at = before.begins_at
            seconds = max(0.0, begins_at - state.clock.monotonic)
            why = f"{HOST_LOST}: {event.reason}"
            orders += [*self._dropped(rank, before), *self._tell(rank, to, seconds, why)]
            attempt = max(self._attempts.get(rank, 0), before.attempt if before else 0) + 1
            self._attempts[rank] = attempt
            self._moving[rank] = _Move(
                origin=node, to=to, asked=False, attempt=attempt, after="the loss of its host", begins_at=begins_at
            )
            self._program.note(rank, "restarting", attempt, why)
            state.move(rank, to)
            self.moved[rank] = to
        return orders

    def _dropped(self, rank: int, move: _Move | None) -> list[Order]:
        """Answer a request whose rank had not arrived when a host was lost."""
        if move is None or not move.asked or self._state.phases[move.origin] is Phase.OVER:
            return []
        return [Moved(node=move.origin, rank=rank, why=f"{self._state.name(move.to)} is lost")]

    def shun(self, node: int) -> None:
        """Move no rank to a host whose agent ends the run there."""
        self._ending.add(node)

    def lose(self, event: Lost) -> list[Order]:
        """Drop the moves of ranks whose host is lost, and whose loss counts."""
        found = [rank for rank in self._moving if self._state.placement.node(rank) == event.node]
        return [order for rank in found for order in self._dropped(rank, self._moving.pop(rank))]

    def look_at_the_clock(self) -> list[Order]:
        """Go on with ranks whose processes on lost hosts have ended by now; end them if the run ends."""
        state, orders = self._state, list[Order]()
        for rank, move in list(self._moving.items()):
            if move.begins_at < 0:
                continue
            if state.cause is not None:
                orders += self._end(rank, move)
            elif state.clock.monotonic >= move.begins_at:
                move.begins_at = -1.0
                orders += self._place(rank, move)
        return orders
