"""The workspace as it travels: one zip, made once for all hosts.

A zip's own directory holds neither names that are no UTF-8 nor modes of every kind, so members have plain numbers for
names, and ``index.json`` says what each one is.
"""

from __future__ import annotations

import json
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from mesh.core.errors import MeshError
from mesh.workspace.listing import MOST_NAMED, Entry, Kind, Listing, told

INDEX = "index.json"
PIECE = 1 << 18  # bytes read at a time
PROBE = 1 << 16  # bytes that tell whether a file is worth compressing
WORTH = 0.9  # of its size
TRIES = 3  # for a file that changes while it is read


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What went into a pack."""

    files: int
    size: int  # bytes of the pack


def make(listing: Listing, into: IO[bytes], step: Callable[[bytes], None] = lambda path: None) -> Packed:
    """Write the pack to a file.

    step: called with each file's path while it is open, for tests
    Raises MeshError naming files that change faster than they are read, or cannot be read.
    """
    index: list[list[object]] = []
    troubles: list[str] = []
    files = 0
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as pack:
        writer = _Writer(listing.root, pack, step)
        for entry in listing.entries:
            member = ""
            if entry.kind is Kind.FILE:
                try:
                    found = writer.add(entry)
                except FileNotFoundError:  # deleted meanwhile: it does not belong any more
                    continue
                except OSError as error:
                    troubles.append(f"{told(entry.path)}: {error.strerror}")
                    continue
                if found is None:
                    troubles.append(f"{told(entry.path)}: changes while it is read")
                    continue
                entry, member = found
                files += 1
            name, target = entry.path.decode("latin-1"), entry.target.decode("latin-1")
            index.append([name, entry.kind.value, entry.mode, entry.mtime_ns, target, member])
        pack.writestr(INDEX, json.dumps(index))
    if troubles:
        raise MeshError(
            "cannot send:\n" + "\n".join(troubles[:MOST_NAMED]),
            hint="name what a running program writes under ignore: in mesh.yaml, or wait for it",
        )
    return Packed(files=files, size=into.tell())


class _Writer:
    """Adds files under numbers."""

    def __init__(self, root: bytes, pack: zipfile.ZipFile, step: Callable[[bytes], None]) -> None:
        self._root, self._pack, self._step = root, pack, step
        self._count = 0

    def add(self, entry: Entry) -> tuple[Entry, str] | None:
        """Add a file as it is at one moment; return the entry as it was then and the member's name.

        None if it changed each time; what was added then stands in the pack, and nothing refers to it.
        """
        for _ in range(TRIES):
            # Not a link and not a FIFO, even if it has become one since it was listed.
            descriptor = os.open(os.path.join(self._root, entry.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                before = os.fstat(descriptor)
                if not stat.S_ISREG(before.st_mode):
                    return None
                member = self._copy(file, before.st_size)
                self._step(entry.path)
                after = os.fstat(descriptor)
            if member and (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                mode = stat.S_IMODE(before.st_mode)
                return Entry(entry.path, Kind.FILE, mode, before.st_size, before.st_mtime_ns), member
        return None

    def _copy(self, file: IO[bytes], size: int) -> str:
        """Add size bytes of a file; return the member's name, or "" if the file had another size."""
        self._count += 1
        info = zipfile.ZipInfo(str(self._count))
        head = file.read(PROBE)
        shrinks = len(zlib.compress(head, 1)) < WORTH * len(head)
        info.compress_type = zipfile.ZIP_DEFLATED if shrinks else zipfile.ZIP_STORED
        info.file_size = size  # decides whether the member needs zip64
        copied = 0
        with self._pack.open(info, "w") as member:
            while head and copied < size:
                head = head[: size - copied]
                member.write(head)
                copied += len(head)
                head = file.read(PIECE)
        return info.filename if copied == size and not head else ""
