"""Reading of task files in threads that the steward never waits for: a file may lie on a mount that does not answer."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from mesh.config.tasksfile import read_tasks
from mesh.core.errors import UsageError
from mesh.core.tasks import TaskList
from mesh.jobs.tasking import TaskRecord
from mesh.jobs.taskmirror import read_mirror, write_mirror
from mesh.jobs.tasktables import TaskFileState, TaskTables

ANSWER_LIMIT_S = 10.0  # for a file to be read before its silence is a problem
Signature = tuple[int, ...]


class FileText(Struct, frozen=True, kw_only=True):
    """A task file as a thread has found it."""

    signature: Signature
    digest: str = ""
    tasks: TaskList | None = None  # None: the text is the one that the store has, or it has a problem
    first: tuple[TaskRecord, ...] = ()  # of a mirror of JOBMAN, for a file that was never loaded
    problem: str = ""  # with the file; "": it can be read


class Report(Struct, frozen=True, kw_only=True):
    """The result of a look at a file."""

    text: FileText | None = None  # None: as it was before
    unwritten: str = ""  # the reason why the mirror could not be written; "": it was


def load_tasks(tables: TaskTables, path: Path) -> TaskFileState:
    """Return the state of a task file; take its text into the store, where it has changed.

    path: absolute. Raises UsageError with all problems, StoreFailed.
    """
    file = str(path)
    state, digest = tables.state(file), _digest(path)
    if state is not None and state.digest == digest:
        return state
    found = read_tasks(path)
    return tables.load(file, digest, found, () if state else read_mirror(path))


def read_text(path: Path, signature: Signature, digest: str) -> FileText | None:
    """Return a task file if it has changed, with its problems; None if it has not.

    signature, digest: of the text before; a file without any has its mirror read too
    """
    found = _signature(path)
    if found == signature:
        return None
    try:
        new = _digest(path)
        if new == digest:
            return FileText(signature=found, digest=new)
        tasks = read_tasks(path)
        first = () if digest else tuple(read_mirror(path))
    except UsageError as error:
        line, _, more = str(error).partition("\n")
        return FileText(signature=found, problem=f"{line} (and more)" if more else line)
    return FileText(signature=found, digest=new, tasks=tasks, first=first)


def _signature(path: Path) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return (0,)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(path: Path) -> str:
    """Return the digest of a file's text. Raises UsageError."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


class FileReader:
    """Looks at one task file, in one thread at a time. It is used from one other thread, which owns the store."""

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        """wake: called in the thread once there is something to take"""
        self._path, self._wake = path, wake
        self._begun = 0.0  # monotonic; 0: no look is under way
        self._report: Report | None = None

    @property
    def is_busy(self) -> bool:
        """True while a look is under way, or its report was not taken."""
        return self._begun > 0.0

    def begin(self, signature: Signature, digest: str, mirror: TaskFileState | None) -> None:
        """Begin a look. mirror: the state to write beside the file; None: none"""
        self._begun = time.monotonic()
        words = (signature, digest, mirror)
        threading.Thread(target=self._look, args=words, name="mesh-tasks", daemon=True).start()

    def take(self) -> Report | None:
        """Return the report of the look that has ended; None while there is none."""
        report, self._report = self._report, None
        if report is not None:
            self._begun = 0.0
        return report

    @property
    def silence(self) -> str:
        """The problem with a file that does not answer; "" if it does."""
        if not self._begun or time.monotonic() < self._begun + ANSWER_LIMIT_S:
            return ""
        return f"{self._path}: has not answered for more than {ANSWER_LIMIT_S:g} s"

    def _look(self, signature: Signature, digest: str, mirror: TaskFileState | None) -> None:
        unwritten = ""
        if mirror is not None:
            try:
                write_mirror(mirror)
            except OSError as error:
                unwritten = f"{self._path}: its state cannot be written beside it ({error.strerror})"
        try:
            text = read_text(self._path, signature, digest)
        except Exception as error:  # the report is the only way out of the thread
            text = FileText(signature=(), problem=f"{self._path}: {type(error).__name__}: {error}")
        self._report = Report(text=text, unwritten=unwritten)
        if text is not None or unwritten:
            self._wake()
