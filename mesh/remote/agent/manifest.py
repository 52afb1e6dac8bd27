"""What a tree is: the record of the last sync, and the changes that lead to the next. docs/sync.md has the format."""

from __future__ import annotations

import os
import stat
import struct
import zlib

from .lean import attrgetter, dumps, loads
from .state import CLEAN, DIRTY
from .store import hash_of, is_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, Final

    Entry = tuple[str, str, int, int, int, str]  # path, kind, mode, mtime_ns, size, content
    Status = tuple[int, int, int, int, int]  # inode, size, mtime_ns, ctime_ns, mode with kind

PATH: Final = 0  # places in an entry
KIND: Final = 1
MODE: Final = 2
MTIME: Final = 3
SIZE: Final = 4
CONTENT: Final = 5
FILE, DIRECTORY, LINK = "f", "d", "l"
STATUS = struct.Struct("<Q3qL")  # a status in the record
FEW = 16  # changed entries; to find them in the text is quicker than to write all of it anew
MOST = 1 << 29  # bytes of changes, unpacked; some millions of entries


# What shows that a path was not touched: the Status of a stat_result.
status_of: Callable[[os.stat_result], Status] = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")


class BadChanges(Exception):
    """Changes that do not fit to what is here, or that would lead outside the workspace."""


class OtherBase(BadChanges):
    """Changes of another tree than the one that is here: ``known_tree`` tells now which one that is."""


class Manifest:
    """A tree: entries, sorted by path, and the text that its hash is of."""

    def __init__(self, entries: list[Entry], text: bytes = b"", tree: str = "") -> None:
        self.entries = entries
        self.text = text or dumps(entries).encode("ascii")
        self.tree = tree or hash_of(self.text)
        self.alike: Manifest | None = None  # one that is known to have the same paths


class Record(Manifest):
    """What the last sync has left."""

    def __init__(
        self,
        entries: list[Entry],
        text: bytes,
        tree: str,
        statuses: Sequence[Status] = (),
        extra: Iterable[str] = (),
        *,
        clean: bool,
        packed: memoryview | bytes = b"",
    ) -> None:
        """statuses: what lstat said of each entry, if clean, and ``packed`` as they stand in the file.

        extra: paths that a sync began to make, if it is not clean
        """
        Manifest.__init__(self, entries, text, tree)
        self.statuses, self.extra, self.clean, self.packed = statuses, extra, clean, packed
        self.by_path = {entry[PATH]: entry for entry in entries}


