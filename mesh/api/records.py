"""The runs that this machine has started: naming one, listing them, removing old ones."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import LAST, RUN_ID, NamedRun, exactly, the_one
from mesh.core.paths import kept_trees_directory, runs_directory
from mesh.rundir.layout import EVENTS
from mesh.rundir.records import Record, State, read_record, size_on_disk

RUNS_KEPT = 50  # runs that `runs prune` keeps, however old
KEPT_FOR_S = 30 * 86400.0  # seconds for which it keeps all others
BEGIN_TIME_S = 3600.0  # seconds: what is no older may be a run that is just beginning
_REMOVED = ".removed"  # ends the name of a directory that is being removed


class Removed(Struct, frozen=True, kw_only=True):
    """A run whose directory was removed."""

    run: str
    bytes: int  # on disk


def list_records(part: str = "", *, tag: str = "") -> list[Record]:
    """Return the runs that this machine has started, the newest first. Raises MeshError.

    part: only those with it in their id or name, or as a tag; tag: only those with this tag
    """
    directory = runs_directory(os.environ)
    found = [read_record(directory / name) for name in reversed(_names(directory))]
    found = [record for record in found if record.directory.exists()]  # some may be removed meanwhile
    if part:
        found = [record for record in found if _is_called(record.named, part)]
    return [record for record in found if not tag or tag in record.named.tags]


def _is_called(run: NamedRun, part: str) -> bool:
    return part in run.run or part in run.name or part in run.tags


def find_record(word: str, *, is_exact: bool = False) -> Record | None:
    """Return the run that a word means; None if this machine has started none such.

    word: an id, a name, a tag, a part of an id or name, or "last": the newest run that is no exec, setup or push
    is_exact: only a whole id or name counts
    Raises AmbiguousRun if it may mean several.
    """
    directory = runs_directory(os.environ)
    names = _names(directory)
    newest_first = (read_record(directory / name) for name in reversed(names))
    if word == LAST:
        return next((record for record in newest_first if record.counts_as_last), None)
    if word in names:
        return read_record(directory / word)
    records = {record.run: record for record in newest_first}
    runs = [record.named for record in records.values()]
    if is_exact:
        runs = exactly(word, runs)
    found = the_one(word, runs)
    return records[found.run] if found else None


def prune(*, keep: int | None = None, older_than: float | None = None, dry_run: bool = False) -> Iterator[Removed]:
    """Remove the directories of old runs that have ended, one after the other; yield each one.

    keep: the newest so many stay, also if they are older
    older_than: seconds since their end; what is younger stays. Without both: 50 and 30 days
    dry_run: remove nothing, only yield what would be removed
    Raises UsageError, and MeshError if a directory cannot be removed.
    """
    if keep is None and older_than is None:
        keep, older_than = RUNS_KEPT, KEPT_FOR_S
    if keep is not None and keep < 0:
        raise UsageError(f"--keep: expected a number of runs, found {keep}")
    return _prune(runs_directory(os.environ), keep or 0, older_than or 0.0, dry_run)


def _prune(directory: Path, keep: int, older_than: float, dry_run: bool) -> Iterator[Removed]:
    names, now = _names(directory), time.time()
    if not dry_run:
        _finish_removing(directory)
    for name in names[: len(names) - keep]:
        path = directory / name
        record = read_record(path)
        age = now - (_changed(path) if record.ended is None else record.ended)
        if record.state is State.ON or age < older_than or (record.ended is None and age < BEGIN_TIME_S):
            continue
        size = size_on_disk(path)
        if dry_run or _remove(path):
            yield Removed(run=name, bytes=size)
    if not dry_run and (place := kept_trees_directory(os.environ)).is_dir():
        from mesh.app.trees import linked_trees
        from mesh.workspace.snapshot import remove_unused

        remove_unused(place, linked_trees([directory / name for name in _names(directory)]))


def _remove(path: Path) -> bool:
    """Remove a run's directory; False if somebody else has done it, or is at work there. Raises MeshError."""
    gone = path.with_name(f".{path.name}{_REMOVED}")
    with contextlib.ExitStack() as held:
        try:
            descriptor = os.open(path / EVENTS, os.O_WRONLY)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # there is no such file, or no lock: it was looked at before
            pass
        try:
            path.rename(gone)  # in one step, so that nobody sees half of a run
        except FileNotFoundError:
            return False
        except OSError as error:
            raise MeshError(f"cannot remove {path}: {error.strerror}") from error
    _remove_tree(gone)
    return True


def _finish_removing(directory: Path) -> None:
    """Remove the directories that a client has renamed for removal, also one that was killed before it was done."""
    for path in directory.glob(f".*{_REMOVED}"):
        if RUN_ID.fullmatch(path.name[1 : -len(_REMOVED)]) and _is_directory(path):
            _remove_tree(path)


def _remove_tree(path: Path) -> None:
    """Remove a directory, beside somebody else who may do the same; links are not followed. Raises MeshError."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        raise MeshError(f"cannot remove all of {path}")


def _names(directory: Path) -> list[str]:
    """The ids of the runs there, the oldest first. Raises MeshError."""
    try:
        found = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MeshError(f"cannot read {directory}: {error.strerror}") from error
    return sorted(name for name in found if RUN_ID.fullmatch(name) and _is_directory(directory / name))


def _is_directory(path: Path) -> bool:
    """Return True for a directory of our user that is no link to one."""
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _changed(path: Path) -> float:
    """When something was last made or renamed in a directory, in seconds since the epoch."""
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()
