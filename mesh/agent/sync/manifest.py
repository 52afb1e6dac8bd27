"""Trees: the record of the last sync, and the changes that lead to the next (docs/sync.md has the format)."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from bisect import bisect_left
from operator import attrgetter

from mesh.agent.base.directories import CLEAN, DIRTY
from mesh.agent.base.light import dumps, loads
from mesh.agent.sync.contents import hash_of, is_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping
    from typing import Final

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
REPLACED_ENTRIES_MAX = 16  # up to which to find them in the text is quicker than to write all of it anew
CHANGES_BYTES = 1 << 29  # unpacked; some millions of entries


# Return the Status of a stat_result, which shows if a path was touched.
status_of: Callable[[os.stat_result], Status] = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")


class BadChanges(Exception):
    """Changes that do not fit the tree here, or that would lead outside the workspace."""


class OtherBase(BadChanges):
    """Changes of another tree than the one here, which ``known_tree`` returns now."""


class Manifest:
    """A tree: the text that its hash is of, and its entries, sorted by path. They are parsed only if need be."""

    def __init__(self, text: bytes, tree: str = "", entries: list[Entry] | None = None) -> None:
        self.text, self.tree = text, tree or hash_of(text)
        self._entries = entries
        self.leave: frozenset[str] = frozenset()  # names: paths at or below them are forgotten, and not deleted
        self._fields: list[bytes] | None = None
        self._paths: list[bytes] | None = None

    @property
    def entries(self) -> list[Entry]:
        if self._entries is None:
            self._entries = loads(self.text)
        return self._entries

    @property
    def fields(self) -> list[bytes]:
        """The text, split at its quotes: five parts of each entry, and one up to the next. [] if a string holds one."""
        if self._fields is None:
            self._fields = [] if b"\\" in self.text else self.text.split(b'"')
        return self._fields

    @property
    def paths(self) -> list[bytes]:
        """The paths of all entries."""
        if self._paths is None:
            self._paths = self.fields[1::6] or [entry[PATH].encode("latin-1") for entry in self.entries]
        return self._paths

    @property
    def files(self) -> int:
        """The number of files among the entries."""
        return self.text.count(b'","f",')

    def place_of(self, path: str) -> int:
        """Return the index of a path among the entries; -1: it is none of them."""
        paths = self.paths
        try:
            wanted = path.encode("latin-1")
        except UnicodeEncodeError:
            return -1
        place = bisect_left(paths, wanted)
        return place if place < len(paths) and paths[place] == wanted else -1

    def entry(self, place: int) -> Entry:
        if self._entries is not None or not self.fields:
            return self.entries[place]
        entry: Entry = loads(b'["%s"]' % b'"'.join(self.fields[6 * place + 1 : 6 * place + 6]))
        return entry


class Record(Manifest):
    """The tree of the last sync, and its files' status afterwards."""

    def __init__(
        self,
        text: bytes,
        tree: str = "",
        *,
        clean: bool,
        packed: memoryview | bytes = b"",
        extra: Iterable[str] = (),
    ) -> None:
        """packed: the status of each entry, if clean, as the file has it

        extra: paths that a sync began to make, if it is not clean
        """
        Manifest.__init__(self, text, tree)
        self.clean, self.packed, self.extra = clean, packed, extra

    def statuses(self) -> Iterator[Status]:
        """The status of each entry; nothing if the record is not clean."""
        return STATUS.iter_unpack(self.packed)


class Alike(Manifest):
    """The tree of a record, with a few entries that differ in mode, time or content."""

    def __init__(self, record: Record, changed: Mapping[int, Entry]) -> None:
        """changed: those entries, by their indexes"""
        text = record.text
        for place, entry in changed.items():
            text = text.replace(dumps(record.entry(place)).encode("ascii"), dumps(entry).encode("ascii"))
        Manifest.__init__(self, text)
        self._paths = record.paths
        self.record, self.changed = record, changed

    def entry(self, place: int) -> Entry:
        return self.changed[place] if place in self.changed else self.record.entry(place)


