"""The board of a run: the state of each rank, by the events and the output that have come."""

from __future__ import annotations

from dataclasses import dataclass, field

from mesh.core.cluster import Placement
from mesh.core.events import CONNECTING, Exited, Output, Stream
from mesh.core.steps import last_step
from mesh.pages.fields import Fields, count, number, numbers, objects, text

TAIL_BYTES = 1024  # of a rank's output, in which its last step is searched
# States of a rank, in the order of their urgency.
FAILED, LOST, SILENT, RUNNING, READY, WAITING, STOPPED, DONE = (
    "failed",
    "lost",
    "silent",
    "running",
    "ready",
    "waiting",
    "stopped",
    "done",
)
STATES = (FAILED, LOST, SILENT, RUNNING, READY, WAITING, STOPPED, DONE)
OVER = (FAILED, LOST, STOPPED, DONE)
ENDING = (9, 15)  # signals by which mesh ends ranks


@dataclass
class RankCell:
    """A rank on the board. Times are seconds since the epoch."""

    rank: int
    host: str
    role: str  # "actor/1"; "": the run has no roles
    state: str = WAITING
    how: str = ""  # "exit 3", or the reason of a loss
    since: float = 0.0  # of its state
    spoke: float = 0.0  # when it wrote last; 0.0: it has not
    step: int = -1  # the last step that it printed; -1: none
    unit: str = ""  # "step", "epoch" or the like
    behind: int = 0  # steps behind the median of the others

    def row(self) -> list[object]:
        """Return it as JSON has it."""
        return [self.rank, self.state, self.how, self.spoke, self.step, self.unit, self.behind, self.since]


@dataclass
class Board:
    """The ranks of a run."""

    placement: Placement
    cells: list[RankCell] = field(init=False)
    _tails: dict[int, bytes] = field(default_factory=dict)
    _new: set[int] = field(default_factory=set)  # ranks with output since the last look for steps

    def __post_init__(self) -> None:
        placement = self.placement
        self.cells = [
            RankCell(rank, placement.hosts[placement.node(rank)].name, placement.role(rank))
            for rank in range(placement.world_size)
        ]

    def output(self, event: Output) -> None:
        """Note output of a rank."""
        if event.stream not in (Stream.STDOUT, Stream.STDERR) or event.rank >= len(self.cells):
            return
        cell = self.cells[event.rank]
        cell.spoke = max(cell.spoke, event.time)
        self._tails[event.rank] = (self._tails.get(event.rank, b"") + event.data[-TAIL_BYTES:])[-TAIL_BYTES:]
        self._new.add(event.rank)

    def find_steps(self) -> None:
        """Read the last step of each rank whose output has changed since the last call."""
        for rank in self._new:
            if found := last_step(self._tails[rank]):
                self.cells[rank].unit, self.cells[rank].step = found
        self._new.clear()

    def note(self, event: Fields) -> None:
        """Note an event of events.jsonl."""
        name, time, host, rank = (
            text(event, "event"),
            number(event, "time") or 0.0,
            text(event, "host"),
            event.get("rank"),
        )
        of_host = [cell for cell in self.cells if cell.host == host]
        own = self.cells[rank] if isinstance(rank, int) and 0 <= rank < len(self.cells) else None
        match name:
            case "ready":
                _move(of_host, READY, time, "")
            case "started" | "restarted" if own:
                _move([own], RUNNING, time, "")
            case "restarting" if own:
                own.state = RUNNING  # its end before does not count
                _move([own], WAITING, time, "starts again")
            case "exited" if own:
                code, signal = count(event, "code"), count(event, "signal")
                end = Exited(time=0.0, node=0, rank=own.rank, code=code, signal=signal, oom=event.get("oom") is True)
                state = FAILED if end.status else DONE
                if signal in ENDING and any(cell.state in (FAILED, LOST) for cell in self.cells):
                    state = STOPPED  # run.json has the truth at the end of the run
                _move([own], state, time, end.told() if end.status else "")
            case "lost" if own:
                _move([own], LOST, time, text(event, "reason"))
            case "failed":
                step = text(event, "step")
                found = of_host if host else self.cells
                _move(found, LOST if step in CONNECTING else FAILED, time, text(event, "message"))
            case "silent":
                seconds = number(event, "seconds") or 0.0
                before, after = (RUNNING, SILENT) if seconds else (SILENT, RUNNING)
                _move([cell for cell in of_host if cell.state == before], after, time - seconds, "")
            case "behind" if own:
                own.behind = count(event, "steps")

    def end(self, about: Fields) -> None:
        """Note run.json of a run that has ended: ranks that mesh has stopped, and ends that no event has."""
        ended, stopped = number(about, "ended") or 0.0, numbers(about, "stopped")
        for item in objects(about, "ranks"):
            rank = item.get("rank")
            if ("code" in item or "signal" in item) and isinstance(rank, int) and 0 <= rank < len(self.cells):
                cell = self.cells[rank]
                is_good = not count(item, "code") and not count(item, "signal")
                if cell.state not in OVER:
                    cell.since = number(item, "ended") or ended
                if cell.state != LOST:
                    cell.state = STOPPED if rank in stopped else DONE if is_good else FAILED
        for cell in self.cells:
            if cell.state not in OVER:
                cell.state, cell.since = STOPPED, ended

    def counts(self) -> dict[str, int]:
        """Return how many ranks are in each state; states without any are left out."""
        found = [cell.state for cell in self.cells]
        return {state: found.count(state) for state in STATES if state in found}

    def slowest(self) -> RankCell | None:
        """Return the running rank with the lowest step, if the others are beyond it; None: there is none."""
        on = [cell for cell in self.cells if cell.state in (RUNNING, SILENT) and cell.step >= 0]
        low = min(on, key=lambda cell: cell.step, default=None)
        return low if low and any(cell.step > low.step for cell in on) else None


def _move(cells: list[RankCell], state: str, time: float, how: str) -> None:
    """Give cells a state, except those that are over."""
    for cell in cells:
        if cell.state not in OVER:
            cell.state, cell.since, cell.how = state, time, how
