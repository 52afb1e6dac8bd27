"""Cleaning the text of hosts for a terminal: text and colours stay, all other control sequences are removed."""

from __future__ import annotations

import codecs
import re
from typing import AnyStr

from mesh.core.text import SEQUENCES

SEQUENCE_CHARACTERS = 4096  # an escape sequence that has not ended after so many characters is no sequence

_COLOUR = r"\x1b\[[0-9;:]*m"
_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # all but tab, newline and carriage return; C1 too
_REMOVED = re.compile(f"({_COLOUR})|{SEQUENCES}|{_CONTROLS}")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]*\x1b?|[PX^_][^\x1b\n]*\x1b?|[ -/]*)\Z")
RESET = "\x1b[0m"


def clean(text: str) -> str:
    """Remove everything but text and colours.

    >>> clean("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07\\x1b[2Jdone\\x07")
    '\\x1b[31mred\\x1b[0m done'
    """
    return _REMOVED.sub(lambda match: match.group(1) or "", text)


def plain(text: str) -> str:
    """Remove colours as well."""
    return _REMOVED.sub("", text).replace("\r", "")


def clean_lines(text: str) -> str:
    """Clean whole lines: after ``\\r`` only the last state of a line stays, and a colour ends with its line.

    >>> clean_lines("10%\\r20%\\r30%\\n\\x1b[31mred\\n")
    '30%\\n\\x1b[31mred\\x1b[0m\\n'
    """
    if "\r" in text:
        text = "\n".join(last_state(line) for line in text.split("\n"))
    text = clean(text)
    if "\x1b" in text:
        text = "\n".join(f"{line}{RESET}" if _is_coloured(line) else line for line in text.split("\n"))
    return text


def last_state(line: AnyStr) -> AnyStr:
    r"""Return a line as a terminal shows it after its carriage returns; one at its end overprints nothing.

    >>> last_state("10%\r20%\r30%\r")
    '30%'
    """
    end = b"\r" if isinstance(line, bytes) else "\r"
    return line.rstrip(end).rpartition(end)[2]


def _is_coloured(line: str) -> bool:
    """Return True if the colours of a clean line go on after its end."""
    return "\x1b" in line and not line.endswith(RESET)


class Cleaner:
    """Cleans a stream; the edge of a chunk may cut a sequence or a character.

    >>> cleaner = Cleaner()
    >>> cleaner.feed(b"a\\x1b["), cleaner.feed(b"2Jb\\xc3"), cleaner.feed(b"\\xa9")
    ('a', 'b', 'é')
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, chunk: bytes) -> str:
        text = self._held + self._decoder.decode(chunk)
        self._held = ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - SEQUENCE_CHARACTERS))
        if unfinished:
            text, self._held = text[: unfinished.start()], text[unfinished.start() :]
        return clean(text)
