"""Puts the workspace in place: everything beside it first, then file by file.

What the last sync put there is kept in a record beside the workspace. It says what may be deleted: what hosts made
themselves stays. Before the first change the record holds the old and the new paths, after the last one the new,
so that the next sync completes what a crash at any point has left.
"""

from __future__ import annotations

import json
import os
import shutil
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterable

FILE, DIRECTORY, LINK = "f", "d", "l"
PIECE = 1 << 18


class BadPack(Exception):
    """A pack that would write outside the workspace, or is none."""


class Entry:
    """One path of the workspace."""

    def __init__(self, path: bytes, kind: str, mode: int, mtime_ns: int, target: bytes, member: str) -> None:
        self.path, self.kind, self.mode, self.mtime_ns = path, kind, mode, mtime_ns
        self.target, self.member = target, member


def put_in_place(
    pack_path: str, workspace: str, record: str, step: Callable[[str], None] = lambda what: None
) -> dict[str, int]:
    """Make the workspace equal to the pack, less what the hosts made there.

    A file of the pack takes the place of whatever has its path, a directory with things made by the host included.
    step: called before each change, for tests
    Raises OSError and BadPack; the next call completes what was begun.
    """
    import zipfile

    for stale in _stagings(workspace):
        shutil.rmtree(stale, ignore_errors=True)
    staging = f"{workspace}.new-{os.getpid()}"
    try:
        with zipfile.ZipFile(pack_path) as pack:
            entries = _read_index(pack)
            os.mkdir(staging, 0o700)
            _stage(pack, entries, staging, step)
        place = _Place(os.fsencode(workspace), step)
        new = {entry.path for entry in entries}
        old = _read_record(record)
        _write_record(record, old | new, step)
        for path in sorted(old - new, reverse=True):  # what is in a directory comes before it
            place.remove(path)
        for entry in entries:
            if entry.kind == DIRECTORY:
                place.make_directory(entry.path)
        for entry in entries:
            if entry.kind != DIRECTORY:
                place.put(os.fsencode(os.path.join(staging, entry.member)), entry.path)
        for entry in reversed(entries):
            if entry.kind == DIRECTORY:
                place.finish_directory(entry)
        _write_record(record, new, step)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return {"files": sum(entry.kind == FILE for entry in entries)}


def _stagings(workspace: str) -> list[str]:
    """What a sync that was killed has left."""
    parent, name = os.path.split(workspace)
    return [os.path.join(parent, other) for other in os.listdir(parent) if other.startswith(name + ".new-")]


def _read_index(pack: zipfile.ZipFile) -> list[Entry]:
    """The entries, sorted by path, after a look at every path."""
    entries = []
    for path, kind, mode, mtime_ns, target, member in json.loads(pack.read("index.json")):
        entries.append(Entry(path.encode("latin-1"), kind, mode & 0o7777, mtime_ns, target.encode("latin-1"), member))
    entries.sort(key=lambda entry: entry.path)
    kinds = {entry.path: entry.kind for entry in entries}
    if len(kinds) != len(entries):
        raise BadPack("a path is there twice")
    for number, entry in enumerate(entries):
        _check_path(entry.path, kinds)
        if entry.kind not in (FILE, DIRECTORY, LINK):
            raise BadPack(f"{entry.path!r} is of an unknown kind")
        if entry.kind == FILE and not entry.member.isdigit():
            raise BadPack(f"{entry.path!r} has no content")
        if entry.kind == LINK:
            entry.member = f"link-{number}"
    return entries


def _check_path(path: bytes, kinds: dict[bytes, str]) -> None:
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise BadPack(f"the path {path!r} leads out of the workspace")
    for depth in range(1, len(parts)):
        if kinds.get(b"/".join(parts[:depth])) != DIRECTORY:
            raise BadPack(f"the path {path!r} goes through something that is no directory")


