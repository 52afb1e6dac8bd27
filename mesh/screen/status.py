"""The status of every rank, in one line and in several: running, quiet, or how it ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.escapes import plain
from mesh.core.events import CONNECTING, Behind, Event, Exited, Lost, Output, PrepareFailed, Silent, Started, Stream
from mesh.core.look import Paint
from mesh.core.nodes import Restarted
from mesh.core.ranks import counted, few, told_ranks

QUIET_START_S = 1.0  # of a run, before which its status is not shown
QUIET_S = 30.0  # without output, after which a rank is called quiet
SILENCE_S = 60.0  # without output of any rank, after which a notice is due where there is no status line
HANG_S = 300.0  # without output of any rank, after which the status offers `mesh stacks`
TAIL_BYTES = 400  # of a rank's output that are kept for its last line
QUOTED_CHARACTERS = 80  # of a last line
REPORT_LINES = 20


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of a run that its status uses."""

    noun: str = "rank"  # or "host" in a setup
    run: str = ""  # the run whose stacks can be asked for; "": none
    host_grace: float = 0.0  # seconds that a host may be silent before it is lost; 0: unknown


@dataclass
class _Rank:
    """The state of a rank."""

    started: float | None = None  # seconds
    spoke: float | None = None  # when it wrote last
    tail: bytes = b""  # the end of its output
    end: str = ""  # "done", "failed" or "lost"; "" while it runs
    told: str = ""  # how it ended, in words


