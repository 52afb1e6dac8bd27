"""Numbers in the lines of ranks, by step: the least, the median and the greatest over ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from mesh.core.events import Output, Stream
from mesh.core.lines import LineCutter
from mesh.core.steps import WORDS, last_step

NAMES_MAX = 24  # numbers that are followed
STEPS_MAX = 20_000  # of one name; of more, about every second, fourth, ... one is kept
VALUES_MAX = 2_000_000  # of all names, steps and ranks: some 70 bytes each
POINTS_MAX = 600  # of one name that are returned
LINE_BYTES_MAX = 2000
# A word and a number: "loss 2.31", "lr=1e-3", "tokens/s: 12014".
_NUMBER = re.compile(
    rb"(?<![\w.])([A-Za-z_][\w/.-]{0,40}?)[ \t]*[:= ][ \t]*"
    rb"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity))(?![\w.])"
)
_STEP_WORD = re.compile(rb"(?i)(?:" + WORDS + rb")s?")


class Point(Struct, frozen=True):
    """The values of all ranks at one step."""

    step: int
    least: float
    median: float
    most: float
    least_rank: int
    most_rank: int
    bad: tuple[int, ...]  # ranks whose value is not a number, or infinite

    def row(self) -> list[object]:
        """Return it as JSON has it."""
        return [self.step, self.least, self.median, self.most, self.least_rank, self.most_rank, list(self.bad)]


class _Series:
    """The values of one name by step and rank."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, float]] = {}
        self._gap = 1  # of so many steps one is kept: the first that came
        self._taken: set[int] = set()  # groups of so many steps that have theirs

    def add(self, step: int, rank: int, value: float) -> int:
        """Add a value, unless another step stands for its own; return how many values are more."""
        by_rank = self.steps.get(step)
        if by_rank is None:
            if step // self._gap in self._taken:
                return 0
            self._taken.add(step // self._gap)
            by_rank = self.steps[step] = {}
        before = len(by_rank)
        by_rank[rank] = value
        return len(by_rank) - before

    def thin(self) -> int:
        """Drop about every second step; return how many values are fewer."""
        ordered = sorted(self.steps)
        if len(ordered) < 4:
            return 0
        gaps = sorted(after - before for before, after in pairwise(ordered))
        self._gap = 2 * max(self._gap, gaps[len(gaps) // 2])
        kept = {step // self._gap: step for step in reversed(ordered)}
        self._taken = set(kept)
        return sum(len(self.steps.pop(step)) for step in ordered if kept[step // self._gap] != step)


class Metrics:
    """Takes the output of ranks."""

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        """values_max: values in memory; of more, fewer steps are kept"""
        self._count, self._limit, self._values_max = 0, values_max, values_max
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._found: dict[str, _Series] = {}  # by name
        self._last: dict[int, int] = {}  # by rank, the last step

    def output(self, event: Output) -> None:
        """Take a chunk."""
        if event.stream not in (Stream.STDOUT, Stream.STDERR):
            return
        lines = self._cutters.setdefault((event.rank, event.stream), LineCutter()).feed(event.data)
        if lines is None or lines.head is not None:
            return
        for line in lines.text.split(b"\n"):
            if line:
                self._line(event.rank, line[:LINE_BYTES_MAX])

    def points(self) -> dict[str, list[Point]]:
        """Return the points of each name by step, thinned out to POINTS_MAX; names with one step are left out."""
        return {
            name: [_point(step, found.steps[step]) for step in _thinned(sorted(found.steps))]
            for name, found in self._found.items()
            if len(found.steps) > 1
        }

    def _line(self, rank: int, line: bytes) -> None:
        if found := last_step(line + b"\n"):
            self._last[rank] = found[1]
        step = self._last.get(rank)
        if step is None:
            return
        for match in _NUMBER.finditer(line):
            if _STEP_WORD.fullmatch(match[1]):
                continue
            name = match[1].decode("ascii", "replace")
            series = self._found.get(name)
            if series is None:
                if len(self._found) >= NAMES_MAX:
                    continue
                series = self._found[name] = _Series()
            self._count += series.add(step, rank, float(match[2]))
            if len(series.steps) > STEPS_MAX:
                self._count -= series.thin()
            if self._count > self._limit:
                self._count -= sum(one.thin() for one in self._found.values())
                self._limit = max(self._values_max, 2 * self._count)  # a few steps of many ranks stay


def _thinned(steps: list[int]) -> Iterable[int]:
    if len(steps) <= POINTS_MAX:
        return steps
    return [steps[place * (len(steps) - 1) // (POINTS_MAX - 1)] for place in range(POINTS_MAX)]


def _point(step: int, by_rank: dict[int, float]) -> Point:
    good = sorted((value, rank) for rank, value in by_rank.items() if math.isfinite(value))
    bad = tuple(sorted(rank for rank, value in by_rank.items() if not math.isfinite(value)))
    if not good:
        return Point(step, 0.0, 0.0, 0.0, -1, -1, bad)
    return Point(step, good[0][0], good[len(good) // 2][0], good[-1][0], good[0][1], good[-1][1], bad)
