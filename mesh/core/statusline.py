"""Progress of a long wait: permanent lines, and one status line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from mesh.core.amounts import span
from mesh.core.look import width_of
from mesh.core.width import fitted

REPEAT_S = 30.0  # between two status lines, where a line cannot be rewritten
LASTS_S = 60.0  # from this age on, a status line shows its age
REWRITE = "\r\x1b[2K"  # back to the first column, and erase the line


class StatusLine:
    """Permanent lines and a status line. A terminal rewrites it; elsewhere a change prints it, at most every 30 s."""

    def __init__(
        self,
        say: Callable[[str], object] = lambda text: None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print permanent lines by a function. stream: shows the status line if it is a terminal"""
        is_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._say, self._clock = say, clock
        self._terminal = stream if is_terminal else None
        self._is_open = False
        self._text = ""
        self._shown_at = -REPEAT_S

    def __call__(self, text: str) -> None:
        """Print a permanent line."""
        self.end()
        self._say(text)

    def show(self, text: str, seconds: float = 0.0) -> None:
        """Show a state in the status line. seconds: its age, which does not count as a change"""
        lasted = f" ({span(seconds)})" if seconds >= LASTS_S else ""
        if self._terminal is not None:
            columns = width_of(self._terminal.fileno(), os.environ) or 80
            self._terminal.write(REWRITE + fitted(f"==> {text}{lasted}", columns - 1))
            self._terminal.flush()
            self._is_open = True
        elif text != self._text and (now := self._clock()) >= self._shown_at + REPEAT_S:
            self._say(text + lasted)
            self._text, self._shown_at = text, now

    def end(self) -> None:
        """Erase the status line before other output."""
        if self._is_open and self._terminal is not None:
            self._terminal.write(REWRITE)
            self._terminal.flush()
        self._is_open = False
