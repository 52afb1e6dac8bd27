"""How mesh writes for people: colours, width, and how many lines of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping

from msgspec import Struct

WHENS = ("auto", "always", "never")
RESET = "\x1b[0m"
BOLD, RED, GREEN, YELLOW = (f"\x1b[{number}m" for number in (1, 31, 32, 33))
# For labels of one rank, and of several; none is the colour of a state.
HUES, HUES_OF_SETS = (tuple(f"\x1b[{number}m" for number in numbers) for numbers in ((35, 34, 95, 94), (36, 96)))


class Look(Struct, frozen=True, kw_only=True):
    """The user's choice of colours, and of lines that are not output."""

    color: str = "auto"  # one of WHENS
    terse: bool = False  # of mesh's own lines, errors alone
    steps: bool = False  # a line for each step of all hosts, with its time


def has_colours(when: str, environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return True if colours are wanted: --color, then NO_COLOR, then FORCE_COLOR, then the terminal decides.

    >>> has_colours("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, is_terminal=True)
    False
    >>> has_colours("always", {"NO_COLOR": "1"}, is_terminal=False), has_colours("auto", {}, is_terminal=True)
    (True, True)
    """
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"


def width_of(number: int, environ: Mapping[str, str]) -> int:
    """Return the columns for a descriptor: COLUMNS, else those of its terminal; 0: unlimited."""
    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(number).columns
    except OSError:  # no terminal
        return 0


class Paint:
    """Colours of states, or none."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on

    def good(self, text: str) -> str:
        """Return the text in green: done, ok."""
        return self._in(GREEN, text)

    def warning(self, text: str) -> str:
        """Return the text in yellow: silent, behind, to be looked at."""
        return self._in(YELLOW, text)

    def bad(self, text: str) -> str:
        """Return the text in red: failed, lost."""
        return self._in(RED, text)

    def bold(self, text: str) -> str:
        return self._in(BOLD, text)

    def label(self, first: int, text: str, count: int = 1) -> str:
        """Return the label of ranks in their hue, the same each time; first: the first rank; count: of ranks"""
        return self._in(HUES[first % len(HUES)] if count == 1 else HUES_OF_SETS[count % len(HUES_OF_SETS)], text)

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{RESET}" if self.is_on and text else text