def _stage(pack: zipfile.ZipFile, entries: Iterable[Entry], staging: str, step: Callable[[str], None]) -> None:
    """Write files and links beside the workspace, with all that belongs to them."""
    for entry in entries:
        target = os.path.join(staging, entry.member)
        if entry.kind == FILE:
            step("stage")
            with pack.open(entry.member) as source, open(target, "xb") as file:
                shutil.copyfileobj(source, file, PIECE)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
            os.chmod(target, entry.mode)
        elif entry.kind == LINK:
            step("stage")
            os.symlink(entry.target, os.fsencode(target))
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


class _Place:
    """The workspace while it is being changed. No link in it is ever followed."""

    def __init__(self, root: bytes, step: Callable[[str], None]) -> None:
        self._root, self._step = root, step

    def make_directory(self, path: bytes) -> None:
        """Have a directory there that we can write to, whatever was there before."""
        full = os.path.join(self._root, path)
        kind = _kind(full)
        if kind != DIRECTORY:
            if kind:
                self._step("unlink")
                os.unlink(full)
            self._step("mkdir")
            os.mkdir(full, 0o700)
        elif not os.stat(full).st_mode & stat.S_IWUSR:
            self._step("chmod")
            os.chmod(full, 0o700)

    def put(self, staged: bytes, path: bytes) -> None:
        full = os.path.join(self._root, path)
        if _kind(full) == DIRECTORY:
            self._step("rmtree")
            _remove_tree(full)
        self._step("replace")
        os.replace(staged, full)

    def finish_directory(self, entry: Entry) -> None:
        """Give a directory its own mode and time, once nothing is put into it any more."""
        full = os.path.join(self._root, entry.path)
        status = os.stat(full)
        if stat.S_IMODE(status.st_mode) != entry.mode:
            self._step("chmod")
            os.chmod(full, entry.mode)
        if status.st_mtime_ns != entry.mtime_ns:
            os.utime(full, ns=(entry.mtime_ns, entry.mtime_ns))

    def remove(self, path: bytes) -> None:
        """Delete what an earlier sync put there; a directory only if nothing else is in it."""
        parts = path.split(b"/")
        full = self._root
        for part in parts[:-1]:
            full = os.path.join(full, part)
            if _kind(full) != DIRECTORY:  # gone, or the host put something else there: not ours
                return
        parent, full = full, os.path.join(full, parts[-1])
        kind = _kind(full)
        if not kind:
            return
        self._step("remove")
        mode = stat.S_IMODE(os.stat(parent).st_mode)
        if not mode & stat.S_IWUSR:
            os.chmod(parent, mode | stat.S_IRWXU)
        if kind != DIRECTORY:
            os.unlink(full)
        else:
            try:
                os.rmdir(full)
            except OSError:  # the host made something in it
                pass
        if not mode & stat.S_IWUSR:
            os.chmod(parent, mode)


def _kind(path: bytes) -> str:
    """What is there: DIRECTORY, FILE (which stands for everything else as well), or ""."""
    try:
        return DIRECTORY if stat.S_ISDIR(os.lstat(path).st_mode) else FILE
    except FileNotFoundError:
        return ""


def _remove_tree(path: bytes) -> None:
    """Delete a directory, also one that holds directories that cannot be written to."""
    for directory, _, _ in os.walk(path):
        os.chmod(directory, 0o700)
    shutil.rmtree(path)


def _read_record(record: str) -> set[bytes]:
    try:
        with open(record) as file:
            return {path.encode("latin-1") for path in json.load(file)}
    except FileNotFoundError:
        return set()
    except ValueError:  # somebody wrote into it: what was sent before counts as made by the host
        return set()


def _write_record(record: str, paths: Iterable[bytes], step: Callable[[str], None]) -> None:
    step("record")
    with open(record + ".new", "w") as file:
        json.dump(sorted(path.decode("latin-1") for path in paths), file)
    os.replace(record + ".new", record)
