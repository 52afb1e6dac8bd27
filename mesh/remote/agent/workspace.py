"""Puts the workspace in place: everything beside it first, then path by path. docs/sync.md has the rules."""

from __future__ import annotations

import errno
import os

from .errand import LinkRefused
from .manifest import (
    CONTENT,
    KIND,
    LINK,
    MODE,
    MTIME,
    PATH,
    SIZE,
    apply_changes,
    read_record,
    status_of,
    write_clean,
    write_dirty,
    write_whole,
)
from .packs import BadPack, unpack
from .place import Place, remove_tree
from .store import Store, copy, hash_file, open_file, write
from .view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence
    from typing import Any

    from .manifest import Entry, Status
    from .packs import Content

TREE = b"tree"  # in a staging directory, beside numbers
LARGE = 1 << 20  # bytes; from this size on a file's old version is offered as a base


def _nothing(what: str) -> None:
    pass


class Workspace:
    """One workspace. One process at a time may use it: see .NAME.sync."""

    def __init__(self, directory: str, record: str, store: str) -> None:
        """directory: is there, perhaps empty; record: a path beside it; record + ".plan" is ours as well."""
        self._root = os.fsencode(directory)
        self._record, self._plan = record, record + ".plan"
        self._store = Store(store)
        self._view: View | None = None
        self._staging = _beside(self._root, b".new-")

    def plan(self, changes: bytes) -> dict[str, Any]:
        """Take the changes; return what ``lacks``. ``apply`` goes on, also in another process.

        Raises BadChanges, and OSError.
        """
        self._view = self._look(changes)
        write_whole(self._plan, changes)
        return {"lacks": self._lacks(self._view, self._view.lacking(self._store))}

    def apply(
        self, packs: Sequence[str], fresh: bool = False, step: Callable[[str], None] = _nothing
    ) -> dict[str, Any]:
        """Make the workspace what was planned, less what the hosts made there, or return what still ``lacks``.

        packs: paths of packs; what no pack holds is looked for in the workspace and in the store
        fresh: remove what the hosts made
        step: called before each change, for tests
        Returns "tree", "files" and how many paths were "changed".
        Raises BadChanges, BadPack and OSError, in general before anything is changed; the next sync completes what was
        begun.
        """
        if fresh and os.path.islink(self._root):
            raise LinkRefused("--fresh deletes nothing behind a symbolic link", self._root, "leave out --fresh")
        view, self._view = self._view, None
        if view is None:
            with open(self._plan, "rb") as file:
                view = self._look(file.read())
        gone = view.gone()
        if not (view.todo or gone or fresh) and view.record.clean and view.record.tree == view.manifest.tree:
            return _done(view, 0)
        folder, name = os.path.split(self._staging)
        for stale in os.listdir(folder):
            if stale.startswith(name) and stale[len(name) :].isdigit():
                _forget(os.path.join(folder, stale))
        staging = self._staging + b"%d" % os.getpid()
        try:
            os.mkdir(staging, 0o700)
            stage = _Stage(view, staging, self._store, step, is_whole=_is_empty(self._root))
            missing = stage.fill(packs)
            if missing:
                return {"lacks": self._lacks(view, missing, stage.baseless)}
            return self._change(view, stage, gone, fresh, step)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._store.trim(0)  # the next sync may need the space, and finds the rest at the client
            raise
        finally:
            _forget(staging)

    def _look(self, changes: bytes) -> View:
        record = read_record(self._record)
        return View(self._root, record, apply_changes(record, changes))

    def _lacks(self, view: View, missing: Iterable[str], baseless: Container[str] = ()) -> list[dict[str, Any]]:
        """What to ask the client for. baseless: contents that must come whole."""
        lacks = []
        for name in missing:
            entry = view.wanted[name][0]
            lack = {"hash": name, "size": entry[SIZE]}
            if entry[SIZE] >= LARGE and name not in baseless:
                lack.update(view.base(view.wanted[name]))
            lacks.append(lack)
        return lacks

    def _change(
        self, view: View, stage: _Stage, gone: list[str], fresh: bool, step: Callable[[str], None]
    ) -> dict[str, Any]:
        """Everything is staged: change the workspace."""
        record, manifest = view.record, view.manifest
        extra = {entry[PATH] for entry in view.todo}.union(record.extra)
        step("record")
        write_dirty(self._record, record, [path for path in extra if record.place_of(path) < 0])
        new: dict[str, Status] = {}
        place = Place(self._root, self._store, view.unchanged, step)
        if stage.tree:
            place.fill(stage.tree)
            new.update((path, status_of(os.lstat(view.full(path)))) for path in stage.names)
        else:
            for path in gone:
                place.remove(path)
            place.leave(manifest)
            for entry in view.make:
                place.make_directory(entry[PATH])
            for path, staged in stage.names.items():
                new[path] = place.put(staged, path)
            for entry in view.touch:
                new[entry[PATH]] = place.touch(entry)
            if fresh:
                place.clear({entry[PATH]: entry[KIND] for entry in manifest.entries})
        new.update(place.finish(manifest, view.todo))
        step("record")
        write_clean(self._record, record, manifest, new, view.differing)
        self._store.trim()
        return _done(view, len(view.todo) + len(gone))


