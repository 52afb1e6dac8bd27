"""Snapshots of workspaces: each tree is kept once, and each content once for all trees.

``trees/TREE`` is a workspace as it was. Its files are hard links to ``contents/``, where a file's name has everything
that the file is: its hash, mode and time. A file in use is never changed, so that links are safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import MeshError
from mesh.workspace import listing as listed
from mesh.workspace.hashes import HashCache
from mesh.workspace.manifest import Entry, new_hash
from mesh.workspace.pack import changes_while_it_is_read
from mesh.workspace.prepare import prepare

TREES, CONTENTS, NEW = "trees", "contents", ".new-"
SNAPSHOT_TRIES = 3  # for a workspace that changes while it is copied
CLONED_BYTES = 1 << 20  # from here on the file system is asked to share a file's blocks
PIECE_BYTES = 1 << 20  # read at a time
UNUSED_TREE_S = 3600.0  # a tree without a job stays so long, because its job may be on its way to the store
CLONE_REQUEST = 0x40049409  # FICLONE of linux/fs.h


class Snapshot(Struct, frozen=True, kw_only=True):
    """A workspace that was copied."""

    tree: str  # its hash
    directory: Path
    files: int
    skipped: tuple[str, ...]  # paths that cannot be copied, each with the reason
    notices: tuple[str, ...]  # other lines for the user


class Changed(Exception):
    """A file differs from its entry in the listing."""


def take(
    workspace: Path,
    ignore: Sequence[str],
    place: Path,
    cache: Path,
    *,
    include_git: bool = False,
    as_is: bool = False,
) -> Snapshot:
    """Copy what belongs to a workspace. place: the directory of all jobs; cache: of hashes; as_is: all of it

    Raises MeshError for files that cannot be read or written.
    """
    changed = ""
    for _ in range(SNAPSHOT_TRIES):
        hashes = HashCache(workspace, cache)
        prepared = prepare(workspace, ignore, hashes, include_git=include_git, as_is=as_is)
        entries, tree = prepared.manifest.entries, prepared.manifest.tree
        try:
            directory = keep_tree(prepared.root, entries, tree, place)
        except Changed as error:
            changed = str(error)
            hashes.forget(changed.encode("latin-1"))
            continue
        except OSError as error:
            raise MeshError(f"cannot keep a snapshot of {workspace}: {listed.told_failure(error)}") from error
        files = sum(entry.kind != listed.DIRECTORY for entry in entries)
        return Snapshot(tree=tree, directory=directory, files=files, skipped=prepared.skipped, notices=prepared.notices)
    raise changes_while_it_is_read([listed.told(changed.encode("latin-1"))])


def remove_unused(place: Path, used: Collection[str]) -> int:
    """Remove the trees that no job uses, and contents that are in no tree; return the bytes of these contents.

    place: the directory of all jobs; used: hashes of trees
    """
    now, removed = time.time(), 0
    for tree in _listed(place / TREES):
        with contextlib.suppress(FileNotFoundError):
            if tree.name not in used and tree.lstat().st_mtime < now - UNUSED_TREE_S:
                _remove_tree(tree)
    for shelf in _listed(place / CONTENTS):
        for content in _listed(shelf):
            with contextlib.suppress(FileNotFoundError):
                status = content.lstat()
                if status.st_nlink == 1 and max(status.st_mtime, status.st_ctime) < now - UNUSED_TREE_S:
                    content.unlink()
                    removed += status.st_size
    return removed


def _listed(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove_tree(tree: Path) -> None:
    """Remove a tree, also one whose directories may not be written."""
    gone = tree.with_name(f"{NEW}{secrets.token_hex(8)}")
    tree.rename(gone)
    for directory, _, _ in os.walk(gone):
        os.chmod(directory, 0o700)
    shutil.rmtree(gone)


def keep_tree(root: bytes, entries: Sequence[Entry], tree: str, place: Path) -> Path:
    """Return the directory of a tree, made if it is not there. Raises Changed and OSError."""
    directory = place / TREES / tree
    if directory.is_dir():
        os.utime(directory)
        return directory
    (place / TREES).mkdir(parents=True, exist_ok=True, mode=0o700)
    new = place / TREES / f"{NEW}{secrets.token_hex(8)}"
    new.mkdir(mode=0o700)
    try:
        for entry in entries:
            _put(root, entry, os.fsencode(new), place / CONTENTS)
        for entry in reversed(entries):
            if entry.kind == listed.DIRECTORY:
                path = os.path.join(os.fsencode(new), entry.path.encode("latin-1"))
                os.chmod(path, entry.mode)
                os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
        with _unless_there(directory):
            new.rename(directory)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove_tree(new)
        raise
    return directory


@contextlib.contextmanager
def _unless_there(directory: Path) -> Iterator[None]:
    """Suppress the failure of a rename if another process has put the same tree there."""
    try:
        yield
    except OSError:
        if not directory.is_dir():
            raise


def _put(root: bytes, entry: Entry, new: bytes, contents: Path) -> None:
    """Put a path into a new tree. Raises Changed and OSError."""
    name = entry.path.encode("latin-1")
    path = os.path.join(new, name)
    if entry.kind == listed.DIRECTORY:
        os.mkdir(path, 0o700)
        return
    if entry.kind == listed.LINK:
        os.symlink(entry.content.encode("latin-1"), path)
        return
    content = content_name(os.fsencode(contents), entry)
    for _ in range(SNAPSHOT_TRIES):
        with contextlib.suppress(FileNotFoundError):  # it was never there, or was removed just now
            os.link(content, path)
            return
        _copy(os.path.join(root, name), entry, content)
    os.link(content, path)


def content_name(contents: bytes, entry: Entry) -> bytes:
    """Return the path of a file's content in a store. contents: its directory for them"""
    return b"%b/%b/%b" % (contents, entry.content[:2].encode(), _base(entry))


