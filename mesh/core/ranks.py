"""Sets of ranks, as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_NAMED = 8  # hosts in one message


def told(ranks: Iterable[int], width: int = 0) -> str:
    """A set of ranks in short; width: of a number, with leading zeros.

    >>> told([0, 1, 2, 8, 10, 9]), told([5]), told([]), told([9, 10], 2)
    ('0-2,8-10', '5', '', '09-10')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(
        f"{first:0{width}d}-{last:0{width}d}" if last > first else f"{first:0{width}d}" for first, last in runs
    )


def told_ranks(ranks: Iterable[int], noun: str = "rank") -> str:
    """
    >>> told_ranks([3]), told_ranks([0, 1]), told_ranks([0, 1], "host")
    ('rank 3', 'ranks 0-1', 'hosts 0-1')
    """
    found = set(ranks)
    return f"{noun}{'s' if len(found) > 1 else ''} {told(found)}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "rank"), counted(3, "host")
    ('1 rank', '3 hosts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def members(bits: int) -> list[int]:
    """The ranks of a set that is written as bits.

    >>> members(0b1101)
    [0, 2, 3]
    """
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def few(names: Sequence[str]) -> str:
    """Join names of hosts for a message; of many, the first ones.

    >>> few(["a", "b"]), few([str(number) for number in range(10)])
    ('a, b', '0, 1, 2, 3, 4, 5, 6, 7, ...')
    """
    return ", ".join(names[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED)
