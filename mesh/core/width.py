"""Widths of texts on a terminal, and lines and tables that fit one."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mesh.core.escapes import RESET, clean

GAP = "  "  # between two columns of a table
LAST_COLUMN_WIDTH = 20  # characters that the last column of a table keeps, before another column is dropped

_PARTS = re.compile(r"\x1b\[[0-9;:]*m|.", re.DOTALL)
_SPACES = re.compile(r"[\t\n\r]+")


def fitted(text: str, columns: int, *, at_space: bool = False) -> str:
    """Cut a text to one line of so many columns; a colour that is cut off ends with it.

    at_space: cut no word or number in two, unless it is longer than half of the line

    >>> fitted("syncing: 8 hosts", 12), fitted("ab", 12), fitted("\\x1b[1m四五六\\x1b[0m", 5)
    ('syncing: ...', 'ab', '\\x1b[1m四...\\x1b[0m')
    >>> fitted("loss 2.50..2.65 norm 1.0..1.1", 26, at_space=True)
    'loss 2.50..2.65 norm ...'
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
    if at_space and " " in kept[len(kept) // 2 :]:
        kept = kept[: kept.rindex(" ") + 1]
    return kept + "..."[: max(0, columns)] + (RESET if "\x1b" in kept else "")


def columns_of(text: str) -> int:
    """Return the columns that a text takes, without its colours."""
    if text.isascii() and "\x1b" not in text:
        return len(text)
    return sum(map(_width, _PARTS.findall(text)))


def _width(part: str) -> int:
    """Return the columns of a character or a colour."""
    if part.startswith("\x1b") or unicodedata.combining(part):
        return 0
    return 2 if unicodedata.east_asian_width(part) in ("W", "F") else 1


class Table:
    """A table whose rows come in parts; a column grows with its widest cell.

    Where a width is given, the first rows decide which columns are dropped. Each row is cut to one line.
    """

    def __init__(self, head: Sequence[str], *, width: int = 0, dropped: Sequence[str] = ()) -> None:
        """width: of a line, 0: unlimited; dropped: columns that may be left out, the first one first"""
        self._head, self._width = list(head), width
        self._dropped = [self._head.index(name) for name in dropped]
        self._widths = [0] * len(self._head)
        self._kept = list(range(len(self._head)))
        self.is_empty = True

    def lines(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return a line for each row, the first time below the head.

        >>> Table(["run", "size", "command"], width=20, dropped=["size"]).lines([["a1", "12 kB", "python3 train.py"]])
        ['run  command', 'a1   python3 trai...']
        """
        is_first, self.is_empty = self.is_empty, False
        shown = [self._head, *rows] if is_first else list(rows)
        for row in shown:
            self._widths = [max(width, columns_of(cell)) for width, cell in zip(self._widths, row, strict=True)]
        for column in self._dropped if is_first and self._width else ():
            if self._least() > self._width:
                self._kept.remove(column)
        return [self._line(row) for row in shown]

    def _least(self) -> int:
        """Return the width of a line whose last column is cut as far as it may be."""
        *others, last = (self._widths[column] for column in self._kept)
        return sum(others) + len(GAP) * len(others) + min(last, LAST_COLUMN_WIDTH)

    def _line(self, row: Sequence[str]) -> str:
        cells = [row[column] + " " * (self._widths[column] - columns_of(row[column])) for column in self._kept]
        line = GAP.join(cells).rstrip()
        return fitted(line, self._width) if self._width else line
