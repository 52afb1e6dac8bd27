"""Holding back output while a question to the user is open on the same terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

SINK_WAIT_S = 0.5  # a sink that takes longer is blocked by its own reader, and writes no line above the question


class Pause:
    """Stops sinks between two events while a question is open. Events wait in their queues, and then on the hosts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_asking = False
        self._busy = 0  # sinks that are showing an event now

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Wait until no question is open, and keep one from opening meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_asking)
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Keep all sinks from showing anything, except one that was blocked for SINK_WAIT_S before."""
        deadline = time.monotonic() + SINK_WAIT_S
        with self._changed:
            self._is_asking = True
            while self._busy and self._changed.wait(deadline - time.monotonic()):
                pass
        try:
            yield
        finally:
            with self._changed:
                self._is_asking = False
                self._changed.notify_all()
