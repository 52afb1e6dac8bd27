"""The prompt: starts the ranks, sends them cells, and ends the run."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import choose_cluster, default_cluster, make_spec, project_here
from mesh.api.inquiries import count_gpus
from mesh.app.screen import Showing
from mesh.config.settings import Options
from mesh.core.errors import MeshError, OutputClosed, UsageError
from mesh.core.look import Look
from mesh.core.outcome import EXIT_OUTPUT_CLOSED
from mesh.core.ranks import choose_ranks, counted, told, told_ranks
from mesh.core.run import AUTO
from mesh.program.launching import launch
from mesh.program.program import Program
from mesh.program.prompt.cells import COMMANDS, Cells, Command, read_assignment, read_command
from mesh.program.prompt.reading import PipeReader, Reader, TerminalReader
from mesh.program.prompt.screen import PromptScreen, Report, is_terminal
from mesh.program.prompt.syncing import RELOAD, Workspace
from mesh.program.running import Running
from mesh.program.runtime.errors import NodeLost, NotLaunched
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Group, Handle
from mesh.program.runtime.shell import ERROR, Shell

LABEL = "rank"  # of the nodes
READY_TIMEOUT_S = 300.0
WAIT_INTERVAL_S = 0.1  # between two looks at signals while a cell runs
STUCK_AFTER_S = 2.0  # from the first failed rank, or from Ctrl-C, to the line about ranks that go on
VALUE_TIMEOUT_S = 60.0  # for a value of each rank
COMPLETE_TIMEOUT_S = 1.0
KEYBOARD_INTERRUPT_STATUS = 130
RUN_CODE = ("pull", "push", "local", "sync", "restart")  # run code of the user, or calls, outside of cells


class Wishes(Struct, frozen=True, kw_only=True):
    """The ranks of a prompt, and how their output is shown."""

    cluster: str
    python: str = "python3"  # the interpreter on the hosts
    options: Options = Options()
    fold: str = "numbers"
    look: Look = Look()


class EndOfPromptError(Exception):
    """A second Ctrl-C during a cell that the first one did not end."""


def run_prompt(wishes: Wishes) -> int:
    """Start the ranks, run the lines of standard input on all of them, and end the run; return the exit status.

    From a pipe, a cell that fails on any rank ends the prompt with status 1.
    Raises UsageError, and MeshError if a host cannot take part.
    """
    cluster = wishes.cluster or default_cluster()[0]
    found = choose_cluster(cluster, wishes.options, "")
    nproc = count_gpus(found, quiet=True) if wishes.options.nproc == AUTO else wishes.options.nproc
    program = Program("repl", cluster=cluster, python=wishes.python, options=wishes.options)
    names = [host.name for host in found.hosts]
    group = program.add(Shell, on=names, per_host=nproc, label=LABEL, on_failure="ignore")
    assert isinstance(group, Group)
    screen = PromptScreen(found.hosts, nproc, fold=wishes.fold, look=wishes.look)
    try:
        workspace = Workspace(make_spec(project_here(), wishes.options, ()))
        began, count = time.monotonic(), counted(screen.world_size, "rank")
        screen.say(f"starting {count} on {counted(len(names), 'host')}")
        program.watch = screen.handle
        running = launch(
            program,
            "cluster",
            calls_run=True,
            ready_timeout=READY_TIMEOUT_S,
            showing=Showing(output="none", quiet=True),
        )
        hint = "; %help lists commands, Ctrl-D ends the run" if is_terminal() else ""
        screen.say(f"{count} ready after {time.monotonic() - began:.1f} s{hint}")
        return Prompt(running, list(group), screen, workspace).serve()
    finally:
        screen.close()


class Prompt:
    """A prompt whose ranks are there."""

    def __init__(
        self,
        running: Running,
        handles: Sequence[Handle[Shell]],
        screen: PromptScreen,
        workspace: Workspace | None = None,
    ) -> None:
        """handles: by rank; workspace: for %sync"""
        self._workspace = workspace
        self._running, self._handles, self._screen = running, handles, screen
        self._chosen = frozenset(range(len(handles)))  # ranks that run cells
        self._number = 0  # of the last cell
        self._local: dict[str, object] = {}
        self._interrupts = 0
        self._reader: Reader = TerminalReader(self._completions) if is_terminal() else PipeReader()

    def serve(self) -> int:
        """Run the user's lines; then end the run, whatever has happened, and return the exit status."""
        status = 0
        try:
            with _signals_raise():
                status = self._read_and_run()
        except (KeyboardInterrupt, EndOfPromptError):
            status = KEYBOARD_INTERRUPT_STATUS
        except OutputClosed:
            status = EXIT_OUTPUT_CLOSED
        finally:
            self._reader.close()
            has_ended = self._running.has_ended
            self._screen.leave()
            result = self._running.stop()
        if has_ended:
            self._screen.say(f"the run has ended: {result.why or result.reason}")
            return result.exit_code or status
        return status or result.exit_code

    def _read_and_run(self) -> int:
        cells = Cells(is_typed=self._reader.is_typed)
        while not self._running.has_ended:
            try:
                line = self._reader.read(self._prompt(is_open=cells.is_open))
            except KeyboardInterrupt:
                if not self._reader.is_typed:  # the rest of a script does not run after it
                    raise
                cells.drop()
                self._screen.print("")
                continue
            for cell in cells.end() if line is None else cells.feed(line):
                if self._has_lost_ranks() or not self._run(cell):
                    return 1
                if self._is_end(cell):
                    return 0
            if line is None:
                if self._reader.is_typed:
                    self._screen.print("")
                return int(self._has_lost_ranks())
        return 0

    def _has_lost_ranks(self) -> bool:
        """Return True for a script some of whose ranks have ended, which may be between two cells."""
        return not self._reader.is_typed and bool(self._screen.gone)

    def _is_end(self, cell: str) -> bool:
        with contextlib.suppress(UsageError):
            command = read_command(cell)
            return command is not None and command.name == "exit"
        return False

    def _prompt(self, *, is_open: bool) -> str:
        ranks = self._alive()
        label = f"[{told(ranks)}] "
        return " " * (len(label) - 1) + "... " if is_open else f"{label}>>> "

    def _alive(self) -> list[int]:
        return sorted(self._chosen - self._screen.gone.keys())

    def _run(self, cell: str) -> bool:
        """Run a cell or a command; return False if that ends a script."""
        try:
            command = read_command(cell)
            done = self._do(command) if command is not None else self._run_cell(cell, self._alive())
        except MeshError as error:
            self._screen.say(f"{error}{f' ({error.hint})' if error.hint else ''}")
            done = False
        except KeyboardInterrupt:  # of a command, or just after the end of a cell
            if not self._reader.is_typed:
                raise
            self._screen.say("interrupted")
            done = False
        return done or self._reader.is_typed

    # ---- cells

    def _run_cell(self, source: str, ranks: Sequence[int]) -> bool:
        """Run a cell on some ranks and wait for all of them; return True if all have ended well."""
        if not ranks:
            raise MeshError("no rank is left to run this", hint="%ranks all chooses those that are there")
        self._number += 1
        self._screen.begin(self._number, ranks)
        sent = self._send(source, ranks)
        with self._counted_interrupts():
            self._wait(sent)
        reports = self._screen.reports
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
        self._screen.drop(rank, ERROR)
        self._screen.say(f"rank {rank}: {error}")

    def _wait(self, sent: dict[int, object]) -> None:
        """Wait for a cell. Ctrl-C interrupts it on all ranks. Raises EndOfPromptError at a second one if it goes on."""
        handled, at, failed_at, is_told = 0, 0.0, 0.0, False
        while (left := self._screen.wait(WAIT_INTERVAL_S)) and not self._running.has_ended:
            now = time.monotonic()
            self._drop_unsent(sent)
            if self._interrupts > handled:
                if handled and now > at + STUCK_AFTER_S:
                    raise EndOfPromptError
                handled, at, is_told = self._interrupts, now, False
                for rank in left:
                    with contextlib.suppress(NodeLost, NotLaunched):  # it has just ended
                        self._handles[rank].futures.interrupt(self._number)
            reports = self._screen.reports
            if not failed_at and any(report.status != "ok" for report in reports.values()):
                failed_at = now
            since = at or failed_at
            if since and not is_told and now > since + STUCK_AFTER_S:
                is_told = True
                self._screen.say(_stuck(reports, left, was_interrupted=bool(handled)))

    def _drop_unsent(self, sent: dict[int, object]) -> None:
        """Stop waiting for ranks that have not received the cell."""
        for rank, future in list(sent.items()):
            if isinstance(future, Future) and future.done():
                del sent[rank]
                if error := future.exception():
                    self._drop(rank, error)

    @contextlib.contextmanager
    def _counted_interrupts(self) -> Iterator[None]:
        """Count Ctrl-C in place of raising KeyboardInterrupt, which could interrupt anything."""

        def count(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1

        self._interrupts = 0
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
        ranks = choose_ranks("%ranks", text, self._screen.placement)
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
        gone = self._screen.gone
        return self._run_cell(code.strip(), [one for one in self._ranks(rank) if one not in gone])

    def _pull(self, rest: str) -> bool:
        if not rest:
            raise UsageError("%pull: expected a name", hint="%pull loss")
        ranks = self._alive()
        values = [future.result(VALUE_TIMEOUT_S) for future in [self._begin(rank, rest) for rank in ranks]]
        name = rest if rest.isidentifier() else "_"
        self._local[name] = values
        self._screen.print(f"{name} = {values!r}")
        return True

    def _begin(self, rank: int, expression: str) -> Future[object]:
        future = self._handles[rank].futures.value(expression)
        assert isinstance(future, Future)
        return future

    def _push(self, rest: str) -> bool:
        name, expression = read_assignment(rest)
        value = eval(expression, self._local)  # what the user has typed here
        for future in [self._handles[rank].futures.put(name, value) for rank in self._alive()]:
            assert isinstance(future, Future)
            future.result(VALUE_TIMEOUT_S)
        return True

    def _sync(self, rest: str) -> bool:
        if rest or self._workspace is None:
            raise UsageError("%sync: takes no words: it sends what has changed", hint="%sync")
        ranks = self._alive()
        there = set(range(len(self._handles))) - self._screen.gone.keys()
        first = {self._screen.placement.node(rank): rank for rank in sorted(there, reverse=True)}
        synced = self._workspace.sync([self._handles[rank] for rank in first.values()])
        removed = f", removed {counted(synced.removed, 'path')}" if synced.removed else ""
        self._screen.say(f"sent {counted(synced.files, 'file')}{removed} on {counted(len(first), 'host')}")
        paths = [path for path in synced.paths if path.endswith(".py")]
        return self._run_cell(RELOAD.format(paths=paths), ranks) if paths and ranks else True

    def _run_here(self, rest: str) -> bool:
        exec(compile(rest, "<local>", "single"), self._local)
        return True

    def _time(self, rest: str) -> bool:
        done = self._run_cell(rest, self._alive()) if rest else True
        times = {rank: report.seconds for rank, report in self._screen.reports.items()}
        if rest and times:
            slowest, fastest = max(times, key=times.__getitem__), min(times.values())
            self._screen.print(f"{times[slowest]:.3f} s on rank {slowest}, the slowest; {fastest:.3f} s on the fastest")
        return done

    def _stacks(self, rest: str) -> bool:
        from mesh.core import stacks

        found = self._running.stacks()
        for line in stacks.short([replace(one, names="") for one in found.groups], found.ended):
            self._screen.print(line)
        return True

    def _restart(self, rest: str) -> bool:
        for rank in self._ranks(rest):
            self._running.restart(self._handles[rank])
        return True

    def _help(self, rest: str) -> bool:
        for text in COMMANDS.values():
            self._screen.print(text)
        return True

    def _completions(self, text: str) -> Sequence[str]:
        """Return what a word may become on the first rank that runs cells."""
        for rank in self._alive()[:1]:
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


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Raise SystemExit for SIGTERM and SIGHUP, so that the run ends in order."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
