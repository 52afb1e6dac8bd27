"""Whole lines out of chunks, in bounded memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from msgspec import Struct

KEPT = 1 << 20  # bytes of an unfinished line that are kept in memory; the rest goes to a file until the line ends
PIECE = 1 << 18  # bytes that are read back at a time


class Lines(Struct, frozen=True):
    """One or more whole lines of one stream."""

    head: IO[bytes] | None  # the beginning of the first line, if it was too long for memory
    text: bytes  # the rest, up to and with its last newline; only the last line of a stream may have none

    def pieces(self) -> Iterator[bytes]:
        """The head, a piece at a time; its file is closed afterwards."""
        if self.head is not None:
            with self.head as file:
                file.seek(0)
                while piece := file.read(PIECE):
                    yield piece


class LineCutter:
    """Cuts one stream. Only a newline ends a line.

    >>> cutter = LineCutter()
    >>> cutter.feed(b"step 1\\nst"), cutter.feed(b"ep"), cutter.feed(b" 2\\nx"), cutter.end()
    (Lines(head=None, text=b'step 1\\n'), None, Lines(head=None, text=b'step 2\\n'), Lines(head=None, text=b'x'))
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._rest = bytearray()
        self._head: IO[bytes] | None = None

    def feed(self, chunk: bytes) -> Lines | None:
        """Add a chunk; return the lines that are whole now."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._keep(chunk)
            return None
        whole = Lines(self._head, b"".join((self._rest, memoryview(chunk)[:end])) if self._rest else chunk[:end])
        self._head = None
        self._rest = bytearray(chunk[end:])
        return whole

    def end(self) -> Lines | None:
        """What is left of a line that never ended."""
        if not self._rest and self._head is None:
            return None
        left = Lines(self._head, bytes(self._rest))
        self._head, self._rest = None, bytearray()
        return left

    @property
    def rest(self) -> bytes:
        """What is kept in memory of the line that has not ended."""
        return bytes(self._rest)

    def forget_overprinted(self) -> None:
        """Keep only what the last carriage return leaves to be seen of the line that has not ended."""
        at = self._rest.rfind(b"\r", 0, len(self._rest) - 1)  # the very last one may belong to a newline
        if at > 0:
            del self._rest[:at]
        if at >= 0 and self._head is not None:
            self._head.close()
            self._head = None

    def _keep(self, chunk: bytes) -> None:
        self._rest += chunk
        if len(self._rest) > self._kept:
            if self._head is None:
                import tempfile

                self._head = tempfile.TemporaryFile(prefix="mesh-line-")  # noqa: SIM115  (closed by pieces)
            self._head.write(self._rest)
            self._rest.clear()


def label(text: bytes, prefix: bytes, *, first: bool = True) -> bytes:
    """Lead every line by prefix, all but the first if that one has begun already; the last gets its newline.

    >>> label(b"a\\nb\\n", b"[0] "), label(b"rest\\nb", b"[0] ", first=False)
    (b'[0] a\\n[0] b\\n', b'rest\\n[0] b\\n')
    """
    body = text[:-1] if text.endswith(b"\n") else text
    return b"".join((prefix if first else b"", body.replace(b"\n", b"\n" + prefix), b"\n"))