def read_record(path: str) -> Record:
    """Read the record; return an empty one, that is not clean, if there is none. Raises OSError.

    Delete a damaged record: files that were sent before then count as made by the host.
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
        if mark == CLEAN:
            record = Record(text, tree, clean=True, packed=rest)
            if len(rest) == STATUS.size * len(record.paths):
                return record
            raise ValueError
        extra = loads(bytes(rest))
        if not all(isinstance(path, str) for path in extra):
            raise ValueError
        return Record(text, tree, extra=extra, clean=False)
    except FileNotFoundError:
        return _no_record()
    except (ValueError, TypeError):
        os.unlink(path)
        return _no_record()


def _no_record() -> Record:
    return Record(b"[]", clean=False)


def write_clean(
    path: str, record: Record, manifest: Manifest, new: Mapping[str, Status], differing: Container[int]
) -> None:
    """Replace the record after a complete sync. Raises OSError.

    new: the status of paths that were changed; all others are as the record has them
    differing: indexes of the record to which that does not apply
    """
    if record.clean and record.paths == manifest.paths:  # few are new, as a rule
        packed = bytearray(record.packed)
        for name, status in new.items():
            STATUS.pack_into(packed, manifest.place_of(name) * STATUS.size, *status)
    else:
        pairs = enumerate(zip(record.paths, record.statuses()))
        statuses = {path: status for place, (path, status) in pairs if place not in differing}
        statuses.update((name.encode("latin-1"), status) for name, status in new.items())
        packed = bytearray().join([STATUS.pack(*statuses[path]) for path in manifest.paths])
    _write(path, manifest, CLEAN, packed)


def write_dirty(path: str, manifest: Manifest, extra: Iterable[str]) -> None:
    """Replace the record before a sync that may make these paths as well. Raises OSError."""
    _write(path, manifest, DIRTY, dumps(sorted(extra)).encode("ascii"))


def _write(path: str, manifest: Manifest, mark: str, rest: bytes | bytearray) -> None:
    write_whole(path, b"%s %s\n%s\n%s" % (manifest.tree.encode(), mark.encode(), manifest.text, rest))


def write_whole(path: str, data: bytes) -> None:
    """Write a file, or leave the old one if that fails. Raises OSError."""
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
    """Return the manifest that the changes lead to. Raises BadChanges."""
    try:
        unpacker = zlib.decompressobj()
        change = loads(unpacker.decompress(changes, CHANGES_BYTES))
        base, put, drop, tree = change["base"], change["put"], change["drop"], change["tree"]
        leave = frozenset(change.get("leave", ()))
        if not unpacker.eof or not all(map(_is_entry, put)) or not is_hash(tree):
            raise ValueError
        new = {entry[PATH]: entry for entry in put}
        known = set(new).union(drop)
        if len(known) != len(put) + len(drop):
            raise BadChanges("a path is there twice")
    except (zlib.error, ValueError, TypeError, KeyError, RecursionError):
        raise BadChanges("the changes of the workspace cannot be read") from None
    if record.clean and record.tree == tree:  # another host that shares the file system was first
        return Alike(record, {})
    if base:
        if not record.clean or record.tree != base:
            raise OtherBase("the changes are those of another tree")
        if not drop and len(put) <= REPLACED_ENTRIES_MAX:
            manifest = _alike(record, put)
            if manifest is not None and manifest.tree == tree:
                return manifest
        old = {entry[PATH]: entry for entry in record.entries}
        for path in drop:
            if old.pop(path, None) is None:
                raise BadChanges(f"{path!r} is to be dropped, and is not there")
        old.update(new)
        entries = _sorted(old)
    elif drop:
        raise BadChanges("paths are to be dropped from nothing")
    else:
        entries = _sorted(new)
    manifest = Manifest(dumps(entries).encode("ascii"), entries=entries)
    manifest.leave = leave
    if manifest.tree != tree:
        raise BadChanges("the changes do not lead to the tree that they should")
    return manifest


def _alike(record: Record, put: Iterable[Entry]) -> Manifest | None:
    """Return the tree with these entries in place of others of their kind; None if one has no such place."""
    changed = {}
    for entry in put:
        place = record.place_of(entry[PATH])
        if place < 0 or record.entry(place)[KIND] != entry[KIND]:
            return None
        if record.entry(place) != entry:
            changed[place] = entry
    return Alike(record, changed)


def _sorted(entries: Mapping[str, Entry]) -> list[Entry]:
    """Return entries sorted by path. Raises BadChanges where they are no tree."""
    directories = {path for path, entry in entries.items() if entry[KIND] == DIRECTORY}
    nowhere = {path.rpartition("/")[0] for path in entries} - directories - {""}
    if nowhere:
        raise BadChanges(f"{min(nowhere)!r} is to have something in it, and is no directory")
    return [entries[path] for path in sorted(entries)]


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def is_path(path: object) -> bool:
    """Return True for a path that stays in the workspace, if no directory on its way is a link."""
    if not isinstance(path, str) or not path or "\0" in path or max(path) > "\xff":
        return False
    return not any(part in ("", ".", "..") for part in path.split("/"))


def _is_entry(entry: Entry) -> bool:
    """Return True for a valid entry. Raises TypeError and ValueError for some that are none."""
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
