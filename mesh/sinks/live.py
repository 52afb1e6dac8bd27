"""One line at the bottom of a terminal that is written again in place, below all other output."""

from __future__ import annotations

import contextlib
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping

from mesh.sinks.descriptor import Descriptor
from mesh.sinks.escapes import RESET, clean

ERASE = b"\r\x1b[K"
_PARTS = re.compile(r"\x1b\[[0-9;:]*m|.", re.DOTALL)


class LiveLine:
    """What everything else that goes to the terminal must be written through, or it would tear the line.

    ``show`` sets the line, ``write`` writes other output above it; both may be called from any thread. Where there is
    no terminal, or one that cannot go back in its line, ``show`` does nothing and ``write`` only writes.
    """

    def __init__(self, screen: Descriptor, environ: Mapping[str, str]) -> None:
        """screen: where the line is shown; environ: TERM is looked for in it."""
        self._screen = screen
        self.is_possible = screen.is_terminal and environ.get("TERM", "") not in ("", "dumb")
        self._text = ""  # what is to be shown
        self._drawn = b""  # what is on the terminal now
        self._hidden = 0  # how many want it off the terminal
        self._lock = threading.Lock()
        self.in_line = False  # the last output ended in the middle of a line; the live line waits for its end

    def show(self, text: str) -> None:
        """Put text, which may have colours, in the place of the line; "" removes it. Cut to the terminal's width."""
        with self._lock:
            self._text = text if self.is_possible else ""
            self._draw()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Within: the line is off the terminal, as somebody else needs it, for a question say."""
        with self._lock:
            self._hidden += 1
            self._draw()
        try:
            yield
        finally:
            with self._lock:
                self._hidden -= 1
                self._draw()

    def write(self, to: Descriptor, data: bytes) -> None:
        """Write other output, above the line if it goes to a terminal. Raises OutputClosed."""
        if not data:
            return
        with self._lock:
            if to.is_terminal:
                self.in_line = not data.endswith(b"\n")
                # In one piece, so that the line does not flicker.
                line = self._line()
                data = (ERASE if self._drawn else b"") + data + line
                self._drawn = line
            to.write(data)

    def _draw(self) -> None:
        line = self._line()
        if line != self._drawn:
            self._screen.write((ERASE if self._drawn else b"") + line)
            self._drawn = line

    def _line(self) -> bytes:
        if not self._text or self.in_line or self._hidden:
            return b""
        return fitted(self._text, self._screen.columns() - 1).encode("utf-8", "backslashreplace")


def fitted(text: str, columns: int) -> str:
    """Text on one line of so many columns; a colour that is cut off ends with it.

    >>> fitted("syncing: 8 hosts", 12), fitted("ab", 12), fitted("\\x1b[1m四五六\\x1b[0m", 5)
    ('syncing: ...', 'ab', '\\x1b[1m四...\\x1b[0m')
    """
    parts = _PARTS.findall(clean(" ".join(text.split())))
    widths = [_width(part) for part in parts]
    if sum(widths) <= columns:
        return "".join(parts)
    kept, room = "", columns - 3
    for part, width in zip(parts, widths, strict=True):
        room -= width
        if room < 0:
            break
        kept += part
    return kept + "..."[: max(0, columns)] + (RESET if "\x1b" in kept else "")


def _width(part: str) -> int:
    """Columns of a character or a colour."""
    if part.startswith("\x1b") or unicodedata.combining(part):
        return 0
    return 2 if unicodedata.east_asian_width(part) in ("W", "F") else 1
