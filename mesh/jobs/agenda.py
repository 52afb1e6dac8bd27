"""Times at which something is due, by key: a turn looks only at those that have come."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Agenda(Generic[Key]):
    """A time for each key, the earliest first.

    >>> agenda = Agenda[str]()
    >>> agenda.put("a", 2.0); agenda.put("b", 1.0); agenda.put("a", 3.0)
    >>> agenda.next(), agenda.take_due(2.0), agenda.take_due(3.0), agenda.next()
    (1.0, ['b'], ['a'], inf)
    """

    def __init__(self) -> None:
        """Start without any."""
        self._times: dict[Key, tuple[float, int]] = {}  # with the number of the entry that counts
        self._heap: list[tuple[float, int, Key]] = []  # old entries too
        self._numbers = itertools.count()

    def put(self, key: Key, time: float) -> None:
        """Set the time of a key; infinity: it has none."""
        if time == math.inf:
            self.drop(key)
            return
        number = next(self._numbers)
        self._times[key] = time, number
        heapq.heappush(self._heap, (time, number, key))
        if len(self._heap) > 2 * len(self._times) + 64:
            self._heap = [(time, number, key) for key, (time, number) in self._times.items()]
            heapq.heapify(self._heap)

    def drop(self, key: Key) -> None:
        """Forget a key."""
        self._times.pop(key, None)

    def next(self) -> float:
        """Return the earliest time; infinity without one."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[Key]:
        """Return the keys whose time has come, the earliest first, and forget them."""
        found = []
        while self.next() <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._times[key]
            found.append(key)
        return found

    def _counts(self, entry: tuple[float, int, Key]) -> bool:
        time, number, key = entry
        return self._times.get(key) == (time, number)
