"""Delta debugging: the smallest set of changes that still makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Smallest(Struct, Generic[T], frozen=True):
    """The changes that are left."""

    changes: tuple[T, ...]
    is_smallest: bool  # without any of them there is no difference; False: the trials were used up


def smallest(changes: Sequence[T], is_bad: Callable[[Sequence[T]], bool], trials: int) -> Smallest[T]:
    """Return a set of changes that is bad as a whole, and as small as trials can show.

    changes: are bad together, and without them all is good; is_bad: tries some of them, in their order
    trials: calls of ``is_bad`` at most

    >>> smallest(range(500), lambda some: 333 in some, 30)
    Smallest(changes=(333,), is_smallest=True)
    >>> smallest(range(8), lambda some: {1, 6} <= set(some), 30)
    Smallest(changes=(1, 6), is_smallest=True)
    >>> smallest(range(8), lambda some: 3 in some, 1)
    Smallest(changes=(0, 1, 2, 3), is_smallest=False)
    """
    left, parts = tuple(changes), 2
    known: dict[tuple[T, ...], bool] = {}

    def tried(some: tuple[T, ...]) -> bool:
        if some not in known:
            if len(known) >= trials:
                raise _UsedUp
            known[some] = is_bad(some)
        return known[some]

    try:
        while len(left) > 1:
            pieces = _split(left, parts)
            found = next((piece for piece in pieces if tried(piece)), None)
            if found is not None:
                left, parts = found, 2
                continue
            rests = [_without(left, piece) for piece in pieces] if parts > 2 else []
            found = next((rest for rest in rests if tried(rest)), None)
            if found is not None:
                left, parts = found, max(parts - 1, 2)
            elif parts >= len(left):
                break
            else:
                parts = min(2 * parts, len(left))
    except _UsedUp:
        return Smallest(left, False)
    return Smallest(left, True)


class _UsedUp(Exception):
    """No trial is left."""


def _split(changes: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    """Return so many parts of about the same size."""
    bounds = [len(changes) * number // parts for number in range(parts + 1)]
    return [changes[begin:end] for begin, end in pairwise(bounds)]


def _without(changes: tuple[T, ...], some: tuple[T, ...]) -> tuple[T, ...]:
    left = set(some)
    return tuple(change for change in changes if change not in left)
