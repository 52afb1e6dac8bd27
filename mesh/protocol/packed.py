"""Rows that follow a message, as compressed JSON."""

from __future__ import annotations

import zlib

from .coding import dumps, loads
from .frames import FrameError
from .kinds import Wrong, as_it_is
from .records import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .kinds import Kind, T
    from .records import Record


def packed(rows: Sequence[Record]) -> bytes:
    """Return rows as the bytes that follow a message."""
    return zlib.compress(dumps(plain(rows)).encode(), 1)


def read_rows(name: str, kind: Kind[list[T]], data: bytes, most: int) -> list[T]:
    """Return the rows that followed a message. Raises FrameError.

    name: of the message; most: bytes that they may unpack to
    """
    try:
        return kind.check(loads(unpacked(data, most)), as_it_is)
    except (Wrong, ValueError) as error:
        raise FrameError(f"{name}: {error}") from None


def unpacked(data: bytes, most: int) -> bytes:
    """Return bytes that were compressed. Raises ValueError, also for more than ``most``, before they take memory."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(data, most)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked ({error})") from None
    if not unpacker.eof:
        raise ValueError(f"it does not end within {most} bytes")
    return found
