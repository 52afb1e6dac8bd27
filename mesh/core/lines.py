"""Cutting chunks into whole lines, in bounded memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from msgspec import Struct

MEMORY_BYTES = 1 << 20  # of an unfinished line in memory; the rest goes to a file until the line ends
PIECE_BYTES = 1 << 18  # read back at a time


class Lines(Struct, frozen=True):
    """Whole lines of one stream."""

    head: IO[bytes] | None  # the beginning of the first line, if it was too long for memory
    text: bytes  # the rest, up to and with its last newline; only the last line of a stream may have none

    def pieces(self) -> Iterator[bytes]:
        """Yield the head in pieces, then close its file."""
        if self.head is not None:
            with self.head as file:
                file.seek(0)
                while piece := file.read(PIECE_BYTES):
                    yield piece


class LineCutter:
    """Cuts one stream. Only a newline ends a line.

    >>> cutter = LineCutter()
    >>> cutter.feed(b"step 1\\nst"), cutter.feed(b"ep"), cutter.feed(b" 2\\nx"), cutter.end()
    (Lines(head=None, text=b'step 1\\n'), None, Lines(head=None, text=b'step 2\\n'), Lines(head=None, text=b'x'))
    """

    def __init__(self, kept: int = MEMORY_BYTES) -> None:
        self._kept = kept
        self._rest = bytearray()
        self._head: IO[bytes] | None = None

    def feed(self, chunk: bytes) -> Lines | None:
        """Add a chunk; return its complete lines."""
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._keep(chunk)
            return None
        whole = Lines(self._head, b"".join((self._rest, memoryview(chunk)[:end])) if self._rest else chunk[:end])
        self._head = None
        self._rest = bytearray(chunk[end:])
        return whole

    def end(self) -> Lines | None:
        """Return the rest of a line that never ended."""
        if not self._rest and self._head is None:
            return None
        left = Lines(self._head, bytes(self._rest))
        self._head, self._rest = None, bytearray()
        return left

    @property
    def rest(self) -> bytes:
        """Return the part in memory of the unfinished line."""
        return bytes(self._rest)

    def forget_overprinted(self) -> None:
        """Drop the part of the unfinished line that its last carriage return overprints."""
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
    """Put the prefix before every line; first: before the first one as well. The last line gets its newline.

    >>> label(b"a\\nb\\n", b"[0] "), label(b"rest\\nb", b"[0] ", first=False)
    (b'[0] a\\n[0] b\\n', b'rest\\n[0] b\\n')
    """
    body = text[:-1] if text.endswith(b"\n") else text
    return b"".join((prefix if first else b"", body.replace(b"\n", b"\n" + prefix), b"\n"))
