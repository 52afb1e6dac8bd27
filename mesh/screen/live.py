"""Lines at the bottom of a terminal that are rewritten in place, below all other output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

from mesh.core.width import columns_of, fitted
from mesh.screen.descriptor import Descriptor
from mesh.screen.enter import EnterKey


class LiveLines:
    """The live lines, and the only way to write anything else to their terminal without tearing them.

    ``show`` sets the lines, ``write`` writes other output above them; both may be called from any thread. Without a
    terminal, or with one that cannot go back in its lines, ``show`` does nothing and ``write`` only writes.
    """

    def __init__(self, screen: Descriptor, environ: Mapping[str, str], keys: EnterKey | None = None) -> None:
        """screen: shows the lines; environ: may hold TERM.

        keys: reads the user's lines, each of which moves the cursor down
        """
        self._screen, self._keys = screen, keys or EnterKey(-1)
        self._typed: list[bytes] = []  # lines of the user that are not taken yet
        self._is_cursor_known = True  # no line was typed during the last drawing
        self.is_possible = screen.is_terminal and environ.get("TERM", "") not in ("", "dumb")
        self._lines: list[str] = []  # to show
        self._drawn: list[str] = []  # on the terminal now
        self._fitted: tuple[list[str], int, list[str]] = ([], 0, [])  # lines, columns, and the result
        self._hidden = 0  # how many callers want the lines off the terminal
        self._lock = threading.Lock()
        self.in_line = False  # the last output ended inside a line; the live lines wait for its end

    def show(self, *lines: str) -> None:
        """Replace the live lines, which may have colours; empty ones are left out.

        Each is cut to the terminal's width. If it has too few rows, the last lines are shown.
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
        """Take the lines off the terminal while another part needs it, for example for a question."""
        with self._lock:
            self._read_keys()  # lines from now on are the answer
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
        """True while another part needs the terminal."""
        return self._hidden > 0

    def write(self, to: Descriptor, data: bytes) -> None:
        """Write other output, above the lines if it goes to a terminal. Raises OutputClosed."""
        if not data:
            return
        if not to.is_terminal:  # a slow reader there must not hold up other output
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
        # A line that is typed before or after the write leaves the cursor in different rows.
        self._is_cursor_known = not (lines and self._keys.is_waiting())

    def _read_keys(self) -> None:
        """Take typed lines, each of which has moved the cursor down, and go back up to the last live line.

        If that is not certain the cursor stays: a copy of a live line is better than a lost line of a rank.
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
        up = sum(max(1, -(-columns_of(line) // columns)) for line in self._drawn) - 1
        return b"\r\x1b[%dA\x1b[J" % up if up else b"\r\x1b[K"


def _encoded(lines: list[str]) -> bytes:
    return "\r\n".join(lines).encode("utf-8", "backslashreplace")
