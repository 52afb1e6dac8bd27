"""The output of ranks on the terminal, cell by cell, and what becomes of the ranks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping

from msgspec import Struct

from mesh.core.cluster import Host, Placement, place_ranks
from mesh.core.errors import OutputClosed
from mesh.core.events import (
    Event,
    Exited,
    Finished,
    HostNotice,
    Lost,
    Notice,
    Output,
    PrepareFailed,
    Reconnected,
    Reconnecting,
    Silent,
    Stream,
)
from mesh.core.look import Look, Paint, has_colours
from mesh.core.nodes import NodeResult, Restarted
from mesh.core.ranks import told_ranks
from mesh.program.prompt.outlet import Outlet
from mesh.program.results import read_result
from mesh.screen.descriptor import standard
from mesh.screen.live import LiveLines
from mesh.screen.output import RankOutput, Style

TICK_INTERVAL_S = 0.1  # between two looks at lines that wait for other ranks
LEAD = "==> "  # begins a line of mesh's own


class Report(Struct, frozen=True):
    """The end of a cell on one rank."""

    status: str  # "ok", "error", "interrupted"; "gone": its process has ended
    seconds: float = 0.0


class PromptScreen:
    """Shows events of the run. They come in a thread of the run; the thread of the prompt waits for cells."""

    def __init__(
        self,
        hosts: tuple[Host, ...],
        nproc: int,
        *,
        fold: str = "numbers",
        look: Look = Look(),  # noqa: B008
        outlet: Outlet | None = None,
    ) -> None:
        """outlet: keeps all text for the thread of the prompt; None: the thread that has it writes it"""
        self._placement: Placement = place_ranks(hosts, (nproc,) * len(hosts))
        self._style = Style(mode="fold", fold=fold, look=look, is_cut=True)
        self._outlet = outlet
        self._out = outlet.stdout if outlet else standard(1, required=True)
        self._err = outlet.stderr if outlet else standard(2, required=False, beside=self._out)
        for to in (self._out, self._err):
            to.paint = Paint(has_colours(look.color, os.environ, is_terminal=to.is_terminal))
        self._live = LiveLines(self._err, {})
        self._changed = threading.Condition()
        self._output = self._new_output()
        self._number = 0  # of the cell that runs, or ran last
        self._pending: set[int] = set()  # ranks that run it
        self._reports: dict[int, Report] = {}
        self._pieces: dict[int, list[bytes]] = {}
        self.gone: dict[int, str] = {}  # ranks without a process, and how it has ended
        self._ends: Finished | None = None
        self._is_closed = False  # no process reads our output
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="mesh-prompt", daemon=True)
        self._ticker.start()

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._placement.world_size

    @property
    def placement(self) -> Placement:
        """The ranks on their hosts."""
        return self._placement

    @property
    def is_over(self) -> bool:
        """True once the run has ended."""
        return self._ends is not None

    def leave(self) -> None:
        """Show no news of ranks and hosts from now on: the run is to end."""
        self._over.set()

    def close(self) -> None:
        """Show what waits, and end the thread."""
        self._over.set()
        self._ticker.join()
        with self._changed:
            self._renew()

    # ---- the thread of the prompt

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Expect a cell on some ranks."""
        with self._changed:
            self._renew()
            self._number, self._pending, self._reports = number, set(ranks), {}

    def wait(self, seconds: float) -> frozenset[int]:
        """Wait until the cell has ended everywhere, at most so long; return the ranks that still run it.

        Raises OutputClosed if no process reads our output any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._is_closed, seconds)
            if self._is_closed:
                raise OutputClosed("nobody reads our output")
            if not self._pending:
                self._renew()
            left = frozenset(self._pending)
        self.flush()
        return left

    def flush(self) -> None:
        """Write the text that an outlet keeps for this thread."""
        if self._outlet is not None:
            self._outlet.flush()

    def drop(self, rank: int, status: str) -> None:
        """Wait for a rank no longer."""
        with self._changed:
            self._end(rank, Report(status))

    @property
    def reports(self) -> Mapping[int, Report]:
        """The ends of the cell so far, by rank."""
        with self._changed:
            return dict(self._reports)

    def say(self, text: str) -> None:
        """Show a line of mesh's own."""
        self._live.write(self._err, f"{LEAD}{text}\n".encode())

    def print(self, text: str) -> None:
        """Show lines on standard output."""
        self._live.write(self._out, f"{text}\n".encode())

    # ---- the threads of the run

    def handle(self, event: Event) -> None:
        """Take an event of the run."""
        with self._changed:
            match event:
                case Output():
                    self._show(event)
                case NodeResult(rank=rank, data=data, is_last=is_last):
                    self._pieces.setdefault(rank, []).append(data)
                    if is_last:
                        self._take(rank, b"".join(self._pieces.pop(rank)))
                case Exited(rank=rank):
                    self._lose([rank], event.told())
                case Lost(node=node, reason=reason):
                    self._lose(self._placement.ranks(node), reason)
                case Restarted(rank=rank):
                    self._end(rank, Report("gone"))
                    self.gone.pop(rank, None)
                case Finished():
                    self._ends = event
                    for rank in list(self._pending):
                        self._end(rank, Report("gone"))
                case _ if not self._over.is_set():
                    self._news(event)

    def _show(self, event: Output) -> None:
        """Show output. The thread of the prompt ends the run where no process reads it."""
        try:
            self._output.handle(event, time.monotonic())
        except OutputClosed:
            self._is_closed = True
            self._changed.notify_all()

    def _news(self, event: Event) -> None:
        match event:
            case PrepareFailed(node=node, message=message, hint=hint):
                self.say(f"{self._name(node)}: {message}{f' ({hint})' if hint else ''}")
            case HostNotice(node=node, text=text):
                self.say(f"{self._name(node)}: {text}")
            case Silent(node=node, seconds=seconds):
                self.say(f"{self._name(node)}: {f'silent for {seconds:.0f} s' if seconds else 'is back'}")
            case Reconnecting(node=node, reason=reason):
                self.say(f"{self._name(node)}: {reason}; connecting again")
            case Reconnected(node=node):
                self.say(f"{self._name(node)}: connected again, nothing was lost")
            case Notice(text=text):
                self.say(text)

    def _take(self, rank: int, data: bytes) -> None:
        """Take what a rank has reported. A host may send anything."""
        try:
            kind, value = read_result(data)
        except (ValueError, EOFError, OSError):
            kind, value = "", None
        if kind == "cell" and isinstance(value, dict) and value.get("cell") == self._number:
            seconds = value.get("seconds")
            self._end(rank, Report(str(value.get("status")), seconds if isinstance(seconds, float) else 0.0))

    def _lose(self, ranks: Iterable[int], how: str) -> None:
        lost = [rank for rank in ranks if rank not in self.gone]
        for rank in lost:
            self.gone[rank] = how
            self._end(rank, Report("gone"))
        if lost and not self._ends and not self._over.is_set():
            self.say(f"{told_ranks(lost)}: {how}")

    def _end(self, rank: int, report: Report) -> None:
        if rank in self._pending:
            self._pending.discard(rank)
            self._reports[rank] = report
        self._changed.notify_all()

    def _name(self, node: int) -> str:
        return self._placement.hosts[node].name

    # ---- output

    def _new_output(self) -> RankOutput:
        to = {Stream.STDOUT: self._out, Stream.STDERR: self._err, Stream.PRERUN: self._err, Stream.SETUP: self._err}
        return RankOutput(self._placement, to, self._live, self._style)

    def _renew(self) -> None:
        """Show all that waits, by rank, and begin anew: ranks that have ended a cell may print again."""
        if not self._is_closed:
            self._output.end_all(time.monotonic())
        self._output = self._new_output()

    def _tick(self) -> None:
        while not self._over.wait(TICK_INTERVAL_S):
            with self._changed:
                if self._output.is_waiting and not self._is_closed:
                    with contextlib.suppress(OutputClosed):  # the next write raises it where it is handled
                        self._output.tick(time.monotonic())


def is_terminal() -> bool:
    """Return True if a person types the lines."""
    return sys.stdin is not None and sys.stdin.isatty()
