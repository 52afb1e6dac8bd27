"""The pace of ranks by the steps that they print: a rank that stays behind the others is named."""

from __future__ import annotations

from collections import Counter

from mesh.core.cluster import Placement
from mesh.core.events import Behind, Event, Exited, Lost, Output, Stream
from mesh.core.steps import last_step

TAIL_BYTES = 1024  # of a rank's output, in which its last step is searched
LOOK_S = 1.0  # between two looks at the steps
BEHIND_STEPS = 2  # from which a rank counts as behind
BEHIND_S = 3.0  # that a rank is behind before it is named
AGAIN_S = 15.0  # after which another number of steps is named


class Pace:
    """Takes the output of ranks; names those behind the median. Times are monotonic seconds."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._tails: dict[int, bytes] = {}  # of ranks that run
        self._new: set[int] = set()  # ranks with output since the last look
        self._steps: dict[int, tuple[str, int]] = {}
        self._since: dict[int, float] = {}  # when a rank was first seen behind
        self._named: dict[int, tuple[float, int]] = {}  # when, and by how many steps
        self._looked_at = 0.0

    def note(self, event: Event) -> None:
        """Note output, or the end of ranks."""
        match event:
            case Output(rank=rank, stream=Stream.STDOUT | Stream.STDERR, data=data):
                self._tails[rank] = (self._tails.get(rank, b"") + data[-TAIL_BYTES:])[-TAIL_BYTES:]
                self._new.add(rank)
            case Exited(rank=rank):
                self._forget(rank)
            case Lost(node=node):
                for rank in self._placement.ranks(node):
                    self._forget(rank)

    def look(self, now: float, time: float) -> list[Behind]:
        """Return what has changed since the last look; time: seconds since the epoch."""
        if now < self._looked_at + LOOK_S:
            return []
        self._looked_at = now
        for rank in self._new:
            if step := last_step(self._tails[rank]):
                self._steps[rank] = step
        self._new.clear()
        unit, median, behind = self._behind()
        events = []
        for rank, steps in behind.items():
            since = self._since.setdefault(rank, now)
            named_at, named = self._named.get(rank, (since + BEHIND_S - AGAIN_S, 0))
            if steps >= 2 * named > 0 or (now >= named_at + AGAIN_S and steps != named):
                self._named[rank] = now, steps
                events.append(self._event(time, rank, steps, median, unit))
        for rank in [rank for rank in self._since if rank not in behind]:
            del self._since[rank]
            if self._named.pop(rank, None):
                events.append(self._event(time, rank, 0, median, unit))
        return events

    def _behind(self) -> tuple[str, int, dict[int, int]]:
        """Return the unit and the median of the steps, and by how many each slow rank is behind."""
        units = Counter(unit for unit, _ in self._steps.values())
        if not units:
            return "", 0, {}
        unit = max(units, key=units.__getitem__)
        steps = {rank: step for rank, (word, step) in self._steps.items() if word == unit}
        median = sorted(steps.values())[len(steps) // 2]
        behind = {rank: median - step for rank, step in steps.items() if median - step >= BEHIND_STEPS}
        return unit, median, behind if 2 * len(behind) <= len(steps) else {}

    def _event(self, time: float, rank: int, steps: int, median: int, unit: str) -> Behind:
        node = self._placement.node(rank)
        return Behind(time=time, node=node, rank=rank, steps=steps, median=median, unit=unit)

    def _forget(self, rank: int) -> None:
        for known in (self._tails, self._steps, self._since, self._named):
            known.pop(rank, None)
        self._new.discard(rank)
