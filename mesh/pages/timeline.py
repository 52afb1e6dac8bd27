"""The timeline of a run: a bar for each phase of each host, and a mark for each event, on this machine's clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mesh.core.events import CONNECTING
from mesh.pages.fields import Fields, number, text
from mesh.pages.verdicts import how

CONNECT, SYNC, PRERUN, READY, RUN, END = "connect", "sync", "prerun", "ready", "run", "end"
SILENT, LOST = "silent", "lost"
PHASES = (CONNECT, SYNC, PRERUN, READY, RUN, END, SILENT, LOST)
# The phase that an event of a host begins.
_BEGINS = {"connected": SYNC, "synced": PRERUN, "ready": READY, "started": RUN, "restarted": RUN}
_TEXTS = ("text", "message", "reason", "owner", "why")


@dataclass
class Bar:
    """A phase of a host. Times are seconds since the epoch."""

    host: str
    phase: str
    begin: float
    end: float  # of a phase that goes on: the time of its last event

    def row(self) -> list[object]:
        """Return it as JSON has it."""
        return [self.host, self.phase, self.begin, self.end]


@dataclass
class Mark:
    """An event."""

    time: float
    name: str
    host: str  # "": of the run as a whole
    rank: int  # -1: of no rank
    text: str

    def row(self) -> list[object]:
        """Return it as JSON has it."""
        return [self.time, self.name, self.host, self.rank, self.text]


@dataclass
class Timeline:
    """Takes the events of a run in their order."""

    hosts: tuple[str, ...]
    created: float
    marks: list[Mark] = field(default_factory=list)
    _bars: list[Bar] = field(default_factory=list)
    _open: dict[str, Bar] = field(init=False)  # by host
    _silent: dict[str, Bar] = field(default_factory=dict)
    _running: dict[str, set[object]] = field(default_factory=dict)  # ranks by host

    def __post_init__(self) -> None:
        self._open = {host: Bar(host, CONNECT, self.created, self.created) for host in self.hosts}

    def note(self, event: Fields) -> None:
        """Take an event of events.jsonl."""
        name, host, time = text(event, "event"), text(event, "host"), number(event, "time") or 0.0
        self.marks.append(mark_of(event))
        if host not in self.hosts:
            return
        if name in ("started", "restarted"):
            self._running.setdefault(host, set()).add(event.get("rank"))
        if phase := _BEGINS.get(name):
            self._move(host, phase, time)
        elif name == "exited":
            ranks = self._running.setdefault(host, set())
            ranks.discard(event.get("rank"))
            if not ranks:
                self._move(host, END, time)
        elif name == "silent":
            self._be_silent(host, time, number(event, "seconds") or 0.0)
        elif name == "lost":
            self._move(host, LOST, time)
        elif name == "gone" or (name == "failed" and text(event, "step") in CONNECTING):
            self._close(host, time)

    def bars(self, until: float) -> list[Bar]:
        """Return all bars, with silence last, because it is drawn over other phases.

        until: the end of those that are still open
        """
        still = [Bar(bar.host, bar.phase, bar.begin, max(bar.begin, until)) for bar in self._still()]
        found = [bar for bar in (*self._bars, *still) if bar.end > bar.begin]
        return sorted(found, key=lambda bar: bar.phase == SILENT)

    def _still(self) -> Iterable[Bar]:
        return (*self._open.values(), *self._silent.values())

    def _move(self, host: str, phase: str, time: float) -> None:
        bar = self._open.get(host)
        if bar is None or bar.phase in (phase, LOST):
            return
        self._close(host, time)
        self._open[host] = Bar(host, phase, max(time, bar.begin), time)

    def _close(self, host: str, time: float) -> None:
        if bar := self._open.pop(host, None):
            self._bars.append(Bar(host, bar.phase, bar.begin, max(bar.begin, time)))
        self._be_silent(host, time, 0.0)

    def _be_silent(self, host: str, time: float, seconds: float) -> None:
        if seconds:
            self._silent.setdefault(host, Bar(host, SILENT, time - seconds, time))
        elif bar := self._silent.pop(host, None):
            self._bars.append(Bar(host, SILENT, bar.begin, max(bar.begin, time)))


def mark_of(event: Fields) -> Mark:
    """Return the mark of an event."""
    rank, name = event.get("rank"), text(event, "event")
    is_of_rank = isinstance(rank, int) and name in ("started", "exited", "lost", "behind", "left_out", "restarted")
    words = next((found for key in _TEXTS if (found := text(event, key))), "")
    if name == "exited":
        words = how(event)
    elif name == "silent":
        words = f"{number(event, 'seconds') or 0.0:.0f} s"
    elif name == "behind":
        words = f"{number(event, 'steps') or 0.0:.0f} {text(event, 'unit')}s"
    elif name == "synced":
        words = f"{number(event, 'bytes') or 0.0:.0f} bytes, {number(event, 'seconds') or 0.0:.2f} s"
    mark = rank if is_of_rank and isinstance(rank, int) else -1
    return Mark(number(event, "time") or 0.0, name, text(event, "host"), mark, words)
