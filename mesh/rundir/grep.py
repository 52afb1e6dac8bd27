"""Filtering lines by a regular expression, in bounded memory however long a line is."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator
from typing import IO

from msgspec.structs import replace

from mesh.core.escapes import plain
from mesh.core.events import Output, Stream
from mesh.core.lines import PIECE_BYTES, LineCutter, Lines

MATCH_CHARACTERS = 1 << 16  # that a match may have in a line that is too long for memory


class LineFilter:
    """Yields the whole lines that match; escape sequences are ignored.

    >>> from mesh.core.events import Output, Stream
    >>> lines = LineFilter(re.compile("^b"))
    >>> one = Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=b"abc\\nbcd\\nb")
    >>> [output.data for output in (*lines.feed(one), *lines.end())]
    [b'bcd\\n', b'b']
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._cutters: dict[tuple[int, Stream], LineCutter] = {}
        self._last: dict[tuple[int, Stream], Output] = {}

    def feed(self, output: Output) -> Iterator[Output]:
        """Add a chunk; yield its complete lines that match."""
        key = output.rank, output.stream
        self._last[key] = replace(output, data=b"")
        yield from self._matching(self._cutters.setdefault(key, LineCutter()).feed(output.data), output)

    def end(self) -> Iterator[Output]:
        """Yield the rest of lines that never ended."""
        for key, cutter in self._cutters.items():
            yield from self._matching(cutter.end(), self._last[key])

    def _matching(self, lines: Lines | None, output: Output) -> Iterator[Output]:
        if lines is None:
            return
        text = lines.text
        if lines.head is not None:
            first, newline, text = text.partition(b"\n")
            for piece in self._long(lines.head, first + newline):
                yield replace(output, data=piece)
        *whole, last = text.split(b"\n")
        found = b"".join(line + b"\n" for line in whole if self._is_match(line))
        if last and self._is_match(last):
            found += last
        if found:
            yield replace(output, data=found)

    def _is_match(self, line: bytes) -> bool:
        text = line.decode("utf-8", "replace")
        return bool(self._pattern.search(plain(text) if "\x1b" in text or "\r" in text else text))

    def _long(self, file: IO[bytes], rest: bytes) -> Iterator[bytes]:
        """Yield the pieces of a line that does not fit into memory, if it matches; then close its file."""
        with file:
            file.seek(0, os.SEEK_END)
            file.write(rest)
            if matches(self._pattern, _texts(_pieces(file))):
                yield from _pieces(file)


def matches(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Return True if a text in pieces matches; a match is found for sure if MATCH_CHARACTERS decide it."""
    window, begin = "", 0
    for text in texts:
        if len(window) > MATCH_CHARACTERS:
            window, begin = window[-MATCH_CHARACTERS - 1 :], 1  # one more, because a line does not begin there
        window += text
        # The end of a piece is no end of the line, because more comes.
        match = pattern.search(window + "\0", begin)
        if match and match.start() < len(window):
            return True
    return bool(pattern.search(window, begin))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece


def _texts(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for piece in pieces:
        if text := plain(decoder.decode(piece)):
            yield text.rstrip("\n")
