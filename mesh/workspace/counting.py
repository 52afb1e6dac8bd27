"""Counting long work, for a display of its progress."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Called often, from any thread: "listing", "hashing" or "packing"; files or bytes done; the total, 0 if unknown.
Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, of: int) -> None:
    """Ignore progress."""


class Counter:
    """Adds up the parts of one work that several threads do."""

    def __init__(self, progress: Progress, what: str, of: int) -> None:
        self._progress, self._what, self._of = progress, what, of
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Add files or bytes that are done."""
        with self._lock:
            self._done += count
        self._progress(self._what, self._done, self._of)
