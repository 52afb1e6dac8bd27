"""Filtering lines by a regular expression, in bounded memory however long a line is."""

from __future__ import annotations

import codecs
import collections
import os
import re
from collections.abc import Iterable, Iterator
from typing import IO

from msgspec.structs import replace

from mesh.core.escapes import plain
from mesh.core.events import Output, Stream
from mesh.core.lines import PIECE_BYTES, LineCutter, Lines

CONTEXT_BYTES = 1 << 18  # of lines before a match, in each log
GAP = b"--\n"  # stands for lines that are left out, as with grep
MATCH_CHARACTERS = 1 << 16  # that a match may have in a line that is too long for memory


def size_of(count: int) -> bytes:
    """Return the text that stands for a long line before a match. count: its bytes"""
    return b"(a line of %d bytes)\n" % count


class Context:
    """Decides which lines around a match in one log are shown.

    >>> context = Context(1, 1)
    >>> [context.take(line, line == b"x") for line in (b"a", b"b", b"x", b"c", b"d", b"e", b"x")]
    [b'', b'', b'bx', b'c', b'', b'', b'--\\nex']
    """

    def __init__(self, before: int, after: int) -> None:
        """before, after: lines around a match"""
        self._before, self._after = before, after
        self._waiting = collections.deque[bytes]()
        self._size = self._left = 0
        self._has_shown = self._is_apart = False  # _is_apart: lines are left out since the last one that was shown

    def take(self, line: bytes, is_match: bool) -> bytes:
        """Add a line; return the lines to show now."""
        if is_match:
            lead = GAP if self._has_shown and self._is_apart else b""
            shown = b"".join((lead, *self._waiting, line))
            self._waiting.clear()
            self._size, self._left, self._has_shown, self._is_apart = 0, self._after, True, False
            return shown
        if self._left:
            self._left -= 1
            return line
        if len(line) > CONTEXT_BYTES:
            line = size_of(len(line))
        self._waiting.append(line)
        self._size += len(line)
        while len(self._waiting) > self._before or self._size > CONTEXT_BYTES:
            self._size -= len(self._waiting.popleft())
            self._is_apart = True
        return b""


class LineFilter:
    """Yields the whole lines that match, with lines around them if these are wanted; escape sequences are ignored.

    >>> from mesh.core.events import Output, Stream
    >>> lines = LineFilter(re.compile("^b"))
    >>> one = Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=b"abc\\nbcd\\nb")
    >>> [output.data for output in (*lines.feed(one), *lines.end())]
    [b'bcd\\n', b'b']
    """

    def __init__(self, pattern: re.Pattern[str], before: int = 0, after: int = 0) -> None:
        """before, after: lines of the same log that are shown around a match"""
        self._pattern = pattern
        self._around = (before, after) if before or after else None
        self._contexts: dict[tuple[int, Stream], Context] = {}
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
        context = None
        if self._around is not None:
            context = self._contexts.setdefault((output.rank, output.stream), Context(*self._around))
        if lines.head is not None:
            first, newline, text = text.partition(b"\n")
            for piece in self._long(lines.head, first + newline, context):
                yield replace(output, data=piece)
        *whole, last = text.split(b"\n")
        if context is not None:
            ended = [line + b"\n" for line in whole] + ([last] if last else [])
            found = b"".join(context.take(line, self._is_match(line.removesuffix(b"\n"))) for line in ended)
        else:
            found = b"".join(line + b"\n" for line in whole if self._is_match(line))
            if last and self._is_match(last):
                found += last
        if found:
            yield replace(output, data=found)

    def _is_match(self, line: bytes) -> bool:
        text = line.decode("utf-8", "replace")
        return bool(self._pattern.search(plain(text) if "\x1b" in text or "\r" in text else text))

    def _long(self, file: IO[bytes], rest: bytes, context: Context | None) -> Iterator[bytes]:
        """Yield the pieces of a line that does not fit into memory, if it is shown; then close its file.

        Before a match, its size stands for it.
        """
        with file:
            file.seek(0, os.SEEK_END)
            file.write(rest)
            is_match = matches(self._pattern, _texts(_pieces(file)))
            if context is None:
                yield from _pieces(file) if is_match else ()
                return
            size = size_of(file.seek(0, os.SEEK_END))
            if shown := context.take(size, is_match):
                yield shown.removesuffix(size)
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
