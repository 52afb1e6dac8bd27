"""mesh's own words: on stderr, and above what is written in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mesh.core.escapes import clean
from mesh.screen.descriptor import Descriptor
from mesh.screen.live import LiveLines

BOLD, RED, RESET = "\x1b[1m", "\x1b[31m", "\x1b[0m"


class Voice:
    """Says lines, and complains of errors."""

    def __init__(self, err: Descriptor, live: LiveLines, environ: Mapping[str, str]) -> None:
        """environ: NO_COLOR is looked for in it."""
        colours = err.is_terminal and not environ.get("NO_COLOR")
        self._err, self._live = err, live
        self.lead = f"{BOLD}==>{RESET} " if colours else "==> "
        self._error = f"{RED}error:{RESET} " if colours else "error: "

    def say(self, text: str) -> None:
        self._tell(self.lead, text)

    def list(self, head: str, lines: Sequence[str]) -> None:
        """Say a line, and others that belong to it."""
        self._tell(self.lead, "\n    ".join([head, *lines]))

    def complain(self, text: str, more: str = "") -> None:
        """Tell an error; more: what to do about it."""
        self._tell(self._error, "\n       ".join([text, *(more.split("\n") if more else [])]))

    def mark(self, line: str) -> None:
        """Write a line for a program that reads along."""
        begin = "\n" if self._live.in_line else ""
        self._live.write(self._err, f"{begin}{clean(line)}\n".encode("utf-8", "backslashreplace"))

    def _tell(self, lead: str, text: str) -> None:
        begin = "\n" if self._live.in_line and self._err.is_terminal else ""
        self._live.write(self._err, f"{begin}{lead}{clean(text)}\n".encode("utf-8", "backslashreplace"))
