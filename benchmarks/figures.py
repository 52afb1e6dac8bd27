"""The arithmetic of the suite: medians, spread, ratios, tables. Nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of one command."""

    seconds: float  # from its start to its end
    first: float = 0.0  # seconds until each host's first line had come
    cpu: float = 0.0  # CPU seconds of the client and what it started here
    hosts_cpu: float = 0.0  # CPU seconds of all that ran on the hosts
    memory: float = 0.0  # MB of the largest process of the client
    sent: int = 0  # bytes that left this machine's end of the network
    wrong: tuple[int, ...] = ()  # what must not be: each row says what it counts


@dataclass(frozen=True)
class Spread:
    """What several samples tell of one quantity.

    >>> Spread.of([2.0, 1.0, 4.0]), Spread.of([2.0, 1.0, 4.0]).told()
    (Spread(median=2.0, least=1.0, most=4.0), '2.00 (1.00-4.00)')
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def told(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"


Samples = Mapping[str, Sequence[Sample]]  # of each contestant, in the order of the rounds


def ratios(samples: Samples, base: str, of: Callable[[Sample], float]) -> dict[str, float]:
    """How much more each has than the base: the median of the ratios within each round, as a slow moment of the
    machine meets all who take turns in it.

    >>> one, two = Sample(seconds=1.0), Sample(seconds=3.0)
    >>> ratios({"a": [one, two], "b": [two, two]}, "a", lambda sample: sample.seconds)
    {'a': 1.0, 'b': 2.0}
    """
    return {
        name: statistics.median(
            of(mine) / max(of(theirs), 1e-9) for mine, theirs in zip(taken, samples[base], strict=True)
        )
        for name, taken in samples.items()
    }


def medians(taken: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    return statistics.median(map(of, taken))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(table(["", "s"], [["mesh", "1.0"]]))
    | | s |
    | --- | --- |
    | mesh | 1.0 |
    """
    lines = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "| --- " * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def goal(name: str, found: float, limit: float, *, most: bool = False) -> list[str]:
    """Return the row of a goal. most: the limit is the most, else the least

    >>> goal("calls", 9000, 8000), goal("round trip", 250.4, 200, most=True)
    (['calls', '>= 8,000', '9,000', 'reached'], ['round trip', '<= 200', '250', 'missed'])
    """
    reached = found <= limit if most else found >= limit
    return [name, f"{'<=' if most else '>='} {_shown(limit)}", _shown(found), "reached" if reached else "missed"]


def _shown(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")
