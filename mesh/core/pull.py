"""What the two ends of a pull know of the files that are here."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class Offer(Struct, frozen=True, kw_only=True):
    """The beginning of a file that is here already."""

    size: int  # bytes; 0: nothing of it
    hash: str  # BLAKE2b of these bytes, "" of nothing
    complete: bool = False  # it is the file itself, and not what is left of an earlier pull


class Destination(Protocol):
    """Where the files of one host are put; nothing is written outside of it, whatever the host names.

    All methods may raise PathRefused, which is about one path, and OSError.
    """

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Have a directory there; it gets mode and time with ``close``."""

    def link(self, path: bytes, target: bytes, mtime_ns: int) -> bool:
        """Have a symbolic link there. False if it was there already."""

    def has(self, path: bytes, mode: int, mtime_ns: int, size: int) -> bool:
        """Whether a file of this size and time is here; it gets the mode."""

    def offer(self, path: bytes, size: int) -> Offer:
        """What is here of a file of so many bytes."""

    def begin(self, path: bytes, offer: Offer, offset: int) -> None:
        """Begin to write a file, or begin again; offset: 0, or all that was offered. Raises ValueError for another."""

    def write(self, data: bytes) -> None:
        """Add bytes to it."""

    def finish(self, content: str, mode: int, mtime_ns: int) -> None:
        """Put it in its place, if it has this hash."""

    def drop(self, *, keep: bool = True) -> None:
        """Write no more of it; keep: what is here of it, for the next pull. No error if there is none."""

    def close(self) -> None:
        """Give directories their modes and times, and leave nothing open. May be called twice."""
