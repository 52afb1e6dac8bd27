"""Nodes for each version of Python, with the standard library alone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

from mesh.program import stop_reason, wait_for_stop


class Strange(Exception):
    """Its constructor takes two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Plain:
    """Serves."""

    def version(self) -> tuple[int, int]:
        return sys.version_info[:2]

    def echo(self, value: object) -> object:
        return value

    async def double(self, value: int) -> int:
        return 2 * value

    def count(self, limit: int) -> Iterator[int]:
        yield from range(limit)

    def fail(self) -> None:
        raise Strange(1, 2)


def signalled() -> str:
    """Get SIGTERM where ``Thread.start`` has its lock; return why the node stops."""
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        signal.raise_signal(signal.SIGTERM)
    wait_for_stop()
    return stop_reason()
