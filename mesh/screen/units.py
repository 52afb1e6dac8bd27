"""Units in which the output of ranks is compared: lines, and whole tracebacks."""

from __future__ import annotations

from msgspec import Struct

from mesh.core.escapes import last_state
from mesh.core.lines import LineCutter, Lines

HOLD_S = 0.45  # that a line waits for the same line of other ranks
HEAD = b"Traceback (most recent call last):"
BLOCK_BYTES = 1 << 18  # of a traceback; a longer one counts as single lines


class Unit(Struct, frozen=True):
    """A line, or the lines of a traceback, without the last newline."""

    text: bytes
    since: float  # when its first line came, in seconds on the clock that feed() gets
    is_bar: bool = False  # overprinted, as bars are


class UnitCutter:
    r"""Cuts the output of one rank to one stream into units. After ``\r`` only the last state of a line counts.

    >>> cutter = UnitCutter()
    >>> [unit.text for unit in cutter.units(cutter.feed(b"1%\r2%\nTraceback (most recent call last):\n  File\n"), 0.0)]
    [b'2%']
    >>> [unit.text for unit in cutter.units(cutter.feed(b"ValueError: 3\n"), 0.0)]
    [b'Traceback (most recent call last):\n  File\nValueError: 3']
    """

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._block: list[bytes] = []  # the lines of a traceback that has not ended
        self._block_size = 0
        self._prefix = b""  # that begins each of its lines
        self.since = 0.0  # when its first line came

    @property
    def is_in_block(self) -> bool:
        """True while a traceback has begun and not ended: its lines are held back."""
        return bool(self._block)

    @property
    def bar(self) -> bytes:
        """The last state of an unfinished line that is overprinted again and again; b"" if there is none."""
        rest = self._cutter.rest
        return last_state(rest) if b"\r" in rest else b""

    def feed(self, chunk: bytes) -> Lines | None:
        """Add a chunk; return its complete lines, for ``units`` or to be shown unchanged."""
        lines = self._cutter.feed(chunk)
        if b"\r" in chunk:
            self._cutter.forget_overprinted()
        return lines

    def end(self) -> Lines | None:
        """Return the rest of a line that never ended."""
        return self._cutter.end()

    def units(self, lines: Lines | None, now: float) -> list[Unit]:
        """Return the units of complete lines; keep the lines of a traceback that has not ended."""
        if lines is None:
            return []
        text = lines.text.removesuffix(b"\n")
        if self._block or HEAD in text or b"\r" in text:
            return [unit for line in text.split(b"\n") for unit in self._line(line, now)]
        return [Unit(line, now) for line in text.split(b"\n")]

    def give_up_block(self) -> list[Unit]:
        """Return the lines of an unfinished traceback as one unit."""
        block, self._block, self._block_size = self._block, [], 0
        return [Unit(b"\n".join(block), self.since)] if block else []

    def _line(self, line: bytes, now: float) -> list[Unit]:
        is_bar = b"\r" in line.rstrip(b"\r")
        line = last_state(line)
        if HEAD in line:
            before = self.give_up_block()
            # All lines of such a traceback begin with "[rank3]: "; those of a group of exceptions do not.
            self._prefix = line[: line.index(HEAD)] if b"Exception Group" not in line else b""
            self._block, self._block_size, self.since = [line], len(line), now
            return before
        if not self._block:
            return [Unit(line, now, is_bar)]
        self._block.append(line)
        self._block_size += len(line)
        body = line.removeprefix(self._prefix)
        if body[:1] in (b" ", b"\t", b"") and self._block_size < BLOCK_BYTES:
            return []
        return self.give_up_block()


def seen(text: bytes) -> bytes:
    r"""Return lines as a terminal shows them after carriage returns.

    >>> seen(b"10%\r20%\r\nplain\r\n30%\r")
    b'20%\nplain\n30%'
    """
    return b"\n".join(last_state(line) for line in text.split(b"\n"))
