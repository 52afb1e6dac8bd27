"""Changes a workspace, path by path. It never follows a link in it."""

from __future__ import annotations

import os
import stat

from mesh.agent.sync.contents import Store
from mesh.agent.sync.manifest import DIRECTORY, KIND, LINK, MODE, MTIME, PATH, mode_of, parent_of, status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mesh.agent.sync.manifest import Entry, Manifest, Status


class Writer:
    """A workspace that is being changed. Every method may raise OSError."""

    def __init__(self, root: bytes, store: Store, unchanged: Callable[[str], str], step: Callable[[str], None]) -> None:
        """unchanged: returns the content of a file that the store keeps when it is replaced; "" for all others"""
        self._root, self._store, self._unchanged, self._step = root, store, unchanged, step
        self._entered: dict[str, int] = {}  # directories that were made writable: their modes; -1: none

    def remove(self, path: str) -> None:
        """Delete a path of an earlier sync; a directory only if it is empty."""
        if not self._enter(parent_of(path)):  # the host put something else there
            return
        full = self._full(path)
        kind = _kind(full)
        if not kind:
            return
        self._step("remove")
        if kind != DIRECTORY:
            self._unlink(path)
            return
        try:
            os.rmdir(full)
        except OSError:  # the host made something in it
            pass

    def fill(self, tree: bytes) -> None:
        """Move the entries of a directory to an empty workspace."""
        self._enter("")
        for name in os.listdir(tree):
            self._step("replace")
            os.rename(os.path.join(tree, name), os.path.join(self._root, name))

    def leave(self, manifest: Manifest) -> None:
        """Restore the modes of directories that stay but are not in the manifest, once all is removed.

        Later a link may stand on the way to them.
        """
        for path in sorted(self._entered, reverse=True):
            if path and manifest.place_of(path) < 0:
                self._give_back(path)

    def make_directory(self, path: str) -> None:
        """Make a directory in place of anything else."""
        self._enter(parent_of(path))
        full = self._full(path)
        kind = _kind(full)
        if kind != DIRECTORY:
            if kind:
                self._step("unlink")
                self._unlink(path)
            self._step("mkdir")
            os.mkdir(full, 0o700)
        self._entered.pop(path, None)
        self._enter(path)

    def put(self, staged: bytes, path: str) -> Status:
        """Move a file or link to its place."""
        self._enter(parent_of(path))
        full = self._full(path)
        if self._unchanged(path):
            self._step("unlink")
            self._unlink(path)
        self._step("replace")
        try:
            os.replace(staged, full)
        except IsADirectoryError:
            self._step("rmtree")
            remove_tree(full)
            os.replace(staged, full)
        return status_of(os.lstat(full))

    def touch(self, entry: Entry) -> Status:
        """Give a file its mode and time."""
        full = self._full(entry[PATH])
        if entry[KIND] != LINK:
            self._finish(full, entry)
        return status_of(os.lstat(full))

    def clear(self, kinds: Mapping[str, str]) -> None:
        """Remove everything that is not among these paths."""
        for directory in ["", *(path for path, kind in kinds.items() if kind == DIRECTORY)]:
            for name in os.listdir(self._full(directory)):
                path = (directory and directory + "/") + name.decode("latin-1")
                if path not in kinds:
                    self._enter(directory)
                    self._step("remove")
                    full = self._full(path)
                    if _kind(full) == DIRECTORY:
                        remove_tree(full)
                    else:
                        os.unlink(full)

    def finish(self, manifest: Manifest, changed: Iterable[Entry]) -> dict[str, Status]:
        """Give directories their own modes and times, once they are complete.

        changed: entries of the manifest, among them those of directories that had others
        """
        places = [place for place in map(manifest.place_of, filter(None, self._entered)) if place >= 0]
        entries = {entry[PATH]: entry for entry in (*changed, *map(manifest.entry, places))}
        statuses = {}
        for path in sorted(entries, reverse=True):  # the entries of a directory first: some cannot be entered then
            if entries[path][KIND] == DIRECTORY:
                statuses[path] = status_of(self._finish(self._full(path), entries[path]))
        self._give_back("")
        return statuses

    def _finish(self, full: bytes, entry: Entry) -> os.stat_result:
        """Give a file or directory its mode and time; return its status then."""
        status = os.lstat(full)
        if mode_of(status) != entry[MODE] or status.st_mtime_ns != entry[MTIME]:
            self._step("touch")
            os.utime(full, ns=(entry[MTIME], entry[MTIME]))
            os.chmod(full, entry[MODE])
            status = os.lstat(full)
        return status

    def _enter(self, directory: str) -> bool:
        """Make a directory writable; return False if there is none, but perhaps a link to one."""
        way = [directory]
        while way[-1] and way[-1] not in self._entered:
            way.append(parent_of(way[-1]))
        for path in reversed(way):
            if path not in self._entered:
                self._entered[path] = self._open(self._full(path))
            if self._entered[path] < 0:
                return False
        return True

    def _open(self, full: bytes) -> int:
        if _kind(full) != DIRECTORY:
            return -1
        mode = mode_of(os.lstat(full))
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            self._step("chmod")
            os.chmod(full, mode | stat.S_IRWXU)
        return mode

    def _give_back(self, directory: str) -> None:
        """Restore the mode that a directory had before ``_enter``."""
        mode = self._entered.pop(directory, -1)
        full = self._full(directory)
        if mode >= 0 and _kind(full) == DIRECTORY and mode_of(os.lstat(full)) != mode:
            os.chmod(full, mode)

    def _unlink(self, path: str) -> None:
        full, content = self._full(path), self._unchanged(path)
        if not content or not self._store.keep(full, content):
            os.unlink(full)

    def _full(self, path: str) -> bytes:
        return self._root + b"/" + path.encode("latin-1")


def _kind(path: bytes) -> str:
    """Return DIRECTORY, LINK (which stands for everything else as well), or "" for nothing."""
    try:
        return DIRECTORY if stat.S_ISDIR(os.lstat(path).st_mode) else LINK
    except (FileNotFoundError, NotADirectoryError):
        return ""


def remove_tree(path: bytes) -> None:
    """Delete a directory, also with directories in it that cannot be read or written."""
    os.chmod(path, stat.S_IRWXU)
    for folder, directories, _ in os.walk(path):
        for name in directories:
            full = os.path.join(folder, name)
            if not os.path.islink(full):
                os.chmod(full, stat.S_IRWXU)
    import shutil

    shutil.rmtree(path)
