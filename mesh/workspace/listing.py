"""The files of a workspace, as every host is to have them."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from mesh.core.errors import MeshError
from mesh.workspace.counting import Progress, no_progress
from mesh.workspace.ignore import DEFAULTS, Rules, load_rules, no_rules
from mesh.workspace.tracked import DEFAULT_NAMES, TrackedFiles

PATHS_NAMED = 10  # paths in one message
A_DEVICE = "a device"
SPECIAL = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: A_DEVICE, stat.S_IFBLK: A_DEVICE}


# The kinds of entries, as in the manifest; links are kept, wherever they point to.
FILE, DIRECTORY, LINK = "f", "d", "l"


class Entry(NamedTuple):
    """A path of the workspace, and its lstat result. A tuple, as there may be 100,000."""

    path: bytes  # relative, with slashes; any bytes but zero
    kind: str
    mode: int  # permission bits
    size: int  # bytes, of a file
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    names: int  # hard links, of a file
    target: bytes = b""  # of a link


_new = tuple.__new__  # an Entry of its fields, in half of the time


class Listing(Struct, frozen=True):
    """The entries that belong, sorted by path."""

    root: bytes
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...]  # paths that cannot be sent (sockets, FIFOs, devices), each with the reason
    started_ns: int  # start of the walk, nanoseconds since the epoch
    rules: Mapping[bytes, Rules] = field(default_factory=dict)  # of each directory that belongs, b"" being the root
    inside: bytes = b""  # where the root is, for the rules; with a slash at its end, unless it is their top
    by_default: tuple[str, ...] = ()  # names of DEFAULT_NAMES that were found and left out
    git_problem: str = ""  # why git did not list the ignored files that it tracks; "" without git, or if it did


def list_workspace(
    workspace: Path,
    ignore: Sequence[str],
    *,
    include_git: bool = False,
    as_is: bool = False,
    progress: Progress = no_progress,
) -> Listing:
    """List a workspace by its ignore files and the patterns of mesh.yaml.

    as_is: list all of it; progress: called with the number of paths so far
    Raises MeshError naming directories that cannot be read: no rank may start on a tree that lacks them. Unreadable
    files show when they are read.
    """
    started_ns = time.time_ns()
    rules, inside = (no_rules(workspace), b"") if as_is else load_rules(workspace, ignore, include_git=include_git)
    walk = _Walk(os.fsencode(workspace.resolve()), inside, progress)
    try:
        walk.directory(b"", rules)
        walk.tracked()
        problem = walk.git_problem()
    finally:
        walk.close()
    if walk.unreadable:
        raise unreadable(walk.unreadable)
    entries, skipped = tuple(sorted(walk.entries)), tuple(walk.skipped)
    by_default = tuple(sorted(walk.by_default))
    return Listing(walk.root, entries, skipped, started_ns, walk.rules, walk.inside, by_default, problem)


def obstacle(root: Path, path: bytes) -> str:
    """Return why a path of a workspace cannot be sent, whatever the rules are; "" if it can."""
    place = os.fsencode(root)
    parts = path.strip(b"/").split(b"/")
    for depth in range(1, len(parts)):
        if os.path.islink(os.path.join(place, *parts[:depth])):
            return f"{told(b'/'.join(parts[:depth]))} is a symbolic link, which is sent as one"
    try:
        kind = stat.S_IFMT(os.lstat(os.path.join(place, *parts)).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such file"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    return f"it is {SPECIAL[kind]}" if kind in SPECIAL else ""


def unreadable(lines: Sequence[str]) -> MeshError:
    """Return the error for paths that belong and cannot be read; lines: each with the reason."""
    more = f"\nand {len(lines) - PATHS_NAMED} more" if len(lines) > PATHS_NAMED else ""
    return MeshError(
        "cannot read what belongs to the workspace:\n" + "\n".join(lines[:PATHS_NAMED]) + more,
        hint="make it readable, or name it under ignore: in mesh.yaml",
    )


def entry_of(path: bytes, kind: str, status: os.stat_result, target: bytes = b"") -> Entry:
    """Return the entry of a path from its lstat result."""
    return _new(
        Entry,
        (
            path,
            kind,
            stat.S_IMODE(status.st_mode),
            status.st_size if kind == FILE else 0,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_dev,
            status.st_ino,
            status.st_nlink,
            target,
        ),
    )


class _Walk:
    def __init__(self, root: bytes, inside: bytes, progress: Progress) -> None:
        self.root, self._progress = root, progress
        self.inside = inside + b"/" if inside else b""  # path of the workspace, for the rules
        self.rules: dict[bytes, Rules] = {}
        self.entries: list[Entry] = []
        self.skipped: list[str] = []
        self.unreadable: list[str] = []
        self.by_default: set[str] = set()
        self._asked: list[TrackedFiles] = []  # git was started for these
        # Excluded by git's rules; git may track them.
        self._left_out: list[tuple[Rules, bytes, os.DirEntry[bytes]]] = []

    def directory(self, path: bytes, rules: Rules) -> None:
        """Take everything below a directory that belongs. Of 100,000 files, each call here counts."""
        try:
            with os.scandir(os.path.join(self.root, path)) as found:
                children = list(found)
        except OSError as error:
            if path and isinstance(error, FileNotFoundError):  # deleted just now
                raise
            self._cannot_read(path, error)
            return
        self._progress("listing", len(self.entries), 0)
        self.rules[path] = rules = rules.below((self.inside + path).rstrip(b"/"), [child.name for child in children])
        prefix = path + b"/" if path else b""
        inside, named_by = self.inside + prefix, rules.named_by
        for child in children:
            name = child.name
            try:
                pattern = named_by(inside + name, child.is_dir(follow_symlinks=False))
                if pattern is None:
                    self._take(prefix + name, child, rules)
                elif pattern.of_git and rules.tracked is not None:
                    if rules.tracked not in self._asked:
                        self._asked.append(rules.tracked)
                        rules.tracked.start()
                    self._left_out.append((rules, prefix + name, child))
                elif pattern in DEFAULTS:
                    self.by_default.add(os.fsdecode(name))
            except FileNotFoundError:  # deleted just now
                continue
            except OSError as error:
                self._cannot_read(prefix + name, error)

    def tracked(self) -> None:
        """Add tracked files that ignore files name. Raises MeshError if git does not end."""
        while self._left_out:
            left_out, self._left_out = self._left_out, []
            for rules, path, child in left_out:
                inside = self.inside + path
                try:
                    is_directory = child.is_dir(follow_symlinks=False)
                    if rules.is_tracked(inside, is_directory) and not rules.excludes(inside, is_directory):
                        self._take(path, child, rules.for_tracked(inside) if is_directory else rules)
                    elif rules.decide(inside, is_directory) in DEFAULTS and os.fsdecode(child.name) in DEFAULT_NAMES:
                        self.by_default.add(os.fsdecode(child.name))
                except FileNotFoundError:  # deleted just now
                    continue
                except OSError as error:
                    self._cannot_read(path, error)

    def git_problem(self) -> str:
        """Return the first reason why an installed git could not be asked; "" if there is none."""
        return next((tracked.problem for tracked in self._asked if tracked.is_refused), "")

    def close(self) -> None:
        """Stop each git that still runs."""
        for tracked in self._asked:
            tracked.stop()

    def _take(self, path: bytes, child: os.DirEntry[bytes], rules: Rules) -> None:
        status = child.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self.entries.append(entry_of(path, FILE, status))
        elif kind == stat.S_IFDIR:
            self.directory(path, rules)
            self.entries.append(entry_of(path, DIRECTORY, status))
        elif kind == stat.S_IFLNK:
            self.entries.append(entry_of(path, LINK, status, os.readlink(child.path)))
        else:
            self.skipped.append(f"{told(path)}: {SPECIAL.get(kind, A_DEVICE)}")

    def _cannot_read(self, path: bytes, error: OSError) -> None:
        self.unreadable.append(f"{told(path) or '.'}: {error.strerror}")


def told_failure(error: OSError) -> str:
    """Return the reason of a failure, with the path that it is about where the error has one.

    >>> told_failure(OSError(28, "No space left on device")), told_failure(OSError(13, "Permission denied", b"/a\\xff"))
    ('No space left on device', 'Permission denied: /a\\\\xff')
    """
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{reason}: {told(os.fsencode(error.filename))}"


def told(path: bytes) -> str:
    """Escape a path for people, on one line.

    >>> told(b"a\\nb\\xff")
    'a\\\\nb\\\\xff'
    """
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
