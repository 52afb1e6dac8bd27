"""Values and interfaces that both ends of a pull share."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from mesh.core.events import HostEvent
from mesh.core.progress import Progress


class Offer(Struct, frozen=True, kw_only=True):
    """The beginning of a file that is here already."""

    size: int  # bytes; 0: none
    hash: str  # BLAKE2b of these bytes, "" of none
    complete: bool = False  # it is the file itself, and not the rest of an earlier pull


class Destination(Protocol):
    """The directory for the files of one host; whatever the host names, no byte is written outside of it.

    All methods may raise PathRefused, which is about one path, and OSError.
    """

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Make or keep a directory; it gets mode and time with ``close``."""

    def link(self, path: bytes, target: bytes, mtime_ns: int) -> bool:
        """Make a symbolic link. Return False if it was there already."""

    def has(self, path: bytes, mode: int, mtime_ns: int, size: int) -> bool:
        """Return True if a file of this size and time is here, and give it the mode."""

    def offer(self, path: bytes, size: int) -> Offer:
        """Return the part of a file that is here already."""

    def begin(self, path: bytes, offer: Offer, offset: int) -> None:
        """Begin to write a file, or begin again; offset: 0, or all that was offered. Raises ValueError for another."""

    def write(self, data: bytes) -> None:
        """Add bytes to it."""

    def finish(self, content: str, mode: int, mtime_ns: int) -> None:
        """Move the file to its path, if it has this hash."""

    def drop(self, *, keep: bool = True) -> None:
        """Stop writing the file; keep: leave its part for the next pull. Without a file, do nothing."""

    def close(self) -> None:
        """Give directories their modes and times, and close all descriptors. May be called twice."""


class Pulling(Progress, HostEvent, frozen=True, kw_only=True):
    """Progress of a pull from one host."""

    files: int  # files that are here
    bytes: int  # of contents that have come
    of: int  # bytes that are to come, as counted so far


class Pulled(HostEvent, frozen=True, kw_only=True):
    """All files that the host sends for a pull are here."""

    files: int  # files and links that are here now
    unchanged: int  # number of these that were here already
    bytes: int  # of contents that have come
    special_modes: int = 0  # files and directories that were setuid, setgid or sticky there, and are not here
    seconds: float  # since the host was reached


class NotPulled(HostEvent, frozen=True, kw_only=True, tag="not_pulled"):
    """A path that a pull does not bring from this host."""

    path: str  # as the user gave it, or as it would be here; for people
    reason: str
    fails: bool = True  # the pull is not complete without it; False: a socket, a device
