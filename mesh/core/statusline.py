"""Notices about something that takes long, with one line about its state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TextIO

from mesh.core.amounts import span
from mesh.core.look import width_of
from mesh.core.width import fitted

REPEAT_S = 30.0  # between two lines about a state, where a line cannot be rewritten
LASTS_S = 60.0  # after which a line about a state has its time
REWRITE = "\r\x1b[2K"  # back to the first column, and erase the line


class StatusLine:
    """Lasting lines, and one about a state. A terminal rewrites it; elsewhere a change is a line, at most each 30 s."""

    def __init__(
        self,
        say: Callable[[str], object] = lambda text: None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print lasting lines by a function. stream: where the state is rewritten if it is a terminal"""
        is_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._say, self._clock = say, clock
        self._terminal = stream if is_terminal else None
        self._is_open = False
        self._text = ""
        self._shown_at = -REPEAT_S

    def __call__(self, text: str) -> None:
        """Print a lasting line."""
        self.end()
        self._say(text)

    def show(self, text: str, seconds: float = 0.0) -> None:
        """Show a state. seconds: that it has lasted, which are no change of it"""
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
        """Erase the line about a state, before other lines follow."""
        if self._is_open and self._terminal is not None:
            self._terminal.write(REWRITE)
            self._terminal.flush()
        self._is_open = False
