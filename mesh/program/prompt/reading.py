"""The lines of the user: from a terminal with history and completion, or from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mesh.core.errors import UsageError
from mesh.core.paths import runs_directory

if TYPE_CHECKING:
    from types import ModuleType

HISTORY_LINES_MAX = 10_000
HISTORY = "repl-history"  # beside the runs of this machine


class Reader(Protocol):
    """The source of lines."""

    is_typed: bool  # by a person, who sees errors and goes on

    def read(self, prompt: str) -> str | None:
        """Return the next line without its newline; None at the end.

        Raises KeyboardInterrupt for Ctrl-C, and UsageError for a script that is no text.
        """

    def close(self) -> None:
        """Keep what is to be kept."""


class PipeReader:
    """Reads standard input to its end."""

    is_typed = False

    def read(self, prompt: str) -> str | None:
        """Return the next line; the prompt is not shown."""
        try:
            line = sys.stdin.readline() if sys.stdin is not None else ""
        except UnicodeDecodeError as error:
            hint = "iconv -f LATIN1 -t UTF-8 FILE | mesh repl CLUSTER"
            raise UsageError(f"standard input: not {error.encoding} text ({error.reason})", hint=hint) from error
        return line.rstrip("\r\n") if line else None

    def close(self) -> None:
        """Do nothing."""


class TerminalReader:
    """Reads lines that are typed, with a history that later prompts have as well."""

    is_typed = True

    def __init__(self, complete: Callable[[str], Sequence[str]]) -> None:
        """complete: what a word may become"""
        self._readline, self._history = _readline(), runs_directory(os.environ).parent / HISTORY
        self._complete, self._found = complete, list[str]()
        if self._readline is not None:
            with contextlib.suppress(OSError):
                self._readline.read_history_file(self._history)
            self._readline.set_history_length(HISTORY_LINES_MAX)
            self._readline.set_completer(self._next)
            self._readline.parse_and_bind("tab: complete")

    def read(self, prompt: str) -> str | None:
        """Return a line that is typed behind the prompt; an empty one in place of bytes that are no text."""
        try:
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError:
            return ""

    def close(self) -> None:
        """Write the history, which only this user can read."""
        if self._readline is not None:
            self._readline.set_completer(None)
            with contextlib.suppress(OSError):
                _private(self._history)
                self._readline.write_history_file(self._history)

    def _next(self, text: str, state: int) -> str | None:
        if not text.strip():
            return "    " if state == 0 else None
        if state == 0:
            self._found = list(self._complete(text))
        return self._found[state] if state < len(self._found) else None


def _private(path: Path) -> None:
    """Make a file that only this user can read. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:
        return None
    return readline
