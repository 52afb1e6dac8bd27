"""A few lines at the bottom of a terminal that are written again in place, below all other output."""

from __future__ import annotations

import contextlib
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping

from mesh.core.escapes import RESET, clean
from mesh.screen.descriptor import Descriptor
from mesh.screen.enter import EnterKey

_PARTS = re.compile(r"\x1b\[[0-9;:]*m|.", re.DOTALL)
_SPACES = re.compile(r"[\t\n\r]+")


class LiveLines:
    """What everything else that goes to the terminal must be written through, or it would tear the lines.

    ``show`` sets the lines, ``write`` writes other output above them; both may be called from any thread. Where there
    is no terminal, or one that cannot go back in its lines, ``show`` does nothing and ``write`` only writes.
    """

    def __init__(self, screen: Descriptor, environ: Mapping[str, str], keys: EnterKey | None = None) -> None:
        """screen: where the lines are shown; environ: TERM is looked for in it.

        keys: reads what the user types, which moves the cursor down
        """
        self._screen, self._keys = screen, keys or EnterKey(-1)
        self._typed: list[bytes] = []  # lines of the user's that nobody has taken yet
        self._is_cursor_known = True  # no line was typed while we were drawing
        self.is_possible = screen.is_terminal and environ.get("TERM", "") not in ("", "dumb")
        self._lines: list[str] = []  # what is to be shown
        self._drawn: list[str] = []  # what is on the terminal now
        self._fitted: tuple[list[str], int, list[str]] = ([], 0, [])  # lines, columns, and what that gave
        self._hidden = 0  # how many want them off the terminal
        self._lock = threading.Lock()
        self.in_line = False  # the last output ended in the middle of a line; the live lines wait for its end

    def show(self, *lines: str) -> None:
        """Put lines, which may have colours, in the place of those there are; empty ones are left out.

        Each is cut to the terminal's width; where it has too few rows the last ones are shown.
        """
        if self.is_possible:
            with self._lock:
                self._lines = [line for line in lines if line]
                self._draw()

    def typed(self) -> list[bytes]:
        """Return the lines that the user has typed since the last call. Never waits."""
        with self._lock:
            self._read_keys()
            lines, self._typed = self._typed, []
        return lines

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Within: the lines are off the terminal, as somebody else needs it, for a question say."""
        with self._lock:
            self._read_keys()  # what is typed from now on is the answer
            self._hidden += 1
            self._draw()
        try:
            yield
        finally:
            with self._lock:
                self._hidden -= 1
                self._draw()

    @property
    def is_hidden(self) -> bool:
        """True while somebody else needs the terminal."""
        return self._hidden > 0

    def write(self, to: Descriptor, data: bytes) -> None:
        """Write other output, above the lines if it goes to a terminal. Raises OutputClosed."""
        if not data:
            return
        if not to.is_terminal:  # whoever reads it slowly holds up nobody who writes elsewhere
            to.write(data)
            return
        with self._lock:
            self._read_keys()
            self.in_line = not data.endswith(b"\n")
            # In one piece, so that nothing flickers.
            self._put(to, data, self._to_draw())

    def _draw(self) -> None:
        self._read_keys()
        lines = self._to_draw()
        if lines != self._drawn:
            self._put(self._screen, b"", lines)

    def _put(self, to: Descriptor, data: bytes, lines: list[str]) -> None:
        data = self._erase() + data + _encoded(lines)
        self._drawn = lines
        to.write(data)
        # A line that was typed before or after it leaves the cursor in different rows.
        self._is_cursor_known = not (lines and self._keys.is_waiting())

    def _read_keys(self) -> None:
        """Take note of typed lines, and go back up to the last live line, from which each has moved the cursor down.

        Where that is not certain the cursor stays: a copy of a live line is better than a lost line of a rank.
        """
        if self._hidden:
            return
        lines = self._keys.typed()
        self._typed += lines
        if lines and self._drawn and self._is_cursor_known and self._keys.echoes_on(self._screen.device):
            self._screen.write(b"\x1b[%dA" % len(lines))

    def _to_draw(self) -> list[str]:
        if not self._lines or self.in_line or self._hidden or self._screen.is_background():
            return []
        columns, rows = self._screen.size()
        if self._fitted[:2] != (self._lines, columns):
            self._fitted = self._lines, columns, [fitted(line, columns - 1) for line in self._lines]
        return self._fitted[2][-max(1, rows - 1) :]

    def _erase(self) -> bytes:
        if not self._drawn:
            return b""
        # A terminal that has become narrower has wrapped them.
        columns = self._screen.size()[0]
        up = sum(max(1, -(-_columns_of(line) // columns)) for line in self._drawn) - 1
        return b"\r\x1b[%dA\x1b[J" % up if up else b"\r\x1b[K"


def _encoded(lines: list[str]) -> bytes:
    return "\r\n".join(lines).encode("utf-8", "backslashreplace")


def fitted(text: str, columns: int) -> str:
    """Text on one line of so many columns; a colour that is cut off ends with it.

    >>> fitted("syncing: 8 hosts", 12), fitted("ab", 12), fitted("\\x1b[1m四五六\\x1b[0m", 5)
    ('syncing: ...', 'ab', '\\x1b[1m四...\\x1b[0m')
    """
    parts = _PARTS.findall(clean(_SPACES.sub(" ", text)))
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


def _columns_of(text: str) -> int:
    return sum(map(_width, _PARTS.findall(text)))


def _width(part: str) -> int:
    """Columns of a character or a colour."""
    if part.startswith("\x1b") or unicodedata.combining(part):
        return 0
    return 2 if unicodedata.east_asian_width(part) in ("W", "F") else 1
