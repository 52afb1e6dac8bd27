"""The ranks that failed first: one rule for the live line and for the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.core.events import Exited

CLOCK_ERROR_S = 0.05  # of a host's corrected clock, half a slow round trip
SAME_CLOCK_ERROR_S = 0.01  # between two ranks of one host, because its agent may notice their ends in any order
NAMING_DELAY_S = 0.2  # from the first failure to its line, which also names the ranks that failed with it


def by_time(failures: Iterable[Exited]) -> list[Exited]:
    """Sort failures by time, and those of equal time by rank."""
    return sorted(failures, key=lambda failure: (failure.time, failure.rank))


def alike(first: Exited, failures: Iterable[Exited]) -> tuple[int, ...]:
    """Return the ranks that failed like the first one, and not provably later.

    >>> ends = [Exited(time=1 + rank / 100, node=rank % 2, rank=rank, code=rank // 4) for rank in range(5)]
    >>> alike(ends[0], ends)
    (0, 1, 3)
    """
    found = [failure.rank for failure in failures if _is_alike(first, failure)]
    return tuple(sorted(found))


def _is_alike(first: Exited, failure: Exited) -> bool:
    error = SAME_CLOCK_ERROR_S if failure.node == first.node else CLOCK_ERROR_S
    return (failure.code, failure.signal) == (first.code, first.signal) and failure.time - first.time <= error
