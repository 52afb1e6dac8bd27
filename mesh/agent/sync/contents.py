"""The store of contents under their hashes: files that a sync replaced or deleted need not travel again."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from hashlib import blake2b as Digest
    from typing import IO

PIECE_BYTES = 1 << 18  # read and written at a time
HOLE_BYTES = 1 << 16  # so many zeros, and more, are not written: the file has a hole there, which reads as zeros
ZEROS = bytes(HOLE_BYTES)
HASH_BYTES = 20  # of BLAKE2b
STORE_BYTES = 2 * 10**9  # in the store
DISK_DIVISOR = 10  # and not more than the disk's size divided by this
LOG = "kept"  # bytes that came, one number a line: the store is measured only when they are too many
FILE_MODE = 0o600


def new_digest(data: bytes = b"") -> Digest:
    """Return the hash of a content, to be updated."""
    try:
        from _blake2 import blake2b  # hashlib has the same, and reads OpenSSL as well
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=HASH_BYTES)


def hash_of(data: bytes) -> str:
    """Return the hash of a short content."""
    name: str = new_digest(data).hexdigest()
    return name


def is_hash(text: object) -> bool:
    """Return True for a text that can be the name of a content."""
    return isinstance(text, str) and len(text) == 2 * HASH_BYTES and not text.strip("0123456789abcdef")


def open_file(path: str | bytes) -> IO[bytes] | None:
    """Open a regular file for reading; return None for a link, for no file, and for one that cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    return None


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """Read the rest of a file."""
    piece = file.read(PIECE_BYTES)
    while piece:
        yield piece
        piece = file.read(PIECE_BYTES)


def hash_file(path: str | bytes) -> str:
    """Return the hash of a file; "" if it cannot be read."""
    file = open_file(path)
    if file is None:
        return ""
    digest = new_digest()
    with file:
        for piece in pieces_of(file):
            digest.update(piece)
    name: str = digest.hexdigest()
    return name


def write(path: str | bytes, pieces: Iterable[bytes], size: int, name: str) -> bool:
    """Write a new file. Return False, and leave none, unless it has ``size`` bytes with the hash ``name``.

    Raises OSError.
    """
    digest, length = new_digest(), size
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        for piece in pieces:
            size -= len(piece)
            if size < 0:  # a pack may unpack to anything, but no more than this reaches the disk
                break
            digest.update(piece)
            _write_sparse(descriptor, piece)
        if not size:
            os.ftruncate(descriptor, length)  # it may end with a hole
    finally:
        os.close(descriptor)
    if not size and digest.hexdigest() == name:
        return True
    os.unlink(path)
    return False


def _write_sparse(descriptor: int, data: bytes) -> None:
    """Write at the end of a new file; turn blocks of zeros into holes."""
    start = 0
    for place in range(0, len(data) - HOLE_BYTES + 1, HOLE_BYTES):
        if not data[place] and data[place : place + HOLE_BYTES] == ZEROS:
            _write_all(descriptor, data[start:place])
            os.lseek(descriptor, HOLE_BYTES, os.SEEK_CUR)
            start = place + HOLE_BYTES
    _write_all(descriptor, data[start:])


def _write_all(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(descriptor, data[written:])


def copy(source: str | bytes, to_path: str | bytes, name: str) -> bool:
    """Copy a content. Return False, and leave no copy, if the file is not there or has another hash. Raises OSError."""
    file = open_file(source)
    if file is None:
        return False
    with file:
        return write(to_path, pieces_of(file), os.fstat(file.fileno()).st_size, name)


class Store:
    """A directory of contents, which several processes and hosts may use at a time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._limit = -1
        self._kept = 0  # bytes, since the limit was checked

    def path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def has(self, name: str, size: int) -> bool:
        """Return True if a content of that size is there, unread. Delete one of another size, which is damaged."""
        path = self.path(name)
        try:
            if os.lstat(path).st_size == size:
                return True
        except OSError:
            return False
        _quietly(os.unlink, path)
        return False

    def take(self, name: str, to_path: str | bytes) -> bool:
        """Copy a content to a new file; return False if it is not there. Delete a damaged one. Raises OSError."""
        path = self.path(name)
        if copy(path, to_path, name):
            _quietly(os.utime, path)
            return True
        _quietly(os.unlink, path)
        return False

    def keep(self, path: bytes, name: str) -> bool:
        """Move a file into the store as the content ``name``; return False if it stays, as on another file system.

        A file with another name (a hard link) stays as well: it belongs to the host, and may change.
        """
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size > self._most():
                return False
            os.chmod(path, FILE_MODE)
            os.rename(path, self.path(name))
        except OSError:
            return False
        self._kept += status.st_size
        _quietly(os.utime, self.path(name))
        return True

    def trim(self, most: int = -1) -> None:
        """Delete the contents used least recently, if those that came since the last time may be too much.

        most: bytes that may stay in any case; -1: the limit of the store
        """
        limit = self._most() if most < 0 else most
        if most < 0 and not self._over(limit):
            return
        found = []
        for name in self.names():
            try:
                status = os.lstat(self.path(name))
            except OSError:
                continue
            found.append((status.st_mtime_ns, status.st_size, name))
        total = sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if total <= limit:
                break
            _quietly(os.unlink, self.path(name))
            total -= size
        self._note(total, "w")

    def names(self) -> frozenset[str]:
        """Return the names of the contents."""
        try:
            return frozenset(filter(is_hash, os.listdir(self._directory)))
        except OSError:
            return frozenset()

    def _over(self, limit: int) -> bool:
        """Log the bytes that came; return True if all contents together may be more than the limit."""
        kept, self._kept = self._kept, 0
        if not kept:
            return False
        try:
            with open(self.path(LOG)) as log:
                total = kept + sum(int(line) for line in log)
        except (OSError, ValueError):
            return True
        self._note(kept, "a")
        return total > limit

    def _note(self, size: int, how: str) -> None:
        try:
            with open(self.path(LOG), how) as log:
                log.write(f"{size}\n")
        except OSError:
            pass

    def _most(self) -> int:
        """Return the limit of the store in bytes. Makes the directory."""
        if self._limit < 0:
            try:
                os.makedirs(self._directory, 0o700, exist_ok=True)
                disk = os.statvfs(self._directory)
                self._limit = min(STORE_BYTES, disk.f_blocks * disk.f_frsize // DISK_DIVISOR)
            except OSError:
                self._limit = 0
        return self._limit


def _quietly(do: Callable[[str], None], path: str) -> None:
    """Do something with a file that another process may have deleted meanwhile."""
    try:
        do(path)
    except OSError:
        pass
