"""Sets of ranks, as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from mesh.core.cluster import Placement
from mesh.core.errors import UsageError

HOSTS_NAMED = 8  # in one message
RANKS_MAX = 10_000_000  # of one range, where the size of the run is unknown
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def told(ranks: Iterable[int], width: int = 0) -> str:
    """Return a set of ranks in short; width: of a number, with leading zeros.

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


def told_roles(ranks: Iterable[int], placement: Placement | None) -> str:
    """Return a set of ranks in short, by their labels; "" in a run without labels.

    >>> from mesh.core.cluster import Host, place_ranks
    >>> placement = place_ranks(
    ...     [Host(name=name, address=name) for name in "ab"], (3, 1), groups=(0, 1), labels=("actor", "learner")
    ... )
    >>> told_roles([0, 1, 3], placement), told_roles([0], None)
    ('actor/0-1,learner/0', '')
    """
    if placement is None or not any(placement.labels):
        return ""
    found: dict[str, list[int]] = {}
    for rank in sorted(set(ranks)):
        found.setdefault(placement.label(rank), []).append(placement.table[rank].index)
    return ",".join(f"{label}/{part}" for label, indices in found.items() for part in told(indices).split(","))


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


def choose_ranks(option: str, text: str, placement: Placement | None) -> set[int]:
    """Return the ranks of a list by commas: numbers, ranges, labels, names such as actor/1, patterns such as act*.

    option: for messages. placement: None: the run is of another machine, and its labels are not here
    Raises UsageError for a part that names no rank.
    """
    chosen: set[int] = set()
    for part in text.split(","):
        found = _ranks_of(part.strip(), placement)
        if not found:
            labels = [label for label in placement.labels if label] if placement else []
            hint = f"its labels are {', '.join(labels)}" if labels else "ranks are numbers or ranges, as 3,5-7"
            raise UsageError(f"{option}: {part!r} names no rank", hint=hint)
        chosen |= found
    return chosen


def _ranks_of(part: str, placement: Placement | None) -> set[int]:
    if found := _RANGE.fullmatch(part):
        return _numbers(found, RANKS_MAX if placement is None else placement.world_size)
    if placement is None:
        return set()
    label, slash, indices = part.partition("/")
    wanted = _numbers(found, placement.world_size) if (found := _RANGE.fullmatch(indices)) else None
    if slash and wanted is None:
        return {rank for rank in range(placement.world_size) if fnmatchcase(placement.role(rank), part)}
    return {
        rank
        for rank, place in enumerate(placement.table)
        if fnmatchcase(placement.labels[place.group], label) and (wanted is None or place.index in wanted)
    }


def _numbers(found: re.Match[str], most: int) -> set[int]:
    """Return the numbers of a range; of one with more than ``most``, one more than these."""
    first, last = int(found[1]), int(found[2] or found[1])
    return set(range(first, min(last, first + most) + 1))


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
    return ", ".join(names[:HOSTS_NAMED]) + ", ..." * (len(names) > HOSTS_NAMED)
