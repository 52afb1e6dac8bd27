"""Folding: lines that several ranks write alike are shown once, live.

Every pending line is a member of a *group*: equal lines of several ranks, or lines that ``alike`` calls so. Each rank's
own order decides which groups come before which. A line joins a group only if that makes no circle. Hence, for one
stream:

* each rank's lines are shown in its order, each exactly once;
* no line waits longer than ``HOLD_S`` and the time to the next tick, or for a rank that has ended;
* lines of different ranks are shown in the order of their coming to within that time. At one moment the first to come
  is first, unless it must wait for an earlier line of one of its ranks.

The module is pure: no clock, no descriptor.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

from msgspec import Struct

from mesh.core.lines import Lines
from mesh.screen.alike import Ranges, Shape, first_value, shape
from mesh.screen.units import HOLD_S, Unit, UnitCutter, seen

# The cost of lines in parts of 1 µs. Beyond a limit in HOLD_S they are not compared any more.
LINE_COST, NEW_LINE_COST = 2, 10
BURST_COST, LASTING_COST = 100_000, 60_000  # limits within HOLD_S, and within each of several HOLD_S in a row
GROUPS_TRIED = 32  # groups that are tried for a line
GROUPS_SEARCHED = 32  # groups that are searched before a line may join one
SHAPES_KEPT = 4096  # lines whose shape is remembered


class Folded(Struct, frozen=True):
    """Lines to show."""

    ranks: int  # its writers: bit r stands for rank r
    text: bytes  # one line or several, without the last newline
    head: IO[bytes] | None = None  # the beginning of the first line, if it was too long for memory; see lines.Lines
    is_mixed: bool = False  # numbers of several ranks stand in it, so that no rank has written it like this


class _Group:
    """A line, or a traceback, and the ranks that have written it."""

    __slots__ = ("after", "before", "first", "is_shown", "number", "ranges", "ranks", "text", "with_means")

    def __init__(self, number: int, text: bytes, first: Shape, ranks: int, *, with_means: bool) -> None:
        self.number = number  # in the order of coming
        self.with_means = with_means
        self.text, self.first, self.ranks = text, first, ranks
        self.ranges: Ranges | None = None  # None while all have written the same
        self.before: set[_Group] = set()  # the groups that some rank of it wrote just before
        self.after: dict[bytes, _Group] = {}  # some of those that came just after it, by key
        self.is_shown = False

    def is_equal(self, other: Shape) -> bool:
        """Return True if all its ranks wrote the same, and so did the other line."""
        return self.ranges is None and other.numbers == self.first.numbers

    def take(self, other: Shape, rank: int) -> bool:
        """Add the line of another rank; return False, and change nothing, if it is too different."""
        if self.is_equal(other):
            return True
        if len(other.numbers) != len(self.first.numbers):
            return False
        if self.ranges is not None:
            return self.ranges.take(other.numbers, rank)
        ranges = Ranges(self.first, self.ranks)
        if not ranges.take(other.numbers, rank):
            return False
        self.ranges = ranges
        return True

    def folded(self) -> Folded:
        if self.ranges is None:
            return Folded(self.ranks, self.text)
        return Folded(self.ranks, self.ranges.text(with_means=self.with_means), is_mixed=True)


class Fold:
    r"""Folds one stream of all ranks. What its methods return is to be shown in this order.

    >>> fold = Fold(range(2))
    >>> fold.feed(0, b"hello from a\nready\n", now=0.0)
    []
    >>> [(bin(one.ranks), one.text) for one in fold.feed(1, b"hello from b\nready\n", now=0.1)]
    [('0b1', b'hello from a'), ('0b10', b'hello from b'), ('0b11', b'ready')]
    """

    def __init__(self, ranks: Iterable[int], how: str = "numbers") -> None:
        """how: "numbers"; "exact": only equal lines are folded; "mean": numbers are shown as mean and deviation"""
        self._cutters = {rank: UnitCutter() for rank in ranks}
        self._running = sum(1 << rank for rank in self._cutters)
        self._exact, self._with_means = how == "exact", how == "mean"
        self._last: dict[int, _Group] = {}  # by rank, the group of its last line, which may be shown already
        self._open: dict[bytes, dict[_Group, None]] = {}  # by key, groups that are not shown
        self._due: list[tuple[float, int, _Group]] = []  # a heap by time; groups that are shown may be in it
        self._in_block: set[int] = set()  # ranks
        self._count = 0  # of all groups so far
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
            self._pressure.spent += NEW_LINE_COST * chunk.count(b"\n")
            return [*shown, *self._unfolded(rank, lines)]
        units = cutter.units(lines, now)
        (self._in_block.add if cutter.is_in_block else self._in_block.discard)(rank)
        return [*shown, *self._add(rank, units)]

    def end(self, rank: int, now: float) -> list[Folded]:
        """Note that a rank writes no more: no line waits for it, and its unfinished line ends here."""
        bit = 1 << rank
        if not self._running & bit:
            return []
        shown = self._end_line(rank, now)
        self._running &= ~bit
        pending = [group for groups in self._open.values() for group in groups]
        return [*shown, *self._show(group for group in pending if not self._running & ~group.ranks)]

    def end_all(self, now: float) -> list[Folded]:
        """Note that no rank writes any more. All that waits is shown, by the lowest rank of each line."""
        ranks = [rank for rank in self._cutters if self._running & 1 << rank]
        self._running |= 1 << max(self._cutters, default=0) + 1  # until all have ended, every line may have a writer
        shown = [one for rank in ranks for one in self._end_line(rank, now)]
        self._running = 0
        return [*shown, *self._show(_by_rank([group for groups in self._open.values() for group in groups]))]

    def _end_line(self, rank: int, now: float) -> list[Folded]:
        """End the unfinished line of a rank."""
        cutter = self._cutters[rank]
        left = cutter.end()
        if left is not None and left.head is not None:
            shown = self._unfolded(rank, left)
        else:
            shown = self._add(rank, [*cutter.units(left, now), *cutter.give_up_block()])
        self._in_block.discard(rank)
        return shown

    def tick(self, now: float) -> list[Folded]:
        """Return the lines that have waited long enough."""
        shown = []
        for rank in [r for r in self._in_block if self._cutters[r].since + HOLD_S <= now]:
            self._in_block.discard(rank)
            shown += self._add(rank, self._cutters[rank].give_up_block())
        due = []
        while self._due and (self._due[0][2].is_shown or self._due[0][0] <= now):
            due.append(heapq.heappop(self._due)[2])
        return [*shown, *self._show(due)]

    def bars(self) -> list[Folded]:
        """Return the unfinished lines that ranks overprint again and again; of several alike the slowest."""
        found: dict[bytes, list[tuple[int, bytes, Shape]]] = {}
        for rank, cutter in self._cutters.items():
            if bar := cutter.bar:
                seen_as = Shape(bar) if self._exact else shape(bar, bar=True)
                found.setdefault(seen_as.key, []).append((rank, bar, seen_as))
        told = []
        for members in found.values():
            members.sort(key=lambda member: first_value(member[2]))
            group = _Group(0, members[0][1], members[0][2], 1 << members[0][0], with_means=False)
            for rank, _, one in members[1:]:
                if group.take(one, rank):
                    group.ranks |= 1 << rank
            told.append(group.folded())
        return sorted(told, key=lambda one: one.ranks & -one.ranks)

    def _unfolded(self, rank: int, lines: Lines) -> list[Folded]:
        """Show lines unchanged, after all that this rank has written before."""
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
        self._pressure.spent += LINE_COST * len(units)
        for unit in units:
            like = self._shape(unit)
            last = self._last.get(rank)
            if last is not None and last.is_shown:
                last = None
            group = self._find(rank, like, last)
            if group is None:
                self._pressure.spent += NEW_LINE_COST
                self._count += 1
                group = _Group(self._count, unit.text, like, bit, with_means=self._with_means)
                self._open.setdefault(like.key, {})[group] = None
                heapq.heappush(self._due, (unit.since + HOLD_S, self._count, group))
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
            if len(self._known) >= SHAPES_KEPT:
                self._known.clear()
            known = self._known[unit.text] = shape(unit.text)
        return known

    def _find(self, rank: int, like: Shape, last: _Group | None) -> _Group | None:
        """Find a group for the next line of a rank, and add its numbers; None if there is none."""
        candidates = self._open.get(like.key)
        if not candidates:
            return None
        bit = 1 << rank
        if last is not None:  # usually all ranks write the same lines one after the other
            following = last.after.get(like.key)
            if following and not following.is_shown and not following.ranks & bit and following.take(like, rank):
                return following
        self._pressure.spent += NEW_LINE_COST
        similar = []
        for group in islice(candidates, GROUPS_TRIED):
            if not group.ranks & bit and not (last and _comes_before(group, last)):
                if group.is_equal(like):
                    return group
                similar.append(group)
        return next((group for group in similar if group.take(like, rank)), None)

    def _show(self, groups: Iterable[_Group]) -> list[Folded]:
        """Show groups, and first those that must come before them."""
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
    """The cost of comparing lines, lately."""

    def __init__(self) -> None:
        self.spent = 0
        self._before = 0  # cost in the HOLD_S before
        self._since = 0.0

    def is_high(self, now: float) -> bool:
        passed = now - self._since
        if passed >= HOLD_S:
            self._before = self.spent if passed < 2 * HOLD_S else 0
            self.spent, self._since = 0, now
        return self.spent > BURST_COST or self._before > LASTING_COST


def _comes_before(group: _Group, last: _Group) -> bool:
    """Return True if group must come before last, is the same, or if finding out takes long."""
    met, todo = {last}, [last]
    while todo:
        one = todo.pop()
        if one is group or len(met) > GROUPS_SEARCHED:
            return True
        new = [other for other in one.before if not other.is_shown and other not in met]
        met.update(new)
        todo += new
    return False


def _in_order(group: _Group) -> Iterator[_Group]:
    """Yield the unshown groups that must come before a group, in their order, then the group."""
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


def _by_rank(groups: list[_Group]) -> Iterator[_Group]:
    """Yield all groups that are not shown, each after those that must come before it, else by lowest rank."""
    missing = {group: sum(not other.is_shown for other in group.before) for group in groups}
    later: dict[_Group, list[_Group]] = {}
    for group in groups:
        for other in group.before:
            later.setdefault(other, []).append(group)
    ready = [(group.ranks & -group.ranks, group.number, group) for group, count in missing.items() if not count]
    heapq.heapify(ready)
    while ready:
        group = heapq.heappop(ready)[2]
        for other in later.get(group, ()):
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (other.ranks & -other.ranks, other.number, other))
        yield group


def _earlier(group: _Group) -> Iterator[_Group]:
    return iter(sorted(group.before, key=lambda one: one.number))
