"""Numbers in the lines of ranks, by step: the least, the median and the greatest over ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from msgspec import Struct

from mesh.core.events import Output, Stream
from mesh.core.lines import LineCutter
from mesh.core.steps import WORDS, last_step

NAMES_MAX = 24  # numbers that are followed
STEPS_MAX = 20_000  # of one name
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


class Metrics:
    """Takes the output of ranks."""

    def __init__(self) -> None:
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._found: dict[str, dict[int, dict[int, float]]] = {}  # by name, step and rank
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
            name: [_point(step, steps[step]) for step in _thinned(sorted(steps))]
            for name, steps in self._found.items()
            if len(steps) > 1
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
            steps = self._found.get(name)
            if steps is None:
                if len(self._found) >= NAMES_MAX:
                    continue
                steps = self._found[name] = {}
            if step in steps or len(steps) < STEPS_MAX:
                steps.setdefault(step, {})[rank] = float(match[2])


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
