"""Folding: what several ranks write alike becomes one, live.

Every pending line is a member of a *group*: equal lines of several ranks, or lines that ``alike`` calls so. The order
in which each rank writes says which groups come before which; a line joins a group only if that makes no circle. Hence,
for one stream:

* what a rank has written is shown in its order, nothing is lost and nothing is shown twice;
* nothing waits longer than ``HOLD`` seconds and the time to the next tick, and nothing waits for a rank that has ended;
* among different ranks the order is that of coming to within that time, and of what is shown at one moment the first
  to come is first, unless it must wait for an earlier line of one of its ranks.

It is pure: no clock, no descriptor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

from msgspec import Struct

from mesh.core.lines import Lines
from mesh.screen.alike import Ranges, Shape, first_value, shape
from mesh.screen.units import HOLD, Unit, UnitCutter, seen

# What lines cost in time, in parts of 1 µs; beyond a limit in HOLD seconds they are not compared any more.
LINE, NEW_LINE = 2, 10
BURST, LASTING = 100_000, 60_000  # in one such time, and in one after the other
CANDIDATES = 32  # groups that are tried for a line
STEPS = 32  # groups that are looked at to see whether a line may join one
KNOWN = 4096  # lines of which the shape is remembered


class Folded(Struct, frozen=True):
    """Something to be shown."""

    ranks: int  # who wrote it: bit r stands for rank r
    text: bytes  # one line or several, without the last newline
    head: IO[bytes] | None = None  # the beginning of the first line, if it was too long for memory; see lines.Lines


class _Group:
    """A line, or a traceback, and the ranks that have written it."""

    __slots__ = ("after", "before", "first", "is_shown", "number", "ranges", "ranks", "text")

    def __init__(self, number: int, text: bytes, first: Shape, ranks: int) -> None:
        self.number = number  # in the order of coming
        self.text, self.first, self.ranks = text, first, ranks
        self.ranges: Ranges | None = None  # None while all have written the same
        self.before: set[_Group] = set()  # the groups that some rank of it wrote just before
        self.after: dict[bytes, _Group] = {}  # some of those that came just after it, by key
        self.is_shown = False

    def is_equal(self, other: Shape) -> bool:
        """Whether all ranks have written the very same."""
        return self.ranges is None and other.numbers == self.first.numbers

    def take(self, other: Shape, rank: int) -> bool:
        """Add the line of another rank; False, and nothing is changed, if it is too different."""
        if self.is_equal(other):
            return True
        if len(other.numbers) != len(self.first.numbers):
            return False
        if self.ranges is not None:
            return self.ranges.take(other.numbers, rank)
        is_only = self.ranks & (self.ranks - 1) == 0
        ranges = Ranges(self.first, self.ranks.bit_length() - 1, is_only=is_only)
        if not ranges.take(other.numbers, rank):
            return False
        self.ranges = ranges
        return True

    def folded(self) -> Folded:
        return Folded(self.ranks, self.text if self.ranges is None else self.ranges.text())


class Fold:
    r"""Folds one stream of all ranks. What its methods return is to be shown in this order.

    >>> fold = Fold(range(2))
    >>> fold.feed(0, b"hello from a\nready\n", now=0.0)
    []
    >>> [(bin(one.ranks), one.text) for one in fold.feed(1, b"hello from b\nready\n", now=0.1)]
    [('0b1', b'hello from a'), ('0b10', b'hello from b'), ('0b11', b'ready')]
    """

    def __init__(self, ranks: Iterable[int], *, exact: bool = False) -> None:
        """exact: only equal lines are folded."""
        self._cutters = {rank: UnitCutter() for rank in ranks}
        self._running = sum(1 << rank for rank in self._cutters)
        self._exact = exact
        self._last: dict[int, _Group] = {}  # by rank, the group of its last line; it may have been shown
        self._open: dict[bytes, dict[_Group, None]] = {}  # by key, what is not shown
        self._due: list[tuple[float, int, _Group]] = []  # a heap by time; those that were shown may be in it
        self._in_block: set[int] = set()  # ranks
        self._count = 0  # groups, ever
        self._known: dict[bytes, Shape] = {}
        self._pressure = _Pressure()

    @property
    def is_waiting(self) -> bool:
        """True while something is not shown."""
        return bool(self._open or self._in_block)

    def feed(self, rank: int, chunk: bytes, now: float) -> list[Folded]:
        """Add what a rank wrote; now: seconds of a clock that never goes back."""
        shown = self.tick(now)
        cutter = self._cutters[rank]
        lines = cutter.feed(chunk)
        if lines is None:
            return shown
        if self._pressure.is_high(now) or lines.head is not None:
            self._pressure.spent += NEW_LINE * chunk.count(b"\n")
            return [*shown, *self._unfolded(rank, lines)]
        units = cutter.units(lines, now)
        (self._in_block.add if cutter.is_in_block else self._in_block.discard)(rank)
        return [*shown, *self._add(rank, units)]

    def end(self, rank: int, now: float) -> list[Folded]:
        """A rank writes no more: nobody waits for it, and a line that it has not ended is one."""
        cutter, bit = self._cutters[rank], 1 << rank
        if not self._running & bit:
            return []
        left = cutter.end()
        if left is not None and left.head is not None:
            shown = self._unfolded(rank, left)
        else:
            shown = self._add(rank, [*cutter.units(left, now), *cutter.give_up_block()])
        self._in_block.discard(rank)
        self._running &= ~bit
        pending = [group for groups in self._open.values() for group in groups]
        return [*shown, *self._show(group for group in pending if not self._running & ~group.ranks)]

    def tick(self, now: float) -> list[Folded]:
        """Time has passed."""
        shown = []
        for rank in [r for r in self._in_block if self._cutters[r].since + HOLD <= now]:
            self._in_block.discard(rank)
            shown += self._add(rank, self._cutters[rank].give_up_block())
        due = []
        while self._due and (self._due[0][2].is_shown or self._due[0][0] <= now):
            due.append(heapq.heappop(self._due)[2])
        return [*shown, *self._show(due)]

    def bars(self) -> list[Folded]:
        """The lines that are written again and again in their place, and have not ended: the slowest stands for all."""
        found: dict[bytes, list[tuple[int, bytes, Shape]]] = {}
        for rank, cutter in self._cutters.items():
            if bar := cutter.bar:
                seen_as = Shape(bar) if self._exact else shape(bar, bar=True)
                found.setdefault(seen_as.key, []).append((rank, bar, seen_as))
        told = []
        for members in found.values():
            members.sort(key=lambda member: first_value(member[2]))
            group = _Group(0, members[0][1], members[0][2], 1 << members[0][0])
            for rank, _, one in members[1:]:
                if group.take(one, rank):
                    group.ranks |= 1 << rank
            told.append(group.folded())
        return sorted(told, key=lambda one: one.ranks & -one.ranks)

    def _unfolded(self, rank: int, lines: Lines) -> list[Folded]:
        """Show lines as they are, after all that this rank has written before."""
        shown = self._add(rank, self._cutters[rank].give_up_block())
        self._in_block.discard(rank)
        if rank in self._last:
            shown += self._show([self._last.pop(rank)])
        text = lines.text.removesuffix(b"\n")
        if lines.head is None and b"\r" in text:
            text = seen(text)
        return [*shown, Folded(1 << rank, text, lines.head)]

    def _add(self, rank: int, units: list[Unit]) -> list[Folded]:
        shown: list[Folded] = []
        bit = 1 << rank
        self._pressure.spent += LINE * len(units)
        for unit in units:
            like = self._shape(unit)
            last = self._last.get(rank)
            if last is not None and last.is_shown:
                last = None
            group = self._find(rank, like, last)
            if group is None:
                self._pressure.spent += NEW_LINE
                self._count += 1
                group = _Group(self._count, unit.text, like, bit)
                self._open.setdefault(like.key, {})[group] = None
                heapq.heappush(self._due, (unit.since + HOLD, self._count, group))
            else:
                group.ranks |= bit
            if last is not None:
                group.before.add(last)
                last.after[like.key] = group
            self._last[rank] = group
            if not self._running & ~group.ranks:
                shown += self._show([group])
        return shown

    def _shape(self, unit: Unit) -> Shape:
        if self._exact:
            return Shape(unit.text)
        if unit.is_bar:
            return shape(unit.text, bar=True)
        known = self._known.get(unit.text)
        if known is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            known = self._known[unit.text] = shape(unit.text)
        return known

    def _find(self, rank: int, like: Shape, last: _Group | None) -> _Group | None:
        """A group that the next line of a rank may join; its numbers are in it then."""
        candidates = self._open.get(like.key)
        if not candidates:
            return None
        bit = 1 << rank
        if last is not None:  # as a rule all write the same one after the other
            following = last.after.get(like.key)
            if following and not following.is_shown and not following.ranks & bit and following.take(like, rank):
                return following
        self._pressure.spent += NEW_LINE
        similar = []
        for group in islice(candidates, CANDIDATES):
            if not group.ranks & bit and not (last and _comes_before(group, last)):
                if group.is_equal(like):
                    return group
                similar.append(group)
        return next((group for group in similar if group.take(like, rank)), None)

    def _show(self, groups: Iterable[_Group]) -> list[Folded]:
        """Show groups, and before them what must come before them."""
        shown = []
        for group in groups:
            for one in _in_order(group):
                one.is_shown = True
                one.before.clear()
                one.after.clear()
                same = self._open[one.first.key]
                del same[one]
                if not same:
                    del self._open[one.first.key]
                shown.append(one.folded())
        return shown


class _Pressure:
    """Whether more comes than can be compared."""

    def __init__(self) -> None:
        self.spent = 0
        self._before = 0  # what was spent in the HOLD seconds before
        self._since = 0.0

    def is_high(self, now: float) -> bool:
        passed = now - self._since
        if passed >= HOLD:
            self._before = self.spent if passed < 2 * HOLD else 0
            self.spent, self._since = 0, now
        return self.spent > BURST or self._before > LASTING


def _comes_before(group: _Group, last: _Group) -> bool:
    """Whether group must come before last, or is the same; True as well where that takes long to find out."""
    met, todo = {last}, [last]
    while todo:
        one = todo.pop()
        if one is group or len(met) > STEPS:
            return True
        new = [other for other in one.before if not other.is_shown and other not in met]
        met.update(new)
        todo += new
    return False


def _in_order(group: _Group) -> Iterator[_Group]:
    """What must come before a group, what came first first, and the group; nothing that was shown."""
    if group.is_shown:
        return
    path = [(group, _earlier(group))]
    while path:
        one, earlier = path[-1]
        for other in earlier:
            if not other.is_shown:
                path.append((other, _earlier(other)))
                break
        else:
            path.pop()
            yield one


def _earlier(group: _Group) -> Iterator[_Group]:
    return iter(sorted(group.before, key=lambda one: one.number))
