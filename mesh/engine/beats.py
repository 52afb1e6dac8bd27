"""The beats to a run's hosts. A connection that blocks delays no beat but its own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Protocol


class Sender(Protocol):
    """The part of a session that a beat needs."""

    def beat(self) -> None:
        """Renew the lease of the host. May block while the host reads nothing."""


class Beats:
    """Threads that send beats: one, and more whenever all of them are blocked."""

    def __init__(self, spawn: Callable[[Callable[[], None]], object]) -> None:
        """spawn: runs a function in a thread of its own"""
        self._spawn = spawn
        self._waiting: queue.SimpleQueue[tuple[int, Sender] | None] = queue.SimpleQueue()  # None: end a thread
        self._unsent: set[int] = set()  # nodes whose last beat waits, or blocks
        self._threads = 0
        self._sent, self._seen = 0, 0  # beats until now, and until the last ``advance``

    def renew(self, sessions: Mapping[int, Sender]) -> None:
        """Send a beat to each host, unless its last one has not left yet."""
        for node, session in sessions.items():
            if node not in self._unsent:
                self._unsent.add(node)
                self._waiting.put((node, session))
        if not self._threads:
            self._start_thread()
        self._seen = self._sent

    def advance(self) -> None:
        """Start more threads if beats wait, all threads are sending, and none was done since the last call.

        Their number doubles, because many hosts may block at the same time.
        """
        waiting = self._waiting.qsize()
        if waiting and len(self._unsent) - waiting >= self._threads and self._sent == self._seen:
            for _ in range(min(waiting, self._threads)):
                self._start_thread()
        self._seen = self._sent

    def close(self) -> None:
        """End the threads; a blocked one ends once its connection is closed."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _start_thread(self) -> None:
        self._threads += 1
        self._spawn(self._send_all)

    def _send_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            node, session = item
            session.beat()
            self._sent += 1  # only to see that something is: two threads may count one beat
            self._unsent.discard(node)
