"""The prompt of a terminal, and of a script: reads lines, runs them on all ranks, and ends the run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from mesh.core.errors import MeshError, OutputClosed
from mesh.core.outcome import EXIT_OUTPUT_CLOSED
from mesh.core.ranks import told
from mesh.program.prompt.cells import Cells, is_end
from mesh.program.prompt.reading import PipeReader, Reader, TerminalReader
from mesh.program.prompt.runner import CellRunner, EndOfPromptError
from mesh.program.prompt.screen import is_terminal
from mesh.program.prompt.starting import Wishes, start

KEYBOARD_INTERRUPT_STATUS = 130


def run_prompt(wishes: Wishes) -> int:
    """Start the ranks, run the lines of standard input on all of them, and end the run; return the exit status.

    From a pipe, a cell that fails on any rank ends the prompt with status 1.
    Raises UsageError, and MeshError if a host cannot take part.
    """
    runner = start(wishes, hint="%help lists commands, Ctrl-D ends the run" if is_terminal() else "")
    try:
        return Prompt(runner).serve()
    finally:
        runner.screen.close()


class Prompt:
    """A prompt whose ranks are there."""

    def __init__(self, runner: CellRunner) -> None:
        self._runner, self._screen, self._running = runner, runner.screen, runner.running
        self._reader: Reader = TerminalReader(runner.complete) if is_terminal() else PipeReader()

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
                if is_end(cell):
                    return 0
            if line is None:
                if self._reader.is_typed:
                    self._screen.print("")
                return int(self._has_lost_ranks())
        return 0

    def _has_lost_ranks(self) -> bool:
        """Return True for a script some of whose ranks have ended, which may be between two cells."""
        return not self._reader.is_typed and bool(self._screen.gone)

    def _prompt(self, *, is_open: bool) -> str:
        label = f"[{told(self._runner.alive())}] "
        return " " * (len(label) - 1) + "... " if is_open else f"{label}>>> "

    def _run(self, cell: str) -> bool:
        """Run a cell or a command; return False if that ends a script."""
        try:
            done = self._runner.run(cell)
        except MeshError as error:
            self._screen.say(f"{error}{f' ({error.hint})' if error.hint else ''}")
            done = False
        except KeyboardInterrupt:  # of a command, or just after the end of a cell
            if not self._reader.is_typed:
                raise
            self._screen.say("interrupted")
            done = False
        return done or self._reader.is_typed


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
