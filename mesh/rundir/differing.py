"""The differences between the output of ranks, against the one that most ranks have."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

from mesh.core.amounts import told_bytes
from mesh.core.escapes import plain
from mesh.core.ranks import few, told_ranks
from mesh.rundir.results import RankResult

DIFF_LINES_MAX = 10_000  # of one output; comparing longer ones line by line takes minutes


def groups_of(ranks: Sequence[RankResult]) -> list[list[RankResult]]:
    """Return ranks by equal output, the largest group first, of equal ones that of the lowest rank. Raises OSError.

    Ranks that never started are in none.
    """
    found: dict[bytes, list[RankResult]] = {}
    for rank in ranks:
        if rank.code is not None or rank.signal is not None or rank.stdout_path.exists():
            digest = hashlib.sha256(rank.stdout).digest() + hashlib.sha256(rank.stderr).digest()
            found.setdefault(digest, []).append(rank)
    return sorted(found.values(), key=lambda group: -len(group))


def differences(groups: Sequence[Sequence[RankResult]]) -> Iterator[str]:
    """Yield a unified diff of each group against the first one; stderr follows stdout. Raises OSError."""
    texts = [_lines(group[0]) for group in groups]
    for group, lines in zip(groups[1:], texts[1:], strict=True):
        if max(len(lines), len(texts[0])) > DIFF_LINES_MAX:
            sizes = " and ".join(told_bytes(len(one[0].stdout) + len(one[0].stderr)) for one in (groups[0], group))
            yield f"--- {_named(groups[0])}"
            yield f"+++ {_named(group)}"
            yield f"(they differ, and have too many lines to compare: {sizes})"
        else:
            yield from difflib.unified_diff(texts[0], lines, _named(groups[0]), _named(group), lineterm="")


def summary(groups: Sequence[Sequence[RankResult]]) -> str:
    """Return how many outputs there are, in one line.

    >>> summary([])
    'no rank has printed anything'
    """
    if not groups:
        return "no rank has printed anything"
    reference = told_ranks(rank.rank for rank in groups[0])
    if len(groups) == 1:
        return f"{reference}: the same output"
    if 2 * len(groups[0]) > sum(map(len, groups)):
        return f"{len(groups)} different outputs; most ranks have that of {reference}"
    return f"{len(groups)} different outputs, compared with that of {reference}"


def _lines(rank: RankResult) -> list[str]:
    return [plain(line) for data in (rank.stdout, rank.stderr) for line in data.decode("utf-8", "replace").splitlines()]


def _named(group: Sequence[RankResult]) -> str:
    hosts: Mapping[str, None] = dict.fromkeys(rank.host for rank in group)
    return f"{told_ranks(rank.rank for rank in group)} ({few(list(hosts))})"