def _base(entry: Entry) -> bytes:
    """Return the name of a file among the contents that begin with the same two digits."""
    return f"{entry.content[2:]}-{entry.mode:o}-{entry.mtime_ns}".encode()


def _copy(source: bytes, entry: Entry, content: bytes) -> None:
    """Copy a file to its place among the contents. Raises Changed and OSError."""
    shelf = os.path.dirname(content)
    new = b"%b/%b%b" % (shelf, NEW.encode(), secrets.token_hex(8).encode())
    target = created(new, shelf)
    try:
        with _opened(source, entry) as reading:
            is_clone = entry.size >= CLONED_BYTES and _cloned(reading, target)
            digest = "" if is_clone else _copied(reading, target)
            now = os.fstat(reading)
        if digest not in ("", entry.content) or (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime_ns):
            raise Changed(entry.path)
        os.fchmod(target, entry.mode)
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        os.rename(new, content)
    except BaseException:
        os.unlink(new)
        raise
    finally:
        os.close(target)


def created(new: bytes, shelf: bytes) -> int:
    """Create a file in a directory, which is made if it is not there; return its descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(new, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(shelf, mode=0o700, exist_ok=True)
        return os.open(new, flags, 0o600)


@contextlib.contextmanager
def _opened(source: bytes, entry: Entry) -> Iterator[int]:
    """Open a file for reading. Raises Changed if there is none any more, and OSError."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Changed(entry.path) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Changed(entry.path)
        yield descriptor
    finally:
        os.close(descriptor)


def _cloned(source: int, target: int) -> bool:
    """Have the file system share the blocks of a file; False if it cannot."""
    try:
        fcntl.ioctl(target, CLONE_REQUEST, source)
    except OSError:
        return False
    return True


def _copied(source: int, target: int) -> str:
    """Copy a file, and return the hash of its copy."""
    digest = new_hash()
    while data := os.read(source, PIECE_BYTES):
        digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
    return digest.hexdigest()
