"""The frames of the protocol: one line of JSON, and then as many raw bytes as its "size"."""

from __future__ import annotations

from .coding import dumps, loads

TYPE_CHECKING = False  # importing typing takes longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Header = dict[str, Any]
    Frame = tuple[Header, bytes]

MAX_HEADER = 64 << 20  # bytes; a header carries argv and environment, which Linux limits to a few MiB
SIZE_MAX = 1 << 62  # bytes that a header may announce
LINE_SHOWN_BYTES = 80  # of a line that is no header


class FrameError(Exception):
    """Bytes that are no frame, or a message that the tables refuse; ``hint`` is a command to paste, or ""."""

    def __init__(self, text: str, hint: str = "") -> None:
        Exception.__init__(self, text)
        self.hint = hint


def encode(header: Header, data: bytes = b"") -> bytes:
    """Make one frame of a dict and bytes.

    >>> encode({"type": "output", "rank": 3}, b"hello")
    b'{"type":"output","rank":3,"size":5}\\nhello'
    """
    if data:
        header = dict(header, size=len(data))
    return dumps(header).encode() + b"\n" + data


class Decoder:
    """A decoder of chunks of bytes into frames.

    >>> decoder = Decoder()
    >>> decoder.feed(b'{"type":"a","size":2}\\nx'), decoder.feed(b'y{"type":"b"}\\n')
    ([], [({'type': 'a', 'size': 2}, b'xy'), ({'type': 'b'}, b'')])
    """

    def __init__(self, sizes: Mapping[str, int] | None = None, header_bytes: int = MAX_HEADER) -> None:
        """sizes: bytes that may follow the header of a frame, by its type, and 0 for all others; None: any number

        header_bytes: of the longest header that is read
        Both are looked at again with each frame, and before memory is taken for it.
        """
        self._sizes, self.header_bytes = sizes, header_bytes
        self._buffer = bytearray()
        self._header: Header | None = None  # of the frame whose bytes have not all come
        self._size = 0  # bytes that follow it
        self.consumed = 0  # bytes of all frames that were returned
        self.ends: list[int] = []  # the same after each of the frames that were returned last
        self._header_size = 0
        self._searched = 0  # bytes of the buffer that hold no newline

    @property
    def waiting(self) -> int:
        """Bytes of a frame that has not all come."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> list[tuple[Header, bytes]]:
        """Add a chunk; return the list of (header, data) that are complete now. Raises FrameError."""
        buffer = self._buffer
        buffer += chunk
        frames: list[tuple[Header, bytes]] = []
        self.ends = []
        position = 0  # consumed so far: the buffer is cut once at the end, not once a frame
        while True:
            if self._header is None:
                end = buffer.find(b"\n", max(position, self._searched))
                if (len(buffer) if end < 0 else end) - position > self.header_bytes:
                    raise FrameError(f"a header of more than {self.header_bytes} bytes")
                if end < 0:
                    self._searched = len(buffer) - position
                    break
                self._header, self._size = _header(bytes(buffer[position:end]))
                self._header_size = end + 1 - position
                position = end + 1
            size = self._size
            if size and self._sizes is not None:
                kind = self._header.get("type")
                if not isinstance(kind, str) or size > self._sizes.get(kind, 0):
                    raise FrameError(f"{size} bytes behind {_header_shown(self._header)}")
            if len(buffer) - position < size:
                self._searched = 0
                break
            with memoryview(buffer) as view:
                frames.append((self._header, bytes(view[position : position + size]) if size else b""))
            position += size
            self.consumed += self._header_size + size
            self.ends.append(self.consumed)
            self._header = None
            self._searched = 0
        del buffer[:position]
        return frames


def _header(line: bytes) -> tuple[Header, int]:
    """Return a header and how many bytes follow it. Raises FrameError."""
    try:
        header = loads(line)
    except ValueError:
        header = None
    if isinstance(header, dict):
        size = header.get("size", 0)
        if type(size) is int and 0 <= size <= SIZE_MAX:
            return header, size
    raise FrameError(f"no frame: {line[:LINE_SHOWN_BYTES]!r}")


def _header_shown(header: Header) -> str:
    return ascii(dumps(header)[:LINE_SHOWN_BYTES])


def to_bytes(text: str) -> bytes:
    """Return the bytes of a word that travelled as JSON: UTF-8, undecodable bytes as lone surrogates."""
    return text.encode("utf-8", "surrogateescape")


def to_text(data: bytes) -> str:
    """Return the word of bytes: the inverse of to_bytes.

    >>> to_bytes(to_text(b"\\xff caf\\xc3\\xa9")) == b"\\xff caf\\xc3\\xa9"
    True
    """
    return data.decode("utf-8", "surrogateescape")
