"""A log that never grows beyond its share of the disk: it keeps its head and its newest part."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from mesh.rundir.layout import marker, read_tail_name, tail_name

OPEN_FILES = 64  # at a time; a laptop may have 256 descriptors in all
SMALL_BYTES = 1 << 14  # of a head, and of each of a tail's two files, at least
RESERVE_RATIO = 0.05  # of the disk, that logs use only for this minimum
LOOK_BYTES = 1 << 16  # that are written between two looks at the disk
PIECE_BYTES = 1 << 18  # that are written together
RETRY_S = 1.0  # from a failed write to the next attempt


class Gap(Struct, frozen=True, kw_only=True):
    """Bytes of a log that were left out."""

    at: int  # the place of its marker in the log's file
    count: int  # bytes
    marker: int  # bytes of the marker


class Shelf:
    """The room on the disk and the few descriptors that all logs of a run share."""

    def __init__(
        self, limit: int, shares: int, failed: Callable[[OSError], None], is_short: Callable[[Path], bool] | None = None
    ) -> None:
        """limit: bytes for all logs together; shares: the highest number of logs, by weight; failed: called when a
        write fails; is_short: returns True if the disk of a directory has no room to spare.
        """
        # An eighth is for heads, in the order of their writes; a quarter for tails; the rest is for any log.
        self._share = max(SMALL_BYTES, limit // (8 * shares))
        self._common = max(0, limit - 3 * self._share * shares)
        self._look, self._look_in = is_short or is_disk_short, 0
        self._is_short = False
        self.failed = failed
        self._open: OrderedDict[Path, int] = OrderedDict()

    def share(self, weight: int) -> int:
        """Return the bytes that the head, or a file of the tail, of a log may have."""
        return SMALL_BYTES if self._is_short else self._share * weight

    def head_room(self, size: int, weight: int) -> int:
        """Return the bytes by which a head may grow."""
        own = max(0, self.share(weight) - size)
        return own + (0 if self._is_short else self._common)

    def wrote(self, path: Path, before: int, after: int, weight: int, *, is_head: bool) -> None:
        """Note that a file has grown."""
        if is_head:
            own = self.share(weight)
            self._common = max(0, self._common - max(0, after - max(before, own)))
        self._look_in -= after - before
        if self._look_in <= 0:
            self._look_in = LOOK_BYTES
            self._is_short = self._look(path.parent)

    def descriptor(self, path: Path) -> int:
        """Return a descriptor that appends to a file. Raises OSError."""
        descriptor = self._open.get(path)
        if descriptor is None:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            descriptor = self._open[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._open.move_to_end(path)
        return descriptor

    def close(self, path: Path) -> None:
        """Close a file, if it is open."""
        if path in self._open:
            os.close(self._open.pop(path))

    def close_all(self) -> None:
        for path in list(self._open):
            self.close(path)


class LogFile:
    """A log. The part after its head is in two files beside it, until ``join`` puts all into one."""

    def __init__(self, path: Path, shelf: Shelf, *, weight: int = 1, unit: int = 1) -> None:
        """weight: its number of shares; unit: bytes that are never torn; every addition is a multiple of it."""
        self.path, self._shelf, self._weight, self._unit = path, shelf, weight, unit
        self.size = 0  # of all additions, written or not
        self._waiting: list[bytes] = []
        self._place = 0  # of all additions: bytes that are written or left out
        self._before = 0  # bytes by which places in the log's own file are less than those in all additions
        self._head = -1  # bytes of all additions in the log's own file, once it gets no more
        self._tail: list[tuple[int, int]] = []  # the (place, size) of its files
        self._in_file = 0  # of the file that is being written
        self.unwritten = b""  # the newest additions, while the disk is full
        self._is_torn = False  # the next bytes to write were left out
        self._again = 0.0  # time.monotonic() of the next attempt after a failed one; 0: none has failed

    def resume(self, before: int) -> None:
        """Go on with the log of another client that has left, or died. Raises OSError.

        before: bytes that were left out of the log's own file, less those of the markers in their place
        """
        tails: dict[int, list[tuple[int, int]]] = {}
        for found in sorted(os.listdir(self.path.parent)):
            told = read_tail_name(found)
            if told and told[0] == self.path.name:
                tails.setdefault(told[1], []).append((told[2], self.path.with_name(found).stat().st_size))
        own = self.path.stat().st_size if self.path.exists() else 0
        self._before = before
        if tails:
            self._head, self._tail = max(tails.items())
            if own > self._head:  # its parts were being joined
                os.truncate(self.path, self._head)
            start, self._in_file = self._tail[-1]
            self.size = start + self._in_file
        else:
            self._in_file, self.size = own, own + before
        if torn := self._in_file % self._unit:
            os.truncate(self._current(), self._in_file - torn)
            self._in_file, self.size = self._in_file - torn, self.size - torn
            self._tail[-1:] = [(start, self._in_file) for start, _ in self._tail[-1:]]
        self._place = self.size
        self._shelf.wrote(self.path, 0, min(own, self._head) if tails else own, self._weight, is_head=True)

    def add(self, data: bytes) -> None:
        """Append bytes, in memory."""
        self._waiting.append(data)
        self.size += len(data)

    def make(self) -> None:
        """Make the file, even if there are no additions."""
        try:
            self._shelf.descriptor(self.path)
        except OSError as error:
            self._shelf.failed(error)

    @property
    def is_behind(self) -> bool:
        """Return True if additions wait because the disk is full."""
        return self._again > 0

    def flush(self) -> None:
        """Write all additions. While that fails, keep the newest SMALL_BYTES of them in memory."""
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting.clear()
        if self._again:
            data = self.unwritten + data
            if time.monotonic() < self._again:
                self._hold(data)
                return
        elif not data:
            return
        begin = self._place
        try:
            self._write(memoryview(data))
            self._again, self.unwritten = 0.0, b""
        except OSError as error:
            self._shelf.failed(error)
            self._again = time.monotonic() + RETRY_S
            self._free()
            self._hold(data[self._place - begin :])

    def finish(self) -> None:
        """Write the rest; on a full disk by taking room from the head."""
        self._again = min(self._again, 1e-9)
        self.flush()
        if self.unwritten:
            self._make_room()
            self._again = 1e-9
            self.flush()
            self._leave_out(len(self.unwritten))
        self._shelf.close(self._current())

    def join(self) -> list[Gap]:
        """Append the tail to the head, after a line with the number of bytes that are left out between them.

        Call ``drop_tail`` once the places of the gaps are recorded: until then only the tail's files show them.
        Raises OSError, and leaves all files unchanged then.
        """
        gaps = []
        head = at = self._head if self._head >= 0 else self._in_file
        place = head + self._before
        try:
            for start, size in self._tail:
                with self._tail_path(start).open("rb") as part, self.path.open("ab") as file:
                    if start > place:
                        text = marker(start - place)
                        gaps.append(Gap(at=at, count=start - place, marker=len(text)))
                        at += file.write(text)
                    import shutil  # most logs have no tail

                    shutil.copyfileobj(part, file, PIECE_BYTES)
                place, at = start + size, at + size
        except OSError:
            os.truncate(self.path, head)
            raise
        if place < self.size:  # nor was there room at the end
            gaps.append(Gap(at=at, count=self.size - place, marker=0))
        return gaps

    def left_out(self) -> int:
        """Return the number of added bytes that are in no file. Valid after ``finish``."""
        head = self._head if self._head >= 0 else self._in_file
        return self.size - self._before - head - sum(size for _, size in self._tail)

    def drop_tail(self) -> None:
        """Remove the files that were joined."""
        kept = self.size - self._before - self.left_out()
        self._drop(0)
        self._head = kept

    def _write(self, view: memoryview) -> None:
        while view:
            room = self._room()
            path, before = self._current(), self._in_file
            count = os.write(self._shelf.descriptor(path), view[: min(room, PIECE_BYTES)])
            if torn := count % self._unit:  # the disk is full
                os.truncate(path, before + count - torn)
                count -= torn
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self._place, self._in_file = self._place + count, before + count
            if self._tail:
                self._tail[-1] = self._tail[-1][0], self._in_file
            self._shelf.wrote(path, before, self._in_file, self._weight, is_head=not self._tail)
            view = view[count:]

    def _room(self) -> int:
        """Return the bytes that may be written to the present file, which is the next one if that is full."""
        if not self._is_torn:
            if self._head < 0:
                room = self._shelf.head_room(self._in_file, self._weight)
            else:
                room = self._shelf.share(self._weight) - self._in_file
            room -= room % self._unit
            if room > 0:
                return room
        self._shelf.close(self._current())
        if self._head < 0:
            self._head = self._in_file
        self._drop(1)
        self._tail.append((self._place, 0))
        self._in_file, self._is_torn = 0, False
        return max(self._unit, self._shelf.share(self._weight) // self._unit * self._unit)

    def _hold(self, data: bytes) -> None:
        """Keep the newest part of data in memory."""
        most = SMALL_BYTES - SMALL_BYTES % self._unit
        if len(data) > most:
            self._leave_out(len(data) - most)
        self.unwritten = data[-most:]

    def _leave_out(self, count: int) -> None:
        self._place += count
        self._is_torn = self._is_torn or count > 0

    def _free(self) -> None:
        """Remove the older file of the tail, or an empty one."""
        if self._tail and not self._in_file:
            self._drop_one(-1)
            self._in_file, self._is_torn = self._tail[-1][1] if self._tail else self._head, True
        self._drop(1)

    def _make_room(self) -> None:
        """Take room from the last bytes written for newer ones."""
        try:
            if self._in_file > 4 * SMALL_BYTES:  # enough to join them as well
                self._in_file -= 3 * SMALL_BYTES + (self._in_file - 3 * SMALL_BYTES) % self._unit
                os.truncate(self._current(), self._in_file)
                if self._tail:
                    self._tail[-1] = self._tail[-1][0], self._in_file
                else:
                    self._head = self._in_file
            else:
                self._drop(0)
        except OSError as error:
            self._shelf.failed(error)
        self._is_torn = True

    def _drop(self, kept: int) -> None:
        """Remove all but the newest files of the tail."""
        while len(self._tail) > kept:
            self._drop_one(0)

    def _drop_one(self, index: int) -> None:
        path = self._tail_path(self._tail.pop(index)[0])
        self._shelf.close(path)
        with contextlib.suppress(OSError):  # the file's name shows its use as long as it exists
            path.unlink()

    def _current(self) -> Path:
        return self._tail_path(self._tail[-1][0]) if self._tail else self.path

    def _tail_path(self, start: int) -> Path:
        return self.path.with_name(tail_name(self.path.name, self._head, start))


def is_disk_short(directory: Path) -> bool:
    """Return True if the disk of a directory has only the room that must stay free."""
    disk = os.statvfs(directory)
    return disk.f_bavail < RESERVE_RATIO * disk.f_blocks