def read_record(path: str) -> Record:
    """Read the record: an empty one, that is not clean, if there is none. Raises OSError.

    One that somebody wrote into is deleted: what was sent before then counts as made by the host.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
        end = data.index(b"\n") + 1
        begin = data.index(b"\n", end) + 1
        text, rest = data[end : begin - 1], memoryview(data)[begin:]
        tree, mark = data[:end].decode("ascii").split()
        if tree != hash_of(text):
            raise ValueError
        entries = loads(text)
        if mark == CLEAN and len(rest) == STATUS.size * len(entries):
            return Record(entries, text, tree, list(STATUS.iter_unpack(rest)), clean=True, packed=rest)
        extra = loads(bytes(rest))
        if mark == CLEAN or not all(isinstance(path, str) for path in extra):
            raise ValueError
        return Record(entries, text, tree, extra=extra, clean=False)
    except FileNotFoundError:
        return _no_record()
    except (ValueError, TypeError):
        os.unlink(path)
        return _no_record()


def _no_record() -> Record:
    empty = Manifest([])
    return Record([], empty.text, empty.tree, clean=False)


def write_clean(path: str, record: Record, manifest: Manifest, statuses: Mapping[str, Status]) -> None:
    """Replace the record: everything is in place, with these statuses by path. Raises OSError."""
    found = [statuses[entry[PATH]] for entry in manifest.entries]
    if record.clean and has_same_paths(record, manifest):  # few are new, as a rule, and packing takes its time
        packed = bytearray(record.packed)
        for place, (status, known) in enumerate(zip(found, record.statuses)):
            if status is not known:
                STATUS.pack_into(packed, place * STATUS.size, *status)
        _write(path, manifest, CLEAN, packed)
    else:
        _write(path, manifest, CLEAN, b"".join([STATUS.pack(*status) for status in found]))


def write_dirty(path: str, manifest: Manifest, extra: Iterable[str]) -> None:
    """Replace the record: from now on there may be these paths as well. Raises OSError."""
    _write(path, manifest, DIRTY, dumps(sorted(extra)).encode("ascii"))


def has_same_paths(one: Manifest, other: Manifest) -> bool:
    """Whether there are the same paths in both."""
    return other.alike is one or [entry[PATH] for entry in one.entries] == [entry[PATH] for entry in other.entries]


def _write(path: str, manifest: Manifest, mark: str, rest: bytes | bytearray) -> None:
    write_whole(path, b"%s %s\n%s\n%s" % (manifest.tree.encode(), mark.encode(), manifest.text, rest))


def write_whole(path: str, data: bytes) -> None:
    """Write a file or, if that fails, leave the old one. Raises OSError."""
    try:
        with open(path + ".new", "wb") as file:
            file.write(data)
        os.replace(path + ".new", path)
    except OSError:
        try:
            os.unlink(path + ".new")  # it may have filled the disk
        except OSError:
            pass
        raise


def apply_changes(record: Record, changes: bytes) -> Manifest:
    """The manifest that the changes lead to. Raises BadChanges."""
    try:
        unpacker = zlib.decompressobj()
        change = loads(unpacker.decompress(changes, MOST))
        base, put, drop, tree = change["base"], change["put"], change["drop"], change["tree"]
        if not unpacker.eof or not all(map(_is_entry, put)) or not is_hash(tree):
            raise ValueError
        new = {entry[PATH]: entry for entry in put}
        known = set(new).union(drop)
        if len(known) != len(put) + len(drop):
            raise BadChanges("a path is there twice")
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError):
        raise BadChanges("the changes of the workspace cannot be read") from None
    if record.clean and record.tree == tree:  # another host that shares the file system was first
        manifest = Manifest(record.entries, record.text, tree)
        manifest.alike = record
        return manifest
    if base:
        if not record.clean or record.tree != base:
            raise OtherBase("the changes are those of another tree")
        old = record.by_path.copy()
        for path in drop:
            if old.pop(path, None) is None:
                raise BadChanges(f"{path!r} is to be dropped, and is not there")
        is_alike = not drop and all(path in old and old[path][KIND] == new[path][KIND] for path in new)
        old.update(new)
        entries = list(old.values()) if is_alike else _sorted(old)
        if is_alike and len(new) <= FEW:
            text = record.text
            for path, entry in new.items():
                text = text.replace(dumps(record.by_path[path]).encode("ascii"), dumps(entry).encode("ascii"))
            manifest = Manifest(entries, text)
            manifest.alike = record
            if manifest.tree == tree:
                return manifest
    elif drop:
        raise BadChanges("paths are to be dropped from nothing")
    else:
        entries = _sorted(new)
    manifest = Manifest(entries)
    if manifest.tree != tree:
        raise BadChanges("the changes do not lead to the tree that they should")
    return manifest


def _sorted(entries: Mapping[str, Entry]) -> list[Entry]:
    """A tree of these, by path. Raises BadChanges where they are none."""
    directories = {path for path, entry in entries.items() if entry[KIND] == DIRECTORY}
    nowhere = {path.rpartition("/")[0] for path in entries} - directories - {""}
    if nowhere:
        raise BadChanges(f"{min(nowhere)!r} is to have something in it, and is no directory")
    return [entries[path] for path in sorted(entries)]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def is_path(path: object) -> bool:
    """Whether it stays in the workspace, if nothing on its way is a link."""
    if not isinstance(path, str) or not path or "\0" in path or max(path) > "\xff":
        return False
    return not any(part in ("", ".", "..") for part in path.split("/"))


def _is_entry(entry: Any) -> bool:
    """Whether it is one, by itself. Raises TypeError and ValueError for some that are none."""
    path, kind, mode, mtime_ns, size, content = entry
    numbers = type(mode) is type(mtime_ns) is type(size) is int  # True is none: it would change the tree's hash
    if not numbers or not 0 <= mode <= 0o7777 or abs(mtime_ns) >> 63 or size < 0 or not is_path(path):
        return False
    if kind == FILE:
        return is_hash(content)
    if size or not isinstance(content, str):
        return False
    if kind == LINK:
        return content != "" and "\0" not in content and max(content) <= "\xff"
    return kind == DIRECTORY and content == ""


def mode_of(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode)
