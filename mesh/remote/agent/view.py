"""What is in a workspace, and what is to be done so that it becomes a manifest's."""

from __future__ import annotations

import os
import stat

from .manifest import (
    CONTENT,
    DIRECTORY,
    FILE,
    KIND,
    LINK,
    MODE,
    MTIME,
    PATH,
    SIZE,
    has_same_paths,
    is_path,
    mode_of,
    parent_of,
    status_of,
)
from .store import Store, hash_file, hash_of, open_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from .manifest import Entry, Manifest, Record, Status

BLOCK = 1 << 17  # bytes; what is told of a large file's old version


class View:
    """What is in the workspace, and what is to be done about it. Only looks."""

    def __init__(self, root: bytes, record: Record, manifest: Manifest) -> None:
        self._root, self.record, self.manifest = root + b"/", record, manifest
        self.statuses: dict[str, Status] = {}  # of what is as the record says
        self._no_directory: set[str] = set()  # paths of the manifests where none is
        self._compare()
        as_before = manifest.entries is record.entries and len(self.statuses) == len(record.entries)
        self.todo: list[Entry] = [] if as_before else self._differing()
        self.make: list[Entry] = []
        self.put: list[Entry] = []  # files and links
        self.touch: list[Entry] = []  # files and links that are right, except for mode and time
        self.wanted: dict[str, list[Entry]] = {}  # the files of put, by content
        self.have: dict[str, str] = {}  # contents in the workspace, each at one path
        for entry in self.todo:
            self._sort(entry)
        self._find()

    def gone(self) -> list[str]:
        """What is to be deleted: what is in a directory comes before it."""
        if self.manifest.alike is self.record and not self.record.extra:
            return []
        new = {entry[PATH] for entry in self.manifest.entries}
        return sorted(filter(is_path, set(self.record.by_path).union(self.record.extra).difference(new)), reverse=True)

    def unchanged(self, path: str) -> str:
        """The content of a file that is still as the last sync has left it; "" of others."""
        entry = self.record.by_path[path] if path in self.statuses else None
        return entry[CONTENT] if entry and entry[KIND] == FILE else ""

    def lacking(self, store: Store) -> list[str]:
        stored = store.names() if self.wanted else frozenset()
        return [
            name
            for name, entries in self.wanted.items()
            if name not in self.have and not (name in stored and store.has(name, entries[0][SIZE]))
        ]

    def base(self, entries: list[Entry]) -> dict[str, Any]:
        """What to say of another version that is in the place of one of these files."""
        for entry in entries:
            path = entry[PATH]
            file = open_file(self.full(path)) if self.reachable(path) else None
            if file is None:
                continue
            with file:
                size = os.fstat(file.fileno()).st_size
                head = _blocks(file, 0, size)
                tail = _blocks(file, size % BLOCK, size) if size % BLOCK else head
            if head:
                base = self.unchanged(path) or hash_file(self.full(path))
                return {"base": base, "base_size": size, "head": head, "tail": tail[::-1]}
        return {}

    def find(self, name: str, at: list[Entry]) -> bytes:
        """The full path of a file of the workspace with this content, perhaps at one of these; or b""."""
        for path in self.statuses:
            entry = self.record.by_path[path]
            if entry[CONTENT] == name and entry[KIND] == FILE:
                return self.full(path)
        for entry in at:
            if self.reachable(entry[PATH]) and hash_file(self.full(entry[PATH])) == name:
                return self.full(entry[PATH])
        return b""

    def full(self, path: str) -> bytes:
        return self._root + path.encode("latin-1")

    def _differing(self) -> list[Entry]:
        same = self.statuses
        if has_same_paths(self.record, self.manifest):
            pairs = zip(self.manifest.entries, self.record.entries)
            return [entry for entry, old in pairs if entry[PATH] not in same or entry != old]
        old = self.record.by_path
        return [entry for entry in self.manifest.entries if entry[PATH] not in same or old[entry[PATH]] != entry]

    def _compare(self) -> None:
        """Find out what is as the record says."""
        record, missing = self.record, self._no_directory
        if not record.clean:
            return
        root = self._root
        paths = [entry[PATH] for entry in record.entries]
        lead = root.decode("latin-1")  # joined and split, as that is quicker than one by one
        places = "\0".join([lead + path for path in paths]).encode("latin-1").split(b"\0") if paths else []
        try:
            found: list[Status | None] = list(map(status_of, map(os.lstat, places)))  # there may be 100,000
        except OSError:
            found = list(map(_look, places))
        if found == record.statuses:
            self.statuses = dict(zip(paths, record.statuses))
            return
        for entry, known, status in zip(record.entries, record.statuses, found):
            path = entry[PATH]
            if status is None or (missing and parent_of(path) in missing):
                missing.add(path)
            elif status == known:
                self.statuses[path] = known
            elif entry[KIND] == DIRECTORY:  # its other numbers change with what is in it
                if status[4] == known[4]:
                    self.statuses[path] = known
                elif not stat.S_ISDIR(status[4]):
                    missing.add(path)

    def _sort(self, entry: Entry) -> None:
        """Decide what is to be done about one entry; those of its directories were sorted before."""
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
        # What belongs to somebody else cannot be given its mode and time.
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
        """Whether a file or link holds what it should."""
        path, kind, _, _, size, content = entry
        if kind == LINK:
            link = stat.S_ISLNK(status.st_mode)
            return link and os.readlink(self.full(path)) == content.encode("latin-1")
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        return (self.unchanged(path) or hash_file(self.full(path))) == content

    def _find(self) -> None:
        """Look at other paths for contents that are wanted."""
        doubtful = []
        for entry in self.record.entries if self.wanted else ():
            name, path = entry[CONTENT], entry[PATH]
            if name in self.wanted and entry[KIND] == FILE:
                if path in self.statuses:
                    self.have[name] = path
                else:
                    doubtful.append((name, path))
        for name, path in doubtful:
            if name not in self.have and self.reachable(path) and hash_file(self.full(path)) == name:
                self.have[name] = path

    def reachable(self, path: str) -> bool:
        """Whether no directory on the way is a link."""
        parent = parent_of(path)
        while parent:
            try:
                if not stat.S_ISDIR(os.lstat(self.full(parent)).st_mode):
                    return False
            except OSError:
                return False
            parent = parent_of(parent)
        return True


def _look(path: bytes) -> Status | None:
    try:
        return status_of(os.lstat(path))
    except OSError:
        return None


def _may_touch(entry: Entry, status: os.stat_result) -> bool:
    """Whether a file or link may be given its mode and time where it is.

    Other names of a file (hard links) are the host's own, and have a mode and a time of their host's.
    """
    is_done = mode_of(status) == entry[MODE] and status.st_mtime_ns == entry[MTIME]
    return entry[KIND] != FILE or status.st_nlink == 1 or is_done


def _blocks(file: IO[bytes], place: int, end: int) -> list[str]:
    """The hashes of the whole blocks between two places of a file."""
    hashes = []
    file.seek(place)
    while place + BLOCK <= end:
        hashes.append(hash_of(file.read(BLOCK)))
        place += BLOCK
    return hashes
