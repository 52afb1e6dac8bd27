"""Cleaning a text of a host for output and logs: one plain line, so that no host can imitate a line of mesh."""

from __future__ import annotations

import re
import unicodedata

SHOWN_CHARACTERS = 4000  # of one text from a host; the rest is cut off
# Control sequences of terminals (ECMA-48).
SEQUENCES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: cursor, erase, modes
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b\n]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # all others
)
_SEQUENCE = re.compile(SEQUENCES)
_SPACE = "Zs"
# Controls, direction overrides and other invisible characters, line and paragraph separators.
_REMOVED = ("Cc", "Cf", "Zl", "Zp")


def one_line(text: str) -> str:
    r"""Return the text as one plain line: without colours, escape sequences and control characters.

    >>> one_line("disk full\r\x1b[2K==> done: 4 ranks exited 0")
    'disk full; ==> done: 4 ranks exited 0'
    >>> one_line("a\tb\u202e\u2028c\x9b2K\udcff")
    'a b; c2K\ufffd'
    """
    cut = len(text) > SHOWN_CHARACTERS
    text = text[:SHOWN_CHARACTERS]
    if not text.isprintable():
        lines = _SEQUENCE.sub("", text).replace("\t", " ").splitlines()
        text = "; ".join(line for line in map(str.strip, map(_printable, lines)) if line)
    return f"{text[: SHOWN_CHARACTERS - 3]}..." if cut else text


def last_line(text: bytes) -> str:
    r"""Return the last line of a program's output that is not blank, as one plain line of at most 400 characters.

    >>> last_line(b"one\n\x1b[1mtwo\x1b[0m\r\n \n"), last_line(b"")
    ('two', '')
    """
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1][:400]) if lines else ""


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else _replaced(character) for character in line)


def _replaced(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == _SPACE:
        return " "
    return "" if kind in _REMOVED else "\ufffd"  # a byte that is no UTF-8, or a character that cannot be shown
