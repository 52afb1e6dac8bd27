"""mesh's own lines: on stderr, and above what is written in place."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.escapes import clean
from mesh.core.look import Paint
from mesh.screen.descriptor import Descriptor
from mesh.screen.live import LiveLines


class Notices:
    """Writes notices and errors."""

    def __init__(self, err: Descriptor, live: LiveLines, paint: Paint, *, is_terse: bool = False) -> None:
        """is_terse: write errors alone"""
        self._err, self._live, self._is_terse = err, live, is_terse
        self.lead = f"{paint.bold('==>')} "
        self._error_lead = f"{paint.bad('error:')} "

    def notice(self, text: str) -> None:
        """Write a line, unless only errors are wanted."""
        self.list(text, ())

    def list(self, head: str, lines: Sequence[str]) -> None:
        """Write a notice, and lines that belong to it, unless only errors are wanted."""
        if not self._is_terse:
            self._write(self.lead, "\n    ".join([head, *lines]))

    def error(self, text: str, hint: str = "") -> None:
        """Write an error; hint: what to do about it."""
        self._write(self._error_lead, "\n       ".join([text, *(hint.split("\n") if hint else [])]))

    def command(self, line: str) -> None:
        """Write a line for a program that reads the log, such as GitHub's runner."""
        begin = "\n" if self._live.in_line else ""
        self._live.write(self._err, f"{begin}{clean(line)}\n".encode("utf-8", "backslashreplace"))

    def _write(self, lead: str, text: str) -> None:
        begin = "\n" if self._live.in_line and self._err.is_terminal else ""
        self._live.write(self._err, f"{begin}{lead}{clean(text)}\n".encode("utf-8", "backslashreplace"))
