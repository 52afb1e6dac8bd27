"""Cells and commands on the ranks of a run, for the prompt of a terminal and for notebooks."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from msgspec.structs import replace

from mesh.core.errors import MeshError, UsageError
from mesh.core.ranks import choose_ranks, counted, told_ranks
from mesh.program.prompt.cells import COMMANDS, Command, read_assignment, read_command
from mesh.program.prompt.screen import PromptScreen, Report
from mesh.program.prompt.syncing import RELOAD, Workspace
from mesh.program.running import Running
from mesh.program.runtime.errors import NodeLost, NotLaunched
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.shell import ERROR, Shell

WAIT_INTERVAL_S = 0.1  # between two looks at signals while a cell runs
STUCK_AFTER_S = 2.0  # from the first failed rank, or from Ctrl-C, to the line about ranks that go on
VALUE_TIMEOUT_S = 60.0  # for a value of each rank
COMPLETE_TIMEOUT_S = 1.0
RUN_CODE = ("pull", "push", "local", "sync", "restart")  # run code of the user, or calls, outside of cells


class EndOfPromptError(Exception):
    """A second Ctrl-C during a cell that the first one did not end."""


class CellRunner:
    """The ranks of a prompt, and the cell that they run."""

    def __init__(
        self,
        running: Running,
        handles: Sequence[Handle[Shell]],
        screen: PromptScreen,
        workspace: Workspace | None = None,
        names: dict[str, object] | None = None,
    ) -> None:
        """handles: by rank; workspace: for %sync; names: of this machine, for %local, %pull and %push"""
        self.running, self.screen = running, screen
        self.names: dict[str, object] = {} if names is None else names
        self._handles, self._workspace = handles, workspace
        self._chosen = frozenset(range(len(handles)))  # ranks that run cells
        self._number = 0  # of the last cell
        self._interrupts = 0

    def alive(self) -> list[int]:
        """Return the ranks that run cells, without those that have ended."""
        return sorted(self._chosen - self.screen.gone.keys())

    def run(self, cell: str) -> bool:
        """Run a cell or a command; return True if it has ended well on all ranks.

        Raises MeshError for a command that fails, KeyboardInterrupt for Ctrl-C in one, and EndOfPromptError.
        """
        command = read_command(cell)
        return self._do(command) if command is not None else self._run_cell(cell, self.alive())

    # ---- cells

    def _run_cell(self, source: str, ranks: Sequence[int]) -> bool:
        """Run a cell on some ranks and wait for all of them; return True if all have ended well."""
        if not ranks:
            raise MeshError("no rank is left to run this", hint="%ranks all chooses those that are there")
        self._number += 1
        self.screen.begin(self._number, ranks)
        with self._counted_interrupts():
            self._wait(self._send(source, ranks))
        reports = self.screen.reports
        return len(reports) == len(ranks) and all(report.status == "ok" for report in reports.values())

    def _send(self, source: str, ranks: Sequence[int]) -> dict[int, object]:
        """Send a cell to ranks; return the future of each that may take it. The others have just ended."""
        sent: dict[int, object] = {}
        for rank in ranks:
            try:
                sent[rank] = self._handles[rank].futures.submit(self._number, source)
            except (NodeLost, NotLaunched) as error:
                self._drop(rank, error)
        return sent

    def _drop(self, rank: int, error: BaseException) -> None:
        """Wait no longer for a rank that has not taken the cell, and name it."""
        self.screen.drop(rank, ERROR)
        self.screen.say(f"rank {rank}: {error}")

    def _wait(self, sent: dict[int, object]) -> None:
        """Wait for a cell. Ctrl-C interrupts it on all ranks. Raises EndOfPromptError at a second one if it goes on."""
        handled, at, failed_at, is_told = 0, 0.0, 0.0, False
        while (left := self.screen.wait(WAIT_INTERVAL_S)) and not self.running.has_ended:
            now = time.monotonic()
            self._drop_unsent(sent)
            if self._interrupts > handled:
                if handled and now > at + STUCK_AFTER_S:
                    raise EndOfPromptError
                handled, at, is_told = self._interrupts, now, False
                for rank in left:
                    with contextlib.suppress(NodeLost, NotLaunched):  # it has just ended
                        self._handles[rank].futures.interrupt(self._number)
            reports = self.screen.reports
            if not failed_at and any(report.status != "ok" for report in reports.values()):
                failed_at = now
            since = at or failed_at
            if since and not is_told and now > since + STUCK_AFTER_S:
                is_told = True
                self.screen.say(_stuck(reports, left, was_interrupted=bool(handled)))

    def _drop_unsent(self, sent: dict[int, object]) -> None:
        """Stop waiting for ranks that have not received the cell."""
        for rank, future in list(sent.items()):
            if isinstance(future, Future) and future.done():
                del sent[rank]
                if error := future.exception():
                    self._drop(rank, error)

    @contextlib.contextmanager
    def _counted_interrupts(self) -> Iterator[None]:
        """Count Ctrl-C in place of raising KeyboardInterrupt, which could interrupt anything.

        Only the main thread can: a notebook may run a cell in another one.
        """
        self._interrupts = 0
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def count(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1

        before = signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # ---- commands

    def _do(self, command: Command) -> bool:
        do: dict[str, Callable[[str], bool]] = {
            "ranks": self._choose,
            "rank": self._at_rank,
            "pull": self._pull,
            "push": self._push,
            "sync": self._sync,
            "local": self._run_here,
            "time": self._time,
            "stacks": self._stacks,
            "restart": self._restart,
            "help": self._help,
            "exit": lambda rest: True,
        }
        try:
            return do[command.name](command.rest)
        except MeshError:
            raise
        except Exception as error:
            if command.name not in RUN_CODE:
                raise
            raise MeshError(f"{type(error).__name__}: {error}") from error

    def _ranks(self, text: str) -> list[int]:
        """Return the ranks that a text names. Raises UsageError."""
        ranks = choose_ranks("%ranks", text, self.screen.placement)
        if missing := [rank for rank in ranks if rank >= len(self._handles)]:
            raise UsageError(f"no {told_ranks(missing)}", hint=f"there are {told_ranks(range(len(self._handles)))}")
        return sorted(ranks)

    def _choose(self, rest: str) -> bool:
        every = range(len(self._handles))
        self._chosen = frozenset(every if rest in ("", "all") else self._ranks(rest))
        return True

    def _at_rank(self, rest: str) -> bool:
        rank, _, code = rest.partition(" ")
        if not rank:
            raise UsageError("%rank: expected a rank", hint="%rank 0 print(x)")
        if not code.strip():
            return self._choose(rank)
        gone = self.screen.gone
        return self._run_cell(code.strip(), [one for one in self._ranks(rank) if one not in gone])

    def _pull(self, rest: str) -> bool:
        if not rest:
            raise UsageError("%pull: expected a name", hint="%pull loss")
        ranks = self.alive()
        values = [future.result(VALUE_TIMEOUT_S) for future in [self._begin(rank, rest) for rank in ranks]]
        name = rest if rest.isidentifier() else "_"
        self.names[name] = values
        self.screen.print(f"{name} = {values!r}")
        return True

    def _begin(self, rank: int, expression: str) -> Future[object]:
        future = self._handles[rank].futures.value(expression)
        assert isinstance(future, Future)
        return future

    def _push(self, rest: str) -> bool:
        name, expression = read_assignment(rest)
        value = eval(expression, self.names)  # what the user has typed here
        for future in [self._handles[rank].futures.put(name, value) for rank in self.alive()]:
            assert isinstance(future, Future)
            future.result(VALUE_TIMEOUT_S)
        return True

    def _sync(self, rest: str) -> bool:
        if rest or self._workspace is None:
            raise UsageError("%sync: takes no words: it sends what has changed", hint="%sync")
        ranks = self.alive()
        there = set(range(len(self._handles))) - self.screen.gone.keys()
        first = {self.screen.placement.node(rank): rank for rank in sorted(there, reverse=True)}
        synced = self._workspace.sync([self._handles[rank] for rank in first.values()])
        removed = f", removed {counted(synced.removed, 'path')}" if synced.removed else ""
        self.screen.say(f"sent {counted(synced.files, 'file')}{removed} on {counted(len(first), 'host')}")
        paths = [path for path in synced.paths if path.endswith(".py")]
        return self._run_cell(RELOAD.format(paths=paths), ranks) if paths and ranks else True

    def _run_here(self, rest: str) -> bool:
        exec(compile(rest, "<local>", "single"), self.names)
        return True

    def _time(self, rest: str) -> bool:
        done = self._run_cell(rest, self.alive()) if rest else True
        times = {rank: report.seconds for rank, report in self.screen.reports.items()}
        if rest and times:
            slowest, fastest = max(times, key=times.__getitem__), min(times.values())
            self.screen.print(f"{times[slowest]:.3f} s on rank {slowest}, the slowest; {fastest:.3f} s on the fastest")
        return done

    def _stacks(self, rest: str) -> bool:
        from mesh.core import stacks

        found = self.running.stacks()
        for line in stacks.short([replace(one, names="") for one in found.groups], found.ended):
            self.screen.print(line)
        return True

    def _restart(self, rest: str) -> bool:
        for rank in self._ranks(rest):
            self.running.restart(self._handles[rank])
        return True

    def _help(self, rest: str) -> bool:
        for text in COMMANDS.values():
            self.screen.print(text)
        return True

    def complete(self, text: str) -> Sequence[str]:
        """Return what a word may become on the first rank that runs cells."""
        for rank in self.alive()[:1]:
            with contextlib.suppress(Exception):
                found = self._handles[rank].options(timeout=COMPLETE_TIMEOUT_S).complete(text)
                return [str(one) for one in found] if isinstance(found, list) else []
        return []


def _stuck(reports: Mapping[int, Report], left: frozenset[int], *, was_interrupted: bool) -> str:
    """Return the line about ranks that go on while others have failed, or after Ctrl-C."""
    if was_interrupted:
        return f"{told_ranks(left)} {'goes' if len(left) == 1 else 'go'} on; Ctrl-C again ends the prompt and the run"
    failed = [rank for rank, report in reports.items() if report.status != "ok"]
    verb = "is" if len(left) == 1 else "are"
    return f"{told_ranks(failed)} failed, {told_ranks(left)} {verb} still running: Ctrl-C interrupts them"
