"""Writing pulled files into one directory. Whatever a host names, no byte is written outside of it.

The system gets no path from a host: directories are opened one below the other, none of them through a link. A file is
written in a directory for unfinished files and moved to its path when it is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from mesh.core.errors import MeshError, PathRefused
from mesh.core.pull import Offer
from mesh.workspace.manifest import new_hash

# The directory of unfinished files, inside the directory of the pull, so that files can be renamed to their path. No
# other name is refused to the hosts.
PARTS = b".mesh-parts"
PIECE_BYTES = 1 << 18  # read at a time
HOLE_BYTES = 1 << 16  # this many zeros are left out as a hole of a new file
ZEROS = bytes(HOLE_BYTES)
MODE_BITS = 0o777  # the mode bits that are taken from a host, so that no host can give us a setuid program
KINDS = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


NOTHING = Offer(size=0, hash="")


class PulledFiles:
    """The directory of one host's files. Not for several threads; all methods may raise PathRefused and OSError.

    Directories get their modes and times in ``close``, after all their files.
    """

    def __init__(self, place: Path, made: Callable[[Path], None] = lambda place: None) -> None:
        """place: made for the first path; its parent may be a link, itself it must be a directory.

        made: called with the parent if it was made as well
        """
        self._place, self._made = place, made
        self._root = -1
        self._parts = -1  # the directory of unfinished files, once it is needed
        self._entered: tuple[bytes, int] = (b"", -1)  # the last directory that was opened
        self._directories: dict[bytes, tuple[int, int]] = {}  # mode and mtime_ns for ``close``; -1: unchanged
        self._file = -1  # the file that is being written
        self._path = b""
        self._digest: _Hash = new_hash()
        self._offer = NOTHING
        self._written = 0  # bytes of the file

    # ---- paths

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Make or keep a directory; "" is the pull's own."""
        if path:
            self._parent_of(path)
        self._enter(path, 0o700)  # closed to others until it has its own mode
        self._directories[path] = mode & MODE_BITS, mtime_ns

    def link(self, path: bytes, target: bytes, mtime_ns: int) -> bool:
        """Make a symbolic link to any target, because mesh follows none. Return False if it was there."""
        parent, name = self._parent_of(path)
        if self._kind(parent, name) == stat.S_IFLNK and os.readlink(name, dir_fd=parent) == target:
            return False
        parts, part = self._make_parts(), part_of(path)
        if self._kind(parts, part):
            os.unlink(part, dir_fd=parts)
        os.symlink(target, part, dir_fd=parts)
        os.utime(part, ns=(mtime_ns, mtime_ns), dir_fd=parts, follow_symlinks=False)
        self._move(path, parent, name)
        return True

    def has(self, path: bytes, mode: int, mtime_ns: int, size: int) -> bool:
        """Return True if a file of this size and time is here from an earlier pull, and give it the mode."""
        parent, name = self._parent_of(path)
        if self._kind(parent, name) != stat.S_IFREG:
            return False
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if (status.st_size, status.st_mtime_ns) != (size, mtime_ns):
            return False
        if stat.S_IMODE(status.st_mode) != mode & MODE_BITS:
            os.chmod(name, mode & MODE_BITS, dir_fd=parent)
        return True

    def offer(self, path: bytes, size: int) -> Offer:
        """Return the part of a file that is here: the rest of an earlier pull, or the file at its path."""
        parent, name = self._parent_of(path)
        for directory, known, complete in ((self._open_parts(), part_of(path), False), (parent, name, True)):
            file = self._open(directory, known) if directory >= 0 else -1
            if file < 0:
                continue
            try:
                length, digest = os.fstat(file).st_size, new_hash()
                if 0 < length <= size:
                    for piece in _pieces(file, length):
                        digest.update(piece)
                    return Offer(size=length, hash=digest.hexdigest(), complete=complete)
            finally:
                os.close(file)
        return NOTHING

    # ---- one file

    def begin(self, path: bytes, offer: Offer, offset: int) -> None:
        """Begin to write a file, or begin again; offset: 0, or all that was offered. Raises ValueError for another."""
        if offset not in (0, offer.size):
            raise ValueError("an offset that was not offered")
        self.drop()
        parent, name = self._parent_of(path)
        parts, part = self._make_parts(), part_of(path)
        if self._kind(parts, part) and (not offset or offer.complete or not self._is_ours(parts, part)):
            os.unlink(part, dir_fd=parts)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._file = os.open(part, flags, 0o600, dir_fd=parts)
        self._path, self._offer, self._digest, self._written = path, offer, new_hash(), 0
        if offset:
            source = self._open(parent, name) if offer.complete else self._open(parts, part)
            if source < 0:
                raise PathRefused("was changed here meanwhile")
            try:
                for piece in _pieces(source, offset):
                    self._digest.update(piece)
                    if offer.complete:
                        _write(self._file, piece)
            finally:
                os.close(source)
            if self._digest.hexdigest() != offer.hash:
                raise PathRefused("was changed here meanwhile")
            os.lseek(self._file, offset, os.SEEK_SET)
            self._written = offset

    def write(self, data: bytes) -> None:
        _write(self._file, data)
        self._digest.update(data)
        self._written += len(data)

    def finish(self, content: str, mode: int, mtime_ns: int) -> None:
        """Move the complete file to its path. Raises PathRefused if it has another hash."""
        if self._digest.hexdigest() != content:
            self.drop(keep=False)
            raise PathRefused("arrived damaged")
        os.ftruncate(self._file, self._written)  # it may end with a hole
        os.utime(self._file, ns=(mtime_ns, mtime_ns))
        os.fchmod(self._file, mode & MODE_BITS)
        parent, name = self._parent_of(self._path)
        self.drop()
        self._move(self._path, parent, name)

    def drop(self, *, keep: bool = True) -> None:
        """Stop writing the file; keep: leave its part for the next pull."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if not keep:
                os.unlink(part_of(self._path), dir_fd=self._parts)

    def close(self) -> None:
        """Give directories their modes and times, and close all descriptors."""
        self.drop()
        try:
            self._close_parts()
            for path in sorted(self._directories, reverse=True):  # entries of a directory come after it
                mode, mtime_ns = self._directories[path]
                descriptor = self._enter(path)
                if mtime_ns >= 0:
                    os.utime(descriptor, ns=(mtime_ns, mtime_ns))
                os.fchmod(descriptor, mode)
        finally:
            self._directories = {}
            self._leave()
            if self._root >= 0:
                os.close(self._root)
                self._root = -1

    # ---- directories

    def _parent_of(self, path: bytes) -> tuple[int, bytes]:
        """Open the directory of a path, made if need be; return it with the path's name there."""
        parent, _, name = path.rpartition(b"/")
        if not name:
            raise PathRefused("is no name of a file")
        _check(name)
        if path == PARTS or path.startswith(PARTS + b"/"):
            raise PathRefused(f"has a name that is kept for unfinished files ({PARTS.decode()})")
        return self._enter(parent), name

    def _enter(self, path: bytes, mode: int = 0o777) -> int:
        """Open a directory, and make the missing ones on the way, with this mode less the umask."""
        if self._root < 0:
            self._make_root()
        if not path:
            return self._root
        if path == self._entered[0]:
            return self._entered[1]
        self._leave()
        current, way = os.dup(self._root), b""
        try:
            for name in path.split(b"/"):
                _check(name)
                way = way + b"/" + name if way else name
                below = self._step(current, name, way, mode)
                os.close(current)
                current = below
        except BaseException:
            os.close(current)
            raise
        self._entered = path, current
        return current

    def _step(self, parent: int, name: bytes, way: bytes, mode: int) -> int:
        kind = self._kind(parent, name)
        if not kind:
            os.mkdir(name, mode, dir_fd=parent)
        elif kind != stat.S_IFDIR:
            what = KINDS.get(kind, "no directory")
            raise PathRefused(f"{os.fsdecode(way)} is {what} here: remove it, or pull --into another directory")
        else:
            mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:  # an earlier pull has removed our own permission
                self._directories.setdefault(way, (mode, -1))
                os.chmod(name, mode | stat.S_IRWXU, dir_fd=parent)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)

    def _open_parts(self) -> int:
        """Open the directory of unfinished files, -1 if there is none."""
        root = self._enter(b"")
        if self._parts < 0 and self._kind(root, PARTS) == stat.S_IFDIR:
            self._parts = os.open(PARTS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        return self._parts

    def _make_parts(self) -> int:
        """Open the directory of unfinished files, and make it if need be."""
        root = self._enter(b"")
        if self._parts < 0 and not self._kind(root, PARTS):
            mode = stat.S_IMODE(os.fstat(root).st_mode)
            if mode & stat.S_IRWXU != stat.S_IRWXU:  # an earlier pull has removed our own permission
                self._directories.setdefault(b"", (mode, -1))
                os.fchmod(root, mode | stat.S_IRWXU)
            os.mkdir(PARTS, 0o700, dir_fd=root)
        if self._open_parts() < 0:
            raise PathRefused(f"{PARTS.decode()} is no directory here: remove it, or pull --into another directory")
        return self._parts

    def _close_parts(self) -> None:
        """Close the directory of unfinished files, and remove it if it is empty."""
        if self._parts >= 0:
            os.close(self._parts)
            self._parts = -1
            with contextlib.suppress(OSError):
                os.rmdir(PARTS, dir_fd=self._root)

    def _leave(self) -> None:
        if self._entered[1] >= 0:
            os.close(self._entered[1])
        self._entered = b"", -1

    def _make_root(self) -> None:
        above = self._place.parent
        try:
            if not above.is_dir():
                above.mkdir(parents=True, exist_ok=True)
                self._made(above)
            if not self._place.is_symlink():
                self._place.mkdir(exist_ok=True)
            root = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            place = self._place if above.is_dir() else above
            what = "it is a link" if self._place.is_symlink() else error.strerror
            raise MeshError(f"cannot pull into {place}: {what}", hint="--into names another directory") from error
        try:
            fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(root)
            raise MeshError(f"another pull is writing into {self._place}", hint="wait for it, or use --into") from None
        except OSError:  # a file system without locks
            pass
        self._root = root

    def _kind(self, parent: int, name: bytes) -> int:
        """Return the type of an entry: one of stat.S_IFMT, or 0 if there is none."""
        try:
            return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return 0

    def _is_ours(self, parent: int, part: bytes) -> bool:
        """Return True for a regular file without another name, through which we would write into another file."""
        status = os.stat(part, dir_fd=parent, follow_symlinks=False)
        return stat.S_ISREG(status.st_mode) and status.st_nlink == 1

    def _open(self, parent: int, name: bytes) -> int:
        """Open a regular file for reading; return -1 if there is none that we may read."""
        if self._kind(parent, name) != stat.S_IFREG:
            return -1
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except PermissionError:
            return -1

    def _move(self, path: bytes, parent: int, name: bytes) -> None:
        """Move a complete file to its path, in place of a file or link there; never in place of a directory."""
        try:
            os.rename(part_of(path), name, src_dir_fd=self._parts, dst_dir_fd=parent)
        except IsADirectoryError:
            os.unlink(part_of(path), dir_fd=self._parts)
            raise PathRefused("is a directory here: remove it, or pull --into another directory") from None


def part_of(path: bytes) -> bytes:
    """Return the name of an unfinished file: paths may be longer than a name can be.

    >>> part_of(b"models/model.pt")
    b'7ebf65e424c362c429baaf365d89f593'
    """
    return hashlib.blake2b(path, digest_size=16).hexdigest().encode()


def _check(name: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise PathRefused("leads out of its directory")


def _pieces(file: int, size: int) -> Iterator[bytes]:
    while size and (piece := os.read(file, min(PIECE_BYTES, size))):
        size -= len(piece)
        yield piece


def _write(file: int, data: bytes) -> None:
    """Write at the end of a new file; leave out blocks of zeros as holes, which read as zeros."""
    start = 0
    for place in range(0, len(data) - HOLE_BYTES + 1, HOLE_BYTES):
        if not data[place] and data[place : place + HOLE_BYTES] == ZEROS:
            _write_all(file, data[start:place])
            os.lseek(file, HOLE_BYTES, os.SEEK_CUR)
            start = place + HOLE_BYTES
    _write_all(file, data[start:])


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
