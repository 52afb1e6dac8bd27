"""Events on their way from all other threads to the loop of the launcher."""

from __future__ import annotations

import collections
import queue

from msgspec import Struct

from mesh.core.events import Event, Interrupted
from mesh.remote.session import Session


class Arrival(Struct, frozen=True):
    """An event, and the place in its host's stream that is reached with it."""

    event: Event
    session: Session | None = None
    place: int = 0


class Inbox:
    """A queue of events, and a second one of urgent items that overtake it. Any thread may post."""

    def __init__(self) -> None:
        # It has no limit: the hosts send no more than a window ahead of what has been acknowledged.
        self._arrived: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()  # None: look at the clock
        self._urgent: collections.deque[Event | BaseException] = collections.deque()

    def post(self, event: Event, session: Session | None = None, place: int = 0) -> None:
        """Queue an event. session, place: as in Arrival"""
        self._arrived.put(Arrival(event, session, place))

    def post_urgent(self, item: Event | BaseException) -> None:
        """Post an event, or an error that ends the loop, ahead of all others. The loop finds it at its next tick."""
        self._urgent.append(item)

    def interrupt(self, event: Event) -> None:
        """Post an urgent event and wake the loop; safe in a signal handler."""
        self._urgent.append(event)
        self._arrived.put(None)

    def wake(self) -> None:
        """Have the loop look at the clock."""
        self._arrived.put(None)

    def next(self, timeout: float = 0.0) -> Arrival | None:
        """Return the oldest event; None after ``wake``. Raises queue.Empty if there is none within timeout seconds."""
        return self._arrived.get(timeout=timeout) if timeout else self._arrived.get_nowait()

    @property
    def has_urgent(self) -> bool:
        return bool(self._urgent)

    def next_urgent(self) -> Event | None:
        """Return the oldest urgent event, or None. Raises an error that was posted."""
        if not self._urgent:
            return None
        item = self._urgent.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    def late_signal(self) -> int:
        """Return the first signal that the loop has not read; 0: there is none."""
        # A signal may add to the items meanwhile.
        return next((item.signal for item in list(self._urgent) if isinstance(item, Interrupted)), 0)

    def raise_errors(self) -> None:
        """Raise the first error that the loop has not read, if there is one."""
        for item in list(self._urgent):
            if isinstance(item, BaseException):
                raise item
