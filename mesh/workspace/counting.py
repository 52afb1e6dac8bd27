"""How far long work is, for whoever wants to tell."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Called often, from any thread: "listing", "hashing" or "packing"; files or bytes done; of how many, 0 if not known.
Tell = Callable[[str, int, int], None]


def untold(what: str, done: int, of: int) -> None:
    """Nobody wants to know."""


class Counter:
    """Adds up what several threads do of one piece of work."""

    def __init__(self, tell: Tell, what: str, of: int) -> None:
        self._tell, self._what, self._of = tell, what, of
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So much more is done."""
        with self._lock:
            self._done += count
        self._tell(self._what, self._done, self._of)
