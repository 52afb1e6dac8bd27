"""Standard input of this process, for the ranks that read it."""

from __future__ import annotations

import collections
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence

from mesh.remote.session import Session

STDIN_POLL_S = 0.1
STDIN_CHUNK_BYTES = 65536
STDIN_WINDOW_BYTES = 1 << 18  # that a rank may be behind


class StandardInput:
    """Sends standard input to ranks, as fast as the slowest of them reads."""

    def __init__(self, descriptor: int, size: Callable[[], tuple[int, int]], leave: Callable[[], object]) -> None:
        """size: returns columns and rows of our terminal; leave: ends the run, when the user types ``~.`` there"""
        self._descriptor, self._size, self._leave = descriptor, size, leave
        self._changed = threading.Condition()
        self._behind: collections.Counter[int] = collections.Counter()  # bytes, by rank
        self._is_closed = False

    def feed(self, sessions: Mapping[int, Session], *, terminal: bool = False) -> None:
        """Send all of it to these ranks, and then its end; return early once closed.

        sessions: by rank; terminal: it is one, and so is that of each rank, which follows its size
        """
        escape, shown = Escape(), self._size() if terminal else (0, 0)

        def watch_size() -> None:
            nonlocal shown
            if terminal and (size := self._size()) != shown:
                shown = size
                for rank, session in sessions.items():
                    session.resize(rank, *size)

        data = b"?"
        while data and self._wait_for_room(list(sessions)):
            data = self._read(watch_size)
            if terminal and escape.is_typed(data):
                self._leave()
                return
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

    def _read(self, look: Callable[[], None]) -> bytes:
        while not self._is_closed:
            look()
            ready, _, _ = select.select([self._descriptor], [], [], STDIN_POLL_S)
            if ready:
                try:
                    return os.read(self._descriptor, STDIN_CHUNK_BYTES)
                except OSError:  # the terminal is gone
                    return b""
        return b""


class Escape:
    r"""The keys that end a run on a terminal, as in ssh: Enter, ``~`` and ``.``. All other keys are the rank's.

    >>> escape = Escape()
    >>> [escape.is_typed(keys) for keys in (b"ls ~.", b"\r", b"~", b".")]
    [False, False, False, True]
    """

    def __init__(self) -> None:
        self._last = b"\r"  # keys; a run begins with a new line

    def is_typed(self, keys: bytes) -> bool:
        """Return True once these keys end with it."""
        self._last = (self._last + keys)[-3:]
        return self._last in (b"\r~.", b"\n~.")
