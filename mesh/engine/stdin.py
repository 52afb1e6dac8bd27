"""Standard input of this process, for the ranks that read it."""

from __future__ import annotations

import collections
import os
import select
import threading
from collections.abc import Mapping, Sequence

from mesh.remote.session import Session

STDIN_POLL_S = 0.1
STDIN_CHUNK_BYTES = 65536
STDIN_WINDOW_BYTES = 1 << 18  # that a rank may be behind


class StandardInput:
    """Sends standard input to ranks, as fast as the slowest of them reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._behind: collections.Counter[int] = collections.Counter()  # bytes, by rank
        self._is_closed = False

    def feed(self, sessions: Mapping[int, Session]) -> None:
        """Send all of it to these ranks, and then its end; return early once closed. sessions: by rank"""
        data = b"?"
        while data and self._wait_for_room(list(sessions)):
            data = self._read()
            for rank, session in sessions.items():
                with self._changed:
                    self._behind[rank] += len(data)
                session.stdin(rank, data)

    def taken(self, rank: int, count: int) -> None:
        """Count bytes that a rank has read. From any thread."""
        with self._changed:
            self._behind[rank] -= count
            self._changed.notify_all()

    def close(self) -> None:
        """End ``feed``. From any thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait_for_room(self, ranks: Sequence[int]) -> bool:
        """Wait until every rank has read enough; return False once closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or all(self._behind[rank] < STDIN_WINDOW_BYTES for rank in ranks)
            )
            return not self._is_closed

    def _read(self) -> bytes:
        while not self._is_closed:
            ready, _, _ = select.select([self._descriptor], [], [], STDIN_POLL_S)
            if ready:
                try:
                    return os.read(self._descriptor, STDIN_CHUNK_BYTES)
                except OSError:  # the terminal is gone
                    return b""
        return b""