class Status:
    """Takes the events of a run. Times are seconds of one clock."""

    def __init__(self, placement: Placement, facts: Facts = Facts(), paint: Paint = Paint(False)) -> None:  # noqa: B008
        self._placement, self._noun, self._run = placement, facts.noun, facts.run
        self._host_grace, self._paint = facts.host_grace, paint
        self._silent: dict[int, float] = {}  # since when, by node
        self._behind: dict[int, Behind] = {}  # by rank
        self._ranks = [_Rank() for _ in range(placement.world_size)]
        self._heard: float | None = None  # when a rank started, ended or wrote last
        self._began: float | None = None

    def handle(self, event: Event, now: float) -> None:
        """Note an event."""
        match event:
            case Output(rank=number, stream=stream, data=data) if stream not in (Stream.PRERUN, Stream.MODULE):
                rank = self._ranks[number]
                rank.spoke = self._heard = now
                rank.tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (rank.tail + data)[-TAIL_BYTES:]
            case Started(rank=number):
                self._ranks[number].started = self._heard = now
                self._began = self._began or now
            case Silent(node=node, seconds=seconds):
                if seconds:
                    self._silent[node] = now - seconds
                else:
                    self._silent.pop(node, None)
            case Behind(rank=number, steps=steps):
                if steps:
                    self._behind[number] = event
                else:
                    self._behind.pop(number, None)
            case Exited(rank=number) as exited:
                self._heard = now
                self._end(self._ranks[number], "failed" if exited.status else "done", exited.told())
            case Restarted(node=node, rank=number):
                if self._placement.node(number) != node:  # its host may be lost
                    self._placement = self._placement.moved([(number, node)])
                    self._ranks[number].end = ""
                    self._heard = now
            case PrepareFailed(node=node, step=step, message=reason) if step in CONNECTING:
                for number in self._placement.ranks(node):
                    self._end(self._ranks[number], "lost", reason)
            case Lost(node=node, reason=reason):
                self._heard = now
                for number in self._placement.ranks(node):
                    self._end(self._ranks[number], "lost", reason)

    def line(self, now: float) -> str:
        """Return the status in one line; "" just after the first rank has started and after the last has ended."""
        if self._began is None or now - self._began < QUIET_START_S or not self._running():
            return ""
        about = [self._told_silent(now), self._told_behind(), self._told_quiet(now)]
        troubles = [self._paint.warning(text) for text in about if text]
        return ", ".join([*self._counts(self._silent_ranks()), *troubles, _clock(now - self._began)])

    def silence(self, now: float) -> str:
        """Return the notice that is due after SILENCE_S without output of any rank; "" if none is."""
        running = self._running()
        if self._heard is None or not running or now - self._heard < SILENCE_S:
            return ""
        since = {number: self._since(self._ranks[number]) for number in running}
        longer = [number for number, at in since.items() if at < self._heard - QUIET_S]
        more = ""
        if longer and len(longer) <= len(running) / 2:
            more = f", {told_ranks(longer, self._noun)} for {_seconds(now - since[n] for n in longer)}"
        silence = now - self._heard
        return f"no output for {silence:.0f} s: {', '.join(self._counts())}{more}{self._offer(silence)}"

    def report(self, now: float) -> list[str]:
        """Return the status of every rank; ranks of equal status share a line."""
        if self._began is None:
            return [f"no {self._noun} has started yet"]
        groups: dict[tuple[str, str], list[int]] = {}
        silent = self._silent_ranks()
        for number, rank in enumerate(self._ranks):
            kind = ("silent", "") if number in silent else self._kind(rank, now)
            groups.setdefault(kind, []).append(number)
        lines = [self._told(kind, words, numbers, now) for (kind, words), numbers in groups.items()]
        if len(lines) > REPORT_LINES:
            lines = [*lines[: REPORT_LINES - 1], f"and {len(lines) - REPORT_LINES + 1} lines more"]
        return lines

    def _end(self, rank: _Rank, end: str, words: str) -> None:
        if not rank.end:
            rank.end, rank.told = end, words

    def _running(self) -> list[int]:
        return [number for number, rank in enumerate(self._ranks) if not rank.end]

    def _counts(self, without: Iterable[int] = ()) -> list[str]:
        """Count the ranks in each state; without: running ones that are named beside it."""
        ends = [rank.end or "running" for rank in self._ranks]
        paint = {"done": self._paint.good, "failed": self._paint.bad, "lost": self._paint.bad}
        running = ends.count("running") - len(set(without))
        counts = [f"{counted(running, self._noun)} running"] if running else []
        return counts + [paint[end](f"{ends.count(end)} {end}") for end in paint if end in ends]

    def _silent_ranks(self) -> list[int]:
        nodes = [node for node in self._silent if any(not self._ranks[n].end for n in self._placement.ranks(node))]
        return [number for node in nodes for number in self._placement.ranks(node) if not self._ranks[number].end]

    def _told_silent(self, now: float) -> str:
        """Name the ranks whose hosts are silent, and when these are lost."""
        ranks = self._silent_ranks()
        if not ranks:
            return ""
        nodes = sorted({self._placement.node(rank) for rank in ranks})
        limit = f"; lost at {self._host_grace:.0f} s" if self._host_grace else ""
        names = few([self._placement.hosts[node].name for node in nodes])
        seconds = _seconds(now - self._silent[node] for node in nodes)
        return f"{told_ranks(ranks, self._noun)} silent {seconds} ({names}{limit})"

    def _told_behind(self) -> str:
        """Name the ranks that print lower steps than the others."""
        events = [event for number, event in sorted(self._behind.items()) if not self._ranks[number].end]
        return behind(events) if events else ""

    def _since(self, rank: _Rank) -> float:
        return rank.spoke if rank.spoke is not None else rank.started or self._began or 0.0

    def _told_quiet(self, now: float) -> str:
        """Name the ranks that are quiet while others write, or state for how long all are."""
        running = self._running()
        silent = self._silent_ranks()
        late = [number for number in running if now - self._since(self._ranks[number]) >= QUIET_S]
        quiet = [number for number in late if number not in silent]
        if not quiet:
            return ""
        seconds = _seconds(now - self._since(self._ranks[number]) for number in quiet)
        if len(quiet) == len(running):
            silence = now - max(self._since(self._ranks[number]) for number in quiet)
            return f"no output for {silence:.0f} s{self._offer(silence)}"
        # If most are quiet, as where only rank 0 writes a log, that means nothing.
        return f"{told_ranks(quiet, self._noun)} quiet for {seconds}" if len(quiet) <= len(running) / 2 else ""

    def _offer(self, silence: float) -> str:
        """Return a hint after so many seconds without output of any rank."""
        return f" (`mesh stacks {self._run}` shows where they are)" if self._run and silence >= HANG_S else ""

    def _kind(self, rank: _Rank, now: float) -> tuple[str, str]:
        """Return the kind of a rank's status and the words for it, without the time."""
        if rank.end:
            return rank.end, rank.told
        if rank.started is None:
            return "waiting", ""
        if now - self._since(rank) < QUIET_S:
            return ("running", "") if rank.spoke is not None else ("mute", "")
        return "quiet", _last_line(rank.tail)

    def _told(self, kind: str, words: str, numbers: list[int], now: float) -> str:
        ages = _seconds(now - self._since(self._ranks[number]) for number in numbers)
        tell: dict[str, Callable[[], str]] = {
            "silent": lambda: self._told_silent(now).partition(" silent ")[2],
            "waiting": lambda: "not started yet",
            "mute": lambda: f"running, no output for {ages}",
            "running": lambda: f"running, last output {ages} ago",
            "quiet": lambda: f"quiet for {ages}" + (f': "{words}"' if words else ""),
            "done": lambda: "done",
            "failed": lambda: f"failed: {words}",
            "lost": lambda: f"lost: {words}",
        }
        return f"{told_ranks(numbers, self._noun)} {tell[kind]()}"


def behind(events: Sequence[Behind]) -> str:
    """Describe ranks that are behind.

    >>> behind([Behind(time=0, node=0, rank=7, steps=3, median=120, unit="step")])
    'rank 7 is 3 steps behind (median 120)'
    """
    low, high = min(event.steps for event in events), max(event.steps for event in events)
    steps = f"{low}" if low == high else f"{low}..{high}"
    ranks, median = told_ranks(event.rank for event in events), max(event.median for event in events)
    return f"{ranks} {'is' if len(events) == 1 else 'are'} {steps} {events[0].unit}s behind (median {median})"


def _last_line(tail: bytes) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]", plain(tail.decode("utf-8", "replace").replace("\r", "\n")))]
    return next((line[:QUOTED_CHARACTERS] for line in reversed(lines) if line), "")


def _seconds(ages: Iterable[float]) -> str:
    """
    >>> _seconds([3.2]), _seconds([65.0, 3.0])
    ('3 s', '3..65 s')
    """
    found = [int(age) for age in ages]
    low, high = min(found), max(found)
    return f"{low} s" if low == high else f"{low}..{high} s"


def _clock(seconds: float) -> str:
    """
    >>> _clock(65), _clock(3600)
    ('1:05', '1:00:00')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
