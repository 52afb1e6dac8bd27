"""Runs that are looked at: their board, events and folded lines, brought up to date while somebody looks."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator

from mesh.pages.board import Board
from mesh.pages.events import Recorded, read_events
from mesh.pages.fields import text
from mesh.pages.lines import EVERYTHING, Choice, FoldedOutput, Shown
from mesh.pages.timeline import Timeline
from mesh.rundir.layout import EVENTS, INDEX, LOGS, RECORD
from mesh.rundir.records import Record, State, read_record
from mesh.ui.search import ChildSearch

VIEWS_MAX = 16  # that are kept for the next look
FRESH_S = 0.2  # for which the result of a look holds
CLOSE_LIMIT_S = 1.0
SLICE_S = 0.1  # of folding in one look


class View:
    """A part of a run's output. Every method may be called from any thread."""

    def __init__(self, record: Record, choice: Choice) -> None:
        """Raises re.error for a wrong expression, and OSError."""
        self.record, self.lock = record, threading.RLock()
        self.users = 0
        self.board = Board(record.placement) if choice == EVERYTHING else None
        self.events: list[Recorded] = []
        self.timeline = Timeline(record.hosts, record.created)
        self.trees: dict[str, str] = {}  # the tree hash of the workspace on each host
        self.version = 0  # grows with each change
        self.more = True  # there is output that is not folded yet
        self._place = 0
        self._looked_at = 0.0
        self._seen: tuple[object, ...] = ()
        self._choice = choice
        self._output = self._fold()

    def look(self) -> bool:
        """Bring the view up to date for a little time; return True if there is more to fold. Raises OSError."""
        with self.lock:
            now = time.monotonic()
            if now < self._looked_at + FRESH_S and not self.more:
                return False
            self.record = read_record(self.record.directory)
            if self.is_stale():  # another client goes on with the run
                self._output.close()
                self._output = self._fold()
            if not self.record.about:
                raise FileNotFoundError(self.record.directory)
            are_all_seen = self._take_events(self.board) if self.board else False
            self.more = self._output.advance(SLICE_S)
            if self.board:
                self.board.find_steps()
                if self.record.state is State.ENDED and are_all_seen:
                    self.board.end(self.record.about)
            seen = (len(self._output), self._output.is_complete, self._place, self.record.state, self._steps())
            if seen != self._seen:
                self._seen = seen
                self.version += 1
            self._looked_at = time.monotonic()
            return self.more

    def count(self) -> tuple[int, bool]:
        """Return how many lines there are, and whether more may come."""
        with self.lock:
            return len(self._output), self._output.is_complete

    def window(self, first: int, count: int) -> list[Shown]:
        """Return some lines."""
        with self.lock:
            return self._output.window(first, count)

    def members(self, number: int) -> list[int]:
        """Return the ranks of a line."""
        with self.lock:
            return self._output.members(number)

    def first_of(self, rank: int, number: int) -> int:
        """Return the first line of a rank from a number on; -1: there is none."""
        with self.lock:
            return self._output.first_of([rank], number)

    def events_after(self, place: int, most: int) -> list[Recorded]:
        """Return the events after a place of events.jsonl."""
        with self.lock:
            first = bisect.bisect_right(self.events, place, key=lambda one: one.end)
            return self.events[first : first + most]

    def is_stale(self) -> bool:
        """Return True if output has come after the end that this view has seen."""
        with self.lock:
            return self._output.is_complete and self._index_size() > self._index_seen()

    def close(self) -> None:
        """Let go of the files."""
        self._output.stop()  # a slow search has the lock
        if self.lock.acquire(timeout=CLOSE_LIMIT_S):  # a file that gives no answer has it for ever
            try:
                self._output.close()
            finally:
                self.lock.release()

    def _fold(self) -> FoldedOutput:
        return FoldedOutput(self.record, self._choice, self.board.output if self.board else None, ChildSearch)

    def _take_events(self, board: Board) -> bool:
        """Note the next events; return True if there are no more. A crash may have cut the last line."""
        before = self._place
        with contextlib.suppress(FileNotFoundError):
            found, self._place = read_events(self.record.directory, self._place)
            for one in found:
                board.note(one.fields)
                self.timeline.note(one.fields)
                if text(one.fields, "event") == "synced":
                    self.trees[text(one.fields, "host")] = text(one.fields, "tree")
            self.events += found
        return self._place in (before, self._size())

    def _size(self) -> int:
        try:
            return (self.record.directory / EVENTS).stat().st_size
        except OSError:
            return self._place

    def _steps(self) -> tuple[object, ...]:
        return tuple((cell.step, cell.spoke) for cell in self.board.cells) if self.board else ()

    def _index_size(self) -> int:
        try:
            size = (self.record.directory / LOGS / INDEX).stat().st_size
        except OSError:
            return 0
        return size - size % RECORD.size  # a crash may have cut the last record

    def _index_seen(self) -> int:
        return self._output.index_end


class Views:
    """The views that are kept, the one that was used longest ago is the first to go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: OrderedDict[tuple[str, Choice], View] = OrderedDict()

    @contextlib.contextmanager
    def of(self, record: Record, choice: Choice = EVERYTHING) -> Iterator[View]:
        """Yield the view of a run, which nobody closes meanwhile. Raises re.error and OSError."""
        key = record.run, choice
        with self._lock:
            view = self._views.get(key)
            if view and not view.users and view.is_stale():
                self._views.pop(key).close()
                view = None
            if view is None:
                view = self._views[key] = View(record, choice)
            self._views.move_to_end(key)
            view.users += 1
            self._drop()
        try:
            yield view
        finally:
            with self._lock:
                view.users -= 1
                self._drop()

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            while self._views:
                self._views.popitem()[1].close()

    def _drop(self) -> None:
        for key in [key for key, view in self._views.items() if not view.users]:
            if len(self._views) <= VIEWS_MAX:
                return
            self._views.pop(key).close()
