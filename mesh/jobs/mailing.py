"""Sending of notices, in threads of their own: a hanging webhook delays neither jobs nor the notices of other jobs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from mesh.jobs.notices import NOTICE_TRIES, Notice, send
from mesh.jobs.store import Store

SENDERS_COUNT = 16
RETRY_S = 5.0


class Mailing:
    """Notices on their way. Of each job one at a time, the oldest first; at least once, at most three tries.

    Only the steward's thread uses the store.
    """

    def __init__(self, store: Store, environ: Mapping[str, str], wake: Callable[[], None]) -> None:
        """wake: may be called from any thread, and has ``collect`` called soon"""
        self._store, self._environ, self._wake = store, environ, wake
        self._results: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
        self._sending: set[int] = set()
        self._retry_at: dict[int, float] = {}
        self.has_more = True  # the store may have notices that are not on their way

    def collect(self) -> None:
        """Note which notices were sent."""
        while not self._results.empty():
            number, tries, problem = self._results.get()
            is_done = not problem or tries >= NOTICE_TRIES
            self._store.note_notice(number, tries, is_done=is_done, problem=problem)
            self._sending.discard(number)
            if not is_done:
                self._retry_at[number] = time.monotonic() + RETRY_S
            self.has_more = True

    def send(self) -> None:
        """Send what is due."""
        if not self.has_more:
            return
        now = time.monotonic()
        waiting = False
        for number, tries, notice in self._store.notices():
            if number in self._sending:
                continue
            if len(self._sending) >= SENDERS_COUNT or self._retry_at.get(number, 0.0) > now:
                waiting = True
                continue
            self._retry_at.pop(number, None)
            self._sending.add(number)
            arguments = (number, tries + 1, notice)
            threading.Thread(target=self._send, args=arguments, name="mesh-notice", daemon=True).start()
        self.has_more = waiting

    def _send(self, number: int, tries: int, notice: Notice) -> None:
        try:
            problem = send(notice, self._environ)
        except Exception as error:  # it must not be tried for ever
            problem = f"{type(error).__name__}: {error}"
        self._results.put((number, tries, problem))
        self._wake()
