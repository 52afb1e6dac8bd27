"""Brings the workspace to a new tree: stages everything beside it, then changes path by path (docs/sync.md)."""

from __future__ import annotations

import errno
import os

from mesh.agent.base.errors import LinkRefused
from mesh.agent.sync.contents import Store, copy, hash_file, open_file, write
from mesh.agent.sync.diff import Diff
from mesh.agent.sync.manifest import (
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
from mesh.agent.sync.packs import BadPack, unpack
from mesh.agent.sync.writer import Writer, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from mesh.agent.sync.diff import Lack
    from mesh.agent.sync.manifest import Entry, Status
    from mesh.agent.sync.packs import Content

TREE = b"tree"  # in a staging directory, beside numbers
DELTA_BYTES = 1 << 20  # from this size on, a file's old version is offered as a base


def _no_step(step: str) -> None:
    pass


class Applied:
    """The result of a sync: the tree that is in place, or the contents that are still missing."""

    def __init__(self, *, lacks: Sequence[Lack] = (), tree: str = "", files: int = 0, changed: int = 0) -> None:
        """files: in the tree; changed: number of paths that were made, changed or deleted"""
        self.lacks, self.tree, self.files, self.changed = lacks, tree, files, changed


class Workspace:
    """A workspace. Only one process at a time may use it: see .NAME.sync."""

    def __init__(self, directory: str, record: str, store: str) -> None:
        """directory: must exist, perhaps empty; record: a path beside it, as record + ".plan" is"""
        self._root = os.fsencode(directory)
        self._record, self._plan = record, record + ".plan"
        self._store = Store(store)
        self._diff: Diff | None = None
        self._staging = _beside(self._root, b".new-")

    def plan(self, changes: bytes) -> list[Lack]:
        """Take the changes; return the contents that are missing. ``apply`` continues, also in another process.

        Raises BadChanges, and OSError.
        """
        self._diff = self._compare(changes)
        write_whole(self._plan, changes)
        return self._lacks(self._diff, self._diff.lacking(self._store))

    def apply(self, packs: Sequence[str], fresh: bool = False, step: Callable[[str], None] = _no_step) -> Applied:
        """Bring the workspace to the planned tree, or return the contents that are still missing.

        packs: paths of packs; other contents are looked for in the workspace and in the store
        fresh: remove files that the hosts made
        step: called before each change, for tests
        Raises BadChanges, BadPack and OSError, in general before any change. The next sync completes
        an interrupted one.
        """
        if fresh and os.path.islink(self._root):
            raise LinkRefused("--fresh deletes nothing behind a symbolic link", self._root, "leave out --fresh")
        diff, self._diff = self._diff, None
        if diff is None:
            with open(self._plan, "rb") as file:
                diff = self._compare(file.read())
        gone = diff.gone()
        if not (diff.todo or gone or fresh) and diff.record.clean and diff.record.tree == diff.manifest.tree:
            return _done(diff, 0)
        folder, name = os.path.split(self._staging)
        for stale in os.listdir(folder):
            if stale.startswith(name) and stale[len(name) :].isdigit():
                _forget(os.path.join(folder, stale))
        staging = self._staging + b"%d" % os.getpid()
        try:
            os.mkdir(staging, 0o700)
            stage = _Stage(diff, staging, self._store, step, is_whole=_is_empty(self._root))
            missing = stage.fill(packs)
            if missing:
                return Applied(lacks=self._lacks(diff, missing, stage.baseless))
            return self._change(diff, stage, gone, fresh, step)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._store.trim(0)  # the next sync may need the space, and finds the rest at the client
            raise
        finally:
            _forget(staging)

    def _compare(self, changes: bytes) -> Diff:
        record = read_record(self._record)
        return Diff(self._root, record, apply_changes(record, changes))

    def _lacks(self, diff: Diff, missing: Iterable[str], baseless: Container[str] = ()) -> list[Lack]:
        """Return the contents to ask the client for. baseless: those that must come whole."""
        lacks = []
        for name in missing:
            entry = diff.wanted[name][0]
            lack: Lack = {"hash": name, "size": entry[SIZE]}
            if entry[SIZE] >= DELTA_BYTES and name not in baseless:
                lack.update(diff.base(diff.wanted[name]))
            lacks.append(lack)
        return lacks

    def _change(self, diff: Diff, stage: _Stage, gone: list[str], fresh: bool, step: Callable[[str], None]) -> Applied:
        """Change the workspace, once everything is staged."""
        record, manifest = diff.record, diff.manifest
        extra = {entry[PATH] for entry in diff.todo}.union(record.extra)
        step("record")
        write_dirty(self._record, record, [path for path in extra if record.place_of(path) < 0])
        new: dict[str, Status] = {}
        writer = Writer(self._root, self._store, diff.unchanged, step)
        if stage.tree:
            writer.fill(stage.tree)
            new.update((path, status_of(os.lstat(diff.full(path)))) for path in stage.names)
        else:
            for path in gone:
                writer.remove(path)
            writer.leave(manifest)
            for entry in diff.make:
                writer.make_directory(entry[PATH])
            for path, staged in stage.names.items():
                new[path] = writer.put(staged, path)
            for entry in diff.touch:
                new[entry[PATH]] = writer.touch(entry)
            if fresh:
                writer.clear({entry[PATH]: entry[KIND] for entry in manifest.entries})
        new.update(writer.finish(manifest, diff.todo))
        step("record")
        write_clean(self._record, record, manifest, new, diff.differing)
        self._store.trim()
        return _done(diff, len(diff.todo) + len(gone))


def _beside(root: bytes, end: bytes) -> bytes:
    """Return a path beside the workspace, on its file system even if the workspace is a link."""
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
    """Return True for an empty directory that is no link."""
    try:
        return not os.path.islink(directory) and not os.listdir(directory)
    except OSError:
        return False


def _done(diff: Diff, changed: int) -> Applied:
    return Applied(tree=diff.manifest.tree, files=diff.manifest.files, changed=changed)


class _Stage:
    """The new files and links beside the workspace, each under a number, or the tree as a whole."""

    def __init__(
        self, diff: Diff, staging: bytes, store: Store, step: Callable[[str], None], *, is_whole: bool
    ) -> None:
        """is_whole: the workspace is empty, and the top of the tree will be renamed as it is"""
        self._diff, self._store, self._step = diff, store, step
        self.tree = os.path.join(staging, TREE) if is_whole else b""
        paths = [entry[PATH] for entry in diff.put]
        if is_whole:
            self.names = {path: os.path.join(self.tree, path.encode("latin-1")) for path in paths}
        else:
            self.names = {path: staging + b"/%d" % number for number, path in enumerate(paths)}
        self._missing = dict.fromkeys(diff.wanted)
        self.baseless: set[str] = set()  # contents whose base is not here

    def fill(self, packs: Sequence[str]) -> list[str]:
        """Stage everything; return the contents that are missing. Raises BadPack and OSError."""
        for path in ["", *(entry[PATH] for entry in self._diff.make)] if self.tree else ():
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
            for name, entries in self._diff.wanted.items():
                for entry in entries[1:]:
                    if not copy(self._target(name), self.names[entry[PATH]], name):
                        raise OSError(errno.EIO, os.strerror(errno.EIO), self.names[entry[PATH]])
            for entry in self._diff.put:
                self._finish(entry)
        return list(self._missing)

    def _target(self, name: str) -> bytes:
        return self.names[self._diff.wanted[name][0][PATH]]

    def _copy(self, name: str) -> bool:
        """Stage a content of the workspace; return False if it is not there."""
        path = self._diff.have.get(name)
        if path is None or not self._diff.reachable(path):
            return False
        return copy(self._diff.full(path), self._target(name), name)

    def _take(self, content: Content) -> None:
        """Stage one content of a pack."""
        name, base = content.name, None
        entries = self._diff.wanted[name]
        self._step("stage")
        if content.size() != entries[0][SIZE]:
            raise BadPack(f"the content {name} has another size in the pack than in the manifest")
        if content.base:
            path = self._diff.find(content.base, entries) or os.fsencode(self._store.path(content.base))
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
