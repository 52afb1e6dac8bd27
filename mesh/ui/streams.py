"""Streams of events (SSE): what has changed of a run, and the cards of the runs that are on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from itertools import islice, takewhile

from mesh.pages.differences import tree_words
from mesh.pages.timeline import mark_of
from mesh.rundir.records import Record, State
from mesh.ui.encoding import as_json
from mesh.ui.live import View, Views
from mesh.ui.pumps import IDLE_LOOK_S, LOOK_S, PumpError, Pumps
from mesh.ui.runlist import DAY_S, RunList, row_of

EVENTS_MAX = 500  # in one message
CARDS_MAX = 12
SOON_S = 0.01  # to the next look where there is more to fold
RUNS_OF_DAY_MAX = 200


def message(name: str, data: object, place: int | None = None) -> bytes:
    """Return a message of a stream. place: where another stream goes on after this message"""
    lead = "" if place is None else f"id: {place}\n"
    return f"{lead}event: {name}\ndata: {as_json(data)}\n\n".encode()


async def run_stream(views: Views, pumps: Pumps, record: Record, place: int) -> AsyncIterator[bytes]:
    """Yield the state of a run and its events, at once and after each change.

    place: bytes of events.jsonl that the reader has; their events are not sent again
    """
    with views.of(record) as view:
        async with pumps.of(f"run {record.run}", _look_at(view)) as pump:
            rows: dict[int, list[object]] = {}
            version = -1
            while True:
                try:
                    await pump.wait(version)
                except OSError:
                    yield message("gone", {"error": f"run {record.run}: its directory is gone", "hint": "mesh runs"})
                    return
                except PumpError as error:
                    yield message("error", {"error": str(error), "hint": error.hint})
                    return
                if pump.is_closed:
                    return
                if pump.version == version:
                    yield b": \n\n"
                    continue
                version = pump.version
                for data, end in _changes(view, rows, place):
                    place = end
                    yield message("run", data, place)


def _look_at(view: View) -> Callable[[], tuple[int, float]]:
    def look() -> tuple[int, float]:
        more = view.look()
        is_on = view.record.state is State.ON
        return view.version, SOON_S if more else LOOK_S if is_on else IDLE_LOOK_S

    return look


def _changes(view: View, rows: dict[int, list[object]], place: int) -> list[tuple[dict[str, object], int]]:
    """Return messages with what has changed, and the place after the events of each. rows: those that were sent"""
    found = []
    with view.lock:
        while True:
            events = view.events_after(place, EVENTS_MAX)
            place = events[-1].end if events else place
            data = state_of(view, rows)
            data["events"] = [mark_of(one.fields).row() for one in events]
            found.append((data, place))
            if len(events) < EVENTS_MAX:
                return found


def state_of(view: View, rows: dict[int, list[object]]) -> dict[str, object]:
    """Return the state of a run. rows: the rows of ranks that were sent; only others are in it"""
    assert view.board
    lines, is_complete = view.count()
    new = {cell.rank: row for cell in view.board.cells if (row := cell.row()) != rows.get(cell.rank)}
    rows |= new
    return {
        "now": time.time(),
        "lines": lines,
        "complete": is_complete and not view.more,
        "folding": view.more,
        "row": row_of(view.record),
        "counts": view.board.counts(),
        "ranks": list(new.values()),
        "lease": view.record.spec.rules.lease,
        "tree": tree_words(view.trees),
    }


# ---- the cards of the runs that are on


class Cards:
    """The cards of the runs that are on, and the rows of this day's runs."""

    def __init__(self, views: Views, runs: RunList) -> None:
        self._views, self._runs = views, runs
        self._text = ""
        self._version = 0

    @property
    def text(self) -> str:
        """The last state, as JSON."""
        return self._text

    def look(self) -> tuple[int, float]:
        """Look at all runs that are on; return the version of the state, and the seconds to the next look."""
        cards = []
        for record in islice(self._runs.live(), CARDS_MAX):
            try:
                with self._views.of(record) as view:
                    view.look()
                    cards.append(card_of(view))
            except OSError:  # it is removed meanwhile, or has just begun
                continue
        since = time.time() - DAY_S
        today = list(takewhile(lambda row: _created(row) > since, self._runs.newest(RUNS_OF_DAY_MAX)))
        text = as_json({"cards": cards, "today": today})
        if text != self._text:
            self._text = text
            self._version += 1
        return self._version, LOOK_S


async def now_stream(pumps: Pumps, cards: Cards) -> AsyncIterator[bytes]:
    """Yield the cards, at once and after each change."""
    async with pumps.of("now", cards.look) as pump:
        version = -1
        while True:
            try:
                await pump.wait(version)
            except PumpError as error:
                yield message("error", {"error": str(error), "hint": error.hint})
                return
            if pump.is_closed:
                return
            if pump.version == version:
                yield b": \n\n"
                continue
            version = pump.version
            yield f'event: now\ndata: {{"now":{time.time()},"state":{cards.text}}}\n\n'.encode()


def _created(row: dict[str, object]) -> float:
    created = row.get("created")
    return created if isinstance(created, float) else 0.0


def card_of(view: View) -> dict[str, object]:
    """Return the card of a run: its ranks by state, the last line, and the slowest rank."""
    with view.lock:
        board = view.board
        assert board
        lines, _ = view.count()
        last = view.window(lines - 1, 1) if lines else []
        slowest = board.slowest()
        quiet = max((cell.spoke for cell in board.cells), default=0.0)
        return {
            **row_of(view.record),
            "counts": board.counts(),
            "ranks": len(board.cells),
            "last": last[0].row() if last else None,
            "spoke": quiet,
            "slowest": None if slowest is None else [slowest.rank, slowest.unit, slowest.step],
            "lease": view.record.spec.rules.lease,
        }
