"""The spool: frames that wait for a slow or absent client, in memory at first, then in files. No rank waits for it."""

from __future__ import annotations

import os

from mesh.protocol.answers import LeftOut, Output
from mesh.protocol.frames import Decoder
from mesh.protocol.messages import encode

PIECE_BYTES = 1 << 18  # that are written to disk, read back and sent together
MEMORY_BYTES = 1 << 20  # that wait in memory before the first file is written
DISK_RESERVE_SHARE = 0.05  # of the disk, that is never used


class Spool:
    """A queue of frames of any length. Beyond its limit it keeps the oldest and the newest.

    It counts the output that it leaves out, and keeps all other messages (starts, exits).
    """

    def __init__(self, directory: str, limit: int) -> None:
        """directory: made when the first file is needed; limit: bytes on disk"""
        self._directory, self._limit = directory, limit
        self._first: list[bytes] = []  # next to be taken, in memory
        self._first_size = 0
        self._pieces: list[str | Gap] = []  # between them: files, and at most one gap
        self._on_disk = 0
        self._last: list[bytes] = []  # being gathered for the next file
        self._last_size = 0
        self._count = 0  # files ever written

    def __bool__(self) -> bool:
        return bool(self._first or self._pieces or self._last)

    def add(self, frame: bytes) -> None:
        """Append a frame."""
        if not self._pieces and not self._last and self._first_size < MEMORY_BYTES:
            self._first.append(frame)
            self._first_size += len(frame)
            return
        self._last.append(frame)
        self._last_size += len(frame)
        if self._last_size >= PIECE_BYTES:
            self._store()

    def take(self) -> bytes:
        """Remove and return the next frames, one or several; b"" if there is nothing."""
        if not self._first:
            self._refill()
        if not self._first:
            return b""
        taken, size = 0, 0
        while taken < len(self._first) and size < PIECE_BYTES:
            size += len(self._first[taken])
            taken += 1
        data = b"".join(self._first[:taken])
        del self._first[:taken]
        self._first_size -= len(data)
        return data

    def close(self) -> None:
        """Remove every file."""
        for piece in self._pieces:
            if isinstance(piece, str):
                os.unlink(piece)
        self._pieces = []
        try:
            os.rmdir(self._directory)
        except OSError:
            pass

    def _refill(self) -> None:
        if self._pieces:
            piece = self._pieces.pop(0)
            self._first = [piece.frames() if isinstance(piece, Gap) else self._load(piece)]
        else:
            self._first, self._last, self._last_size = self._last, [], 0
        self._first_size = sum(map(len, self._first))

    def _store(self) -> None:
        """Write the gathered frames into a file, and keep within the limit."""
        data, size = self._last, self._last_size
        self._last, self._last_size = [], 0
        try:
            if not self._count:
                os.makedirs(self._directory, 0o700, exist_ok=True)
            self._count += 1
            path = os.path.join(self._directory, str(self._count))
            with open(path, "xb") as file:
                file.writelines(data)
        except OSError:  # the disk is full, and has no room for the newest
            self._gap().add(b"".join(data))
            return
        self._pieces.append(path)
        self._on_disk += size
        while self._on_disk > self._limit or (self._on_disk > PIECE_BYTES and self._is_disk_short()):
            after_gap = self._pieces.index(self._gap()) + 1
            if after_gap == len(self._pieces):
                return
            victim = self._pieces.pop(after_gap)
            assert isinstance(victim, str)
            self._gap().add(self._load(victim))

    def _is_disk_short(self) -> bool:
        disk = os.statvfs(self._directory)
        return disk.f_bavail < DISK_RESERVE_SHARE * disk.f_blocks

    def _load(self, path: str) -> bytes:
        with open(path, "rb") as file:
            data = file.read()
        os.unlink(path)
        self._on_disk -= len(data)
        return data

    def _gap(self) -> Gap:
        """Return the gap in the middle, made if need be."""
        for piece in self._pieces:
            if isinstance(piece, Gap):
                return piece
        gap = Gap()
        self._pieces.insert((len(self._pieces) + 1) // 2, gap)
        return gap


class Gap:
    """The remains of frames that were left out."""

    def __init__(self) -> None:
        self._others: list[bytes] = []
        self._counts: dict[tuple[int, str], int] = {}

    def add(self, data: bytes) -> None:
        """Leave out the output in some frames."""
        decoder, begin = Decoder(), 0
        for (header, output), end in zip(decoder.feed(data), decoder.ends):
            if header["type"] == Output.NAME:
                key = header["rank"], header["stream"]
                self._counts[key] = self._counts.get(key, 0) + len(output)
            else:
                self._others.append(data[begin:end])
            begin = end

    def frames(self) -> bytes:
        """Return the frames that take the place of those that were left out."""
        counts = [
            encode(LeftOut(rank=rank, stream=stream, bytes=count)) for (rank, stream), count in self._counts.items()
        ]
        return b"".join([*counts, *self._others])
