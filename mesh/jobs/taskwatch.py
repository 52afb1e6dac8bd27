"""The steward's look at task files: what has changed in them, and which workers get a task."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.config.tasksfile import read_tasks
from mesh.core.errors import UsageError
from mesh.core.tasks import WorkerSpec
from mesh.jobs.events import TasksSeen
from mesh.jobs.leases import Lease
from mesh.jobs.store import Store
from mesh.jobs.tasking import failed_count, is_over, shared_out
from mesh.jobs.taskmirror import read_mirror, write_mirror
from mesh.jobs.tasktables import TaskFileState, TaskTables, file_key, key_of
from mesh.jobs.values import Job, OpenOrder, State
from mesh.jobs.working import as_worker, is_ready, wants_task

FILE_LOOK_S = 1.0  # between two looks at a task file
Record = Callable[[int, TasksSeen], object]  # writes an event of a job
Took = Callable[[Job, Iterable[OpenOrder]], None]  # carries out what follows from an event


class Loaded(Struct, frozen=True, kw_only=True):
    """A task file after a look at it."""

    state: TaskFileState | None  # None: it was never readable
    problem: str = ""  # with its text now; the state is that of the text before


def load_tasks(tables: TaskTables, user: str, path: Path) -> TaskFileState:
    """Return the state of a task file; take its text into the store, where it has changed.

    path: absolute. Raises UsageError with all problems, StoreFailed.
    """
    file = file_key(user, str(path))
    state, digest = tables.state(file), _digest(path)
    if state is not None and state.digest == digest:
        return state
    found = read_tasks(path)
    return tables.load(file, digest, found, () if state else read_mirror(path))


def _digest(path: Path) -> str:
    """Return the digest of a file's text. Raises UsageError."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


class _File:
    """A task file that workers of ours have."""

    def __init__(self, tables: TaskTables, user: str, path: Path) -> None:
        self._tables, self._user, self._path = tables, user, path
        self._signature: tuple[int, ...] = ()
        self._look_at = 0.0  # monotonic
        self._mirrored = 0  # the seq that the mirror has
        self.loaded = Loaded(state=None)

    def look(self) -> Loaded:
        """Return the file with its tasks and their records as they are now."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + FILE_LOOK_S
            self._look_at_text()
        state, file = self.loaded.state, file_key(self._user, str(self._path))
        if self._tables.seq(file) != (state.seq if state else 0):
            self.loaded = Loaded(state=self._tables.state(file), problem=self.loaded.problem)
        return self.loaded

    def _look_at_text(self) -> None:
        try:
            found = os.stat(self._path)
            signature: tuple[int, ...] = (found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            signature = (0,)
        if signature == self._signature:
            return
        try:
            state = load_tasks(self._tables, self._user, self._path)
            self.loaded = Loaded(state=state)
        except UsageError as error:
            first, _, more = str(error).partition("\n")
            problem = f"{first} (and more)" if more else first
            self.loaded = Loaded(state=self.loaded.state, problem=problem)
        self._signature = signature

    def mirror(self) -> str:
        """Write the mirror if the state has changed; return why that failed, "" if it did not."""
        state = self.loaded.state
        if state is None or state.seq == self._mirrored:
            return ""
        self._mirrored = state.seq
        try:
            write_mirror(state)
        except OSError as error:
            return f"{self._path}: its state cannot be written beside it ({error.strerror})"
        return ""


class TaskWatch:
    """The task files of a steward's workers."""

    def __init__(self, store: Store, record: Record, took: Took, note: Callable[[str], None]) -> None:
        """note: keeps a problem for people"""
        self._store, self._record, self._took, self._note = store, record, took, note
        self._files: dict[str, _File] = {}

    def give(self, workers: Iterable[Job], now: float, lease: Lease | None) -> None:
        """Give workers their next tasks, as task files have them now. Raises LeaseLost, StoreFailed.

        now: seconds since the epoch
        """
        jobs = list(workers)
        seen, takers = self._look(jobs, now) if jobs else ([], [])
        for number in takers:
            if (decided := self._store.give_task(number, now, lease)) is not None:
                self._took(decided.job, decided.orders)
        for number, fact in seen:
            self._record(number, fact)
        for file in self._files.values():
            if problem := file.mirror():
                self._note(problem)

    def _look(self, workers: Sequence[Job], now: float) -> tuple[list[tuple[int, TasksSeen]], list[int]]:
        """Return what workers are to learn about their files, and the workers that get a task now."""
        seen: list[tuple[int, TasksSeen]] = []
        takers: list[int] = []
        by_file: dict[str, list[Job]] = {}
        for job in workers:
            by_file.setdefault(key_of(job.spec), []).append(job)
        for key, jobs in by_file.items():
            worker = jobs[0].spec.worker
            assert worker is not None
            file = self._files.setdefault(key, _File(self._store.tasks, jobs[0].spec.user, worker.tasks))
            loaded = file.look()
            shares = _shares(loaded, jobs)
            takers += [job.id for job in jobs if job.id in shares and wants_task(job, now)]
            seen += [(job.id, fact) for job in jobs for fact in _news(job, loaded, shares, now)]
        for key in self._files.keys() - by_file.keys():
            del self._files[key]
        return seen, takers


def _spec(job: Job) -> WorkerSpec:
    worker = as_worker(job)
    assert worker is not None
    return worker


def _shares(loaded: Loaded, jobs: Sequence[Job]) -> dict[int, str]:
    """Return which workers would get which task now: first those that have machines, then those that wait for some."""
    if loaded.state is None:
        return {}
    free = [job for job in jobs if job.work is not None and job.work.turn is None]
    coming = (State.REQUESTING, State.PREPARING, State.RUNNING)  # running a step of its prefix
    holders = sorted((job for job in free if job.state in coming), key=lambda job: (not is_ready(job), job.id))
    queued = sorted((job for job in free if job.state is State.QUEUED), key=lambda job: (-job.priority, job.id))
    return shared_out(loaded.state.tasks, loaded.state.records, [(job.id, _spec(job)) for job in (*holders, *queued)])


def _news(job: Job, loaded: Loaded, shares: dict[int, str], now: float) -> Iterator[TasksSeen]:
    """Yield what a worker is to learn, if it does not have it already."""
    work, state = job.work, loaded.state
    if work is None or work.turn is not None or not (job.state is State.QUEUED or is_ready(job)):
        return
    has_tasks, over, failed = job.id in shares, False, 0
    if _spec(job).ends and not has_tasks and state is not None and not loaded.problem:
        over = is_over(state.tasks, state.records, _spec(job))
        failed = failed_count(state.tasks, state.records, _spec(job)) if over else 0
    if job.state is not State.QUEUED:
        has_tasks = work.has_tasks  # of interest while it waits for machines
    if over or has_tasks != work.has_tasks or loaded.problem != work.problem:
        yield TasksSeen(time=now, has_tasks=has_tasks, is_over=over, failed=failed, problem=loaded.problem)
