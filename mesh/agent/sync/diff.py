"""Compares a workspace with a manifest: the differences, and the contents that are wanted."""

from __future__ import annotations

import os
import stat

from mesh.agent.base.light import partial
from mesh.agent.sync.contents import Store, hash_file, hash_of, open_file
from mesh.agent.sync.manifest import (
    CONTENT,
    DIRECTORY,
    FILE,
    KIND,
    LINK,
    MODE,
    MTIME,
    PATH,
    REPLACED_ENTRIES_MAX,
    SIZE,
    Alike,
    is_path,
    mode_of,
    parent_of,
    status_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

    from mesh.agent.sync.manifest import Entry, Manifest, Record, Status

    Lack = dict[str, object]  # the fields of the protocol's Lack; there may be 100,000, so that they are no records

BLOCK_BYTES = 1 << 17  # of a large file's old version, which the client gets the hashes of


class Diff:
    """The differences between a workspace and a manifest. It changes nothing."""

    def __init__(self, root: bytes, record: Record, manifest: Manifest) -> None:
        self._root, self.record, self.manifest = root + b"/", record, manifest
        self.differing: set[int] = set()  # places of a clean record where something else is now
        self._no_directory: set[str] = set()  # paths of the manifests where no directory is
        if record.clean:
            self._compare()
        self.todo = self._to_do()
        self.make: list[Entry] = []
        self.put: list[Entry] = []  # files and links
        self.touch: list[Entry] = []  # files and links that are right, except for mode and time
        self.wanted: dict[str, list[Entry]] = {}  # the files of put, by content
        self.have: dict[str, str] = {}  # contents in the workspace, each at one path
        for entry in self.todo:
            self._sort(entry)
        self._find()

    def gone(self) -> list[str]:
        """Return the paths to delete, each before its directory."""
        if isinstance(self.manifest, Alike):
            return []
        old = {path.decode("latin-1") for path in set(self.record.paths).difference(self.manifest.paths)}
        extra = [path for path in self.record.extra if is_path(path) and self.manifest.place_of(path) < 0]
        return sorted((path for path in old.union(extra) if is_path(path) and not self._is_left(path)), reverse=True)

    def _is_left(self, path: str) -> bool:
        """Return True below a directory that the client leaves out by default from now on."""
        if not self.manifest.leave:
            return False
        parts = path.split("/")
        places = (depth for depth, part in enumerate(parts, 1) if part in self.manifest.leave)
        return any(self.manifest.place_of("/".join(parts[:depth])) < 0 for depth in places)

    def unchanged(self, path: str) -> str:
        """Return the content of a file that is still as the last sync has left it; "" of others."""
        place = self.record.place_of(path)
        entry = self.record.entry(place) if place >= 0 and self._is_known(place) else None
        return entry[CONTENT] if entry and entry[KIND] == FILE else ""

    def _is_known(self, place: int) -> bool:
        """Return True if a path is still as it is recorded."""
        return self.record.clean and place not in self.differing

    def lacking(self, store: Store) -> list[str]:
        """Return the contents that are neither in the workspace nor in the store."""
        stored = store.names() if self.wanted else frozenset()
        return [
            name
            for name, entries in self.wanted.items()
            if name not in self.have and not (name in stored and store.has(name, entries[0][SIZE]))
        ]

    def base(self, entries: list[Entry]) -> Lack:
        """Return the fields of a lack for another version that is in the place of one of these files."""
        for entry in entries:
            path = entry[PATH]
            file = open_file(self.full(path)) if self.reachable(path) else None
            if file is None:
                continue
            with file:
                size = os.fstat(file.fileno()).st_size
                head = _blocks(file, 0, size)
                tail = _blocks(file, size % BLOCK_BYTES, size) if size % BLOCK_BYTES else head
            if head:
                base = self.unchanged(path) or hash_file(self.full(path))
                return {"base": base, "base_size": size, "head": head, "tail": tail[::-1]}
        return {}

    def find(self, name: str, at: list[Entry]) -> bytes:
        """Return the full path of a file with this content, perhaps that of one of these entries; b"" for none."""
        for place, entry in enumerate(self.record.entries):
            if entry[CONTENT] == name and entry[KIND] == FILE and self._is_known(place):
                return self.full(entry[PATH])
        for entry in at:
            if self.reachable(entry[PATH]) and hash_file(self.full(entry[PATH])) == name:
                return self.full(entry[PATH])
        return b""

    def full(self, path: str) -> bytes:
        return self._root + path.encode("latin-1")

    def _to_do(self) -> list[Entry]:
        """Return the entries of the manifest that are not there."""
        record, manifest = self.record, self.manifest
        if isinstance(manifest, Alike):
            return [manifest.entry(place) for place in sorted(self.differing.union(manifest.changed))]
        known = {entry[PATH]: entry for place, entry in enumerate(record.entries) if self._is_known(place)}
        return [entry for entry in manifest.entries if known.get(entry[PATH]) != entry]

    def _compare(self) -> None:
        """Find the places where the workspace differs from its record."""
        paths = self.record.paths
        try:  # there may be 100,000: relative to the root, because each directory on the way takes time
            root = os.open(self._root, os.O_PATH | os.O_DIRECTORY)
            try:
                stat_at = partial(os.stat, dir_fd=root, follow_symlinks=False)
                found = self._different(map(status_of, map(stat_at, paths)))
            finally:
                os.close(root)
        except OSError:
            found = self._different(map(_status, map(self._root.__add__, paths)))
        missing = set()
        for place, known, status in found:
            if status is None:
                missing.add(paths[place])
            elif stat.S_ISDIR(known[4]):  # its other numbers change with its entries
                if status[4] == known[4]:
                    continue
                if not stat.S_ISDIR(status[4]):
                    missing.add(paths[place])
            self.differing.add(place)
        for place, path in enumerate(paths if missing else ()):  # a path below a missing directory may lead elsewhere
            if path.rpartition(b"/")[0] in missing:
                missing.add(path)
                self.differing.add(place)
        self._no_directory = {path.decode("latin-1") for path in missing}

    def _different(self, found: Iterable[Status | None]) -> list[tuple[int, Status, Status | None]]:
        """Return the places where the status differs from the recorded one, with the recorded one and the found one."""
        pairs = enumerate(zip(self.record.statuses(), found))
        return [(place, known, status) for place, (known, status) in pairs if known != status]

    def _sort(self, entry: Entry) -> None:
        """Put an entry into the list of its action; its directories were sorted before."""
        path, kind, _, _, _, content = entry
        status = None
        if parent_of(path) not in self._no_directory:
            try:
                status = os.lstat(self.full(path))
            except OSError:
                pass
        if kind == DIRECTORY:
            if status is None or not stat.S_ISDIR(status.st_mode):
                self._no_directory.add(path)
                self.make.append(entry)
            else:
                self._no_directory.discard(path)
            return
        # A file of another user cannot be given its mode and time.
        if status is not None and status.st_uid == os.geteuid() and self._right(entry, status):
            if kind == FILE:
                self.have[content] = path
            if _may_touch(entry, status):
                self.touch.append(entry)
                return
        self.put.append(entry)
        if kind == FILE:
            self.wanted.setdefault(content, []).append(entry)

    def _right(self, entry: Entry, status: os.stat_result) -> bool:
        """Return True if a file or link has the content of its entry."""
        path, kind, _, _, size, content = entry
        if kind == LINK:
            link = stat.S_ISLNK(status.st_mode)
            return link and os.readlink(self.full(path)) == content.encode("latin-1")
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        return (self.unchanged(path) or hash_file(self.full(path))) == content

    def _find(self) -> None:
        """Look for wanted contents at other paths."""
        doubtful = []
        if len(self.wanted) <= REPLACED_ENTRIES_MAX and not any(
            name.encode("ascii") in self.record.text for name in self.wanted
        ):
            return
        for place, entry in enumerate(self.record.entries):
            name, path = entry[CONTENT], entry[PATH]
            if name in self.wanted and entry[KIND] == FILE:
                if self._is_known(place):
                    self.have[name] = path
                else:
                    doubtful.append((name, path))
        for name, path in doubtful:
            if name not in self.have and self.reachable(path) and hash_file(self.full(path)) == name:
                self.have[name] = path

    def reachable(self, path: str) -> bool:
        """Return True if no directory on the way is a link."""
        parent = parent_of(path)
        while parent:
            try:
                if not stat.S_ISDIR(os.lstat(self.full(parent)).st_mode):
                    return False
            except OSError:
                return False
            parent = parent_of(parent)
        return True


def _status(path: bytes) -> Status | None:
    try:
        return status_of(os.lstat(path))
    except OSError:
        return None


def _may_touch(entry: Entry, status: os.stat_result) -> bool:
    """Return True if a file or link may be given its mode and time where it is.

    Other names of a file (hard links) belong to the host, and so do their mode and time.
    """
    is_done = mode_of(status) == entry[MODE] and status.st_mtime_ns == entry[MTIME]
    return entry[KIND] != FILE or status.st_nlink == 1 or is_done


def _blocks(file: IO[bytes], place: int, end: int) -> list[str]:
    """Return the hashes of the whole blocks between two places of a file."""
    hashes = []
    file.seek(place)
    while place + BLOCK_BYTES <= end:
        hashes.append(hash_of(file.read(BLOCK_BYTES)))
        place += BLOCK_BYTES
    return hashes