def _beside(root: bytes, end: bytes) -> bytes:
    """Return a path beside the workspace, on its file system: a link may lead to another one."""
    try:
        if os.stat(root).st_dev != os.stat(os.path.dirname(root)).st_dev:
            root = os.path.realpath(root)
    except OSError:  # it is not there yet
        pass
    return os.path.join(os.path.dirname(root), b"." + os.path.basename(root) + end)


def _forget(staging: bytes) -> None:
    """Remove a staging directory, as far as that goes."""
    try:
        for name in os.listdir(staging):
            full = os.path.join(staging, name)
            if name == TREE:
                remove_tree(full)
            else:
                os.unlink(full)
        os.rmdir(staging)
    except OSError:
        pass


def _is_empty(directory: bytes) -> bool:
    """Whether it is a directory in which nothing is."""
    try:
        return not os.path.islink(directory) and not os.listdir(directory)
    except OSError:
        return False


def _done(view: View, changed: int) -> dict[str, Any]:
    return {"tree": view.manifest.tree, "files": view.manifest.files, "changed": changed}


class _Stage:
    """What will be put in place, beside the workspace: a file or link each, or the tree as a whole."""

    def __init__(
        self, view: View, staging: bytes, store: Store, step: Callable[[str], None], *, is_whole: bool
    ) -> None:
        """is_whole: nothing is there, and what is at the top of the tree will be renamed as it is"""
        self._view, self._store, self._step = view, store, step
        self.tree = os.path.join(staging, TREE) if is_whole else b""
        paths = [entry[PATH] for entry in view.put]
        if is_whole:
            self.names = {path: os.path.join(self.tree, path.encode("latin-1")) for path in paths}
        else:
            self.names = {path: staging + b"/%d" % number for number, path in enumerate(paths)}
        self._missing = dict.fromkeys(view.wanted)
        self.baseless: set[str] = set()  # contents whose base is not here

    def fill(self, packs: Sequence[str]) -> list[str]:
        """Stage everything; return the contents that are missing. Raises BadPack and OSError."""
        for path in ["", *(entry[PATH] for entry in self._view.make)] if self.tree else ():
            self._step("mkdir")
            os.mkdir(os.path.join(self.tree, path.encode("latin-1")), 0o700 if path else 0o777)
        for pack in packs:
            if self._missing:
                unpack(pack, self._missing, self._take)
        for name in list(self._missing):
            self._step("stage")
            if self._copy(name) or self._store.take(name, self._target(name)):
                del self._missing[name]
        if not self._missing:
            for name, entries in self._view.wanted.items():
                for entry in entries[1:]:
                    if not copy(self._target(name), self.names[entry[PATH]], name):
                        raise OSError(errno.EIO, os.strerror(errno.EIO), self.names[entry[PATH]])
            for entry in self._view.put:
                self._finish(entry)
        return list(self._missing)

    def _target(self, name: str) -> bytes:
        return self.names[self._view.wanted[name][0][PATH]]

    def _copy(self, name: str) -> bool:
        """Stage a content that the workspace has."""
        path = self._view.have.get(name)
        if path is None or not self._view.reachable(path):
            return False
        return copy(self._view.full(path), self._target(name), name)

    def _take(self, content: Content) -> None:
        """Stage a content of a pack."""
        name, base = content.name, None
        entries = self._view.wanted[name]
        self._step("stage")
        if content.size() != entries[0][SIZE]:
            raise BadPack(f"the content {name} has another size in the pack than in the manifest")
        if content.base:
            path = self._view.find(content.base, entries) or os.fsencode(self._store.path(content.base))
            base = open_file(path)
            if base is None:
                self.baseless.add(name)
                return
        try:
            good = write(self._target(name), content.pieces(base), entries[0][SIZE], name)
        finally:
            if base is not None:
                base.close()
        if good:
            del self._missing[name]
        elif content.base and hash_file(path) != content.base:
            self.baseless.add(name)
        else:
            raise BadPack(f"the content {name} has another hash in the pack")

    def _finish(self, entry: Entry) -> None:
        """Make links; give files their modes and times."""
        target = self.names[entry[PATH]]
        if entry[KIND] == LINK:
            self._step("stage")
            os.symlink(entry[CONTENT].encode("latin-1"), target)
        else:
            os.utime(target, ns=(entry[MTIME], entry[MTIME]))
            os.chmod(target, entry[MODE])
