"""The steward's look at task files: what has changed in them, and which workers get a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.tasks import WorkerSpec
from mesh.jobs.events import TasksSeen
from mesh.jobs.leases import Lease
from mesh.jobs.store import Store
from mesh.jobs.tasking import failed_count, is_over, shared_out
from mesh.jobs.taskreading import FileReader, FileText, Signature
from mesh.jobs.tasktables import TaskFileState, TaskTables, key_of
from mesh.jobs.values import Job, OpenOrder, State
from mesh.jobs.working import as_worker, is_ready, wants_task

FILE_LOOK_S = 1.0  # between two looks at a task file
Record = Callable[[int, TasksSeen], object]  # writes an event of a job
Took = Callable[[Job, Iterable[OpenOrder]], None]  # carries out what follows from an event


class Loaded(Struct, frozen=True, kw_only=True):
    """A task file after a look at it."""

    state: TaskFileState | None  # None: it was never readable
    problem: str = ""  # with its text now; the state is that of the text before
    read_at: float = 0.0  # the last look that has ended began then, in seconds since the epoch


class _File:
    """A task file that workers of ours have."""

    def __init__(self, tables: TaskTables, path: Path, wake: Callable[[], None]) -> None:
        self._tables, self._path = tables, path
        self._reader = FileReader(path, wake)
        self._signature: Signature = ()
        self._look_at = 0.0  # monotonic
        self._mirrored = 0  # the seq that the mirror has, or will have soon
        self._unwritten = ""
        self.loaded = Loaded(state=None)  # the text in the store may be an old one
        self._begun_at = 0.0

    def look(self) -> Loaded:
        """Return the file with its tasks and their records. It never waits for the file."""
        if (report := self._reader.take()) is not None:
            self._unwritten = report.unwritten
            if report.text is not None:
                self._take(report.text)
            self.loaded = replace(self.loaded, read_at=self._begun_at)
        state, file = self.loaded.state, str(self._path)
        if self.loaded.read_at and self._tables.seq(file) != (state.seq if state else 0):
            state = self._tables.state(file)
            self.loaded = replace(self.loaded, state=state)
        now = time.monotonic()
        if not self._reader.is_busy and (now >= self._look_at or self.is_unwritten):
            self._look_at = now + FILE_LOOK_S
            mirror = state if self.is_unwritten else None
            self._mirrored = state.seq if state else 0
            known = state or self._tables.state(file)
            self._begun_at = time.time()
            self._reader.begin(self._signature, known.digest if known else "", mirror)
        silence = self._reader.silence
        return replace(self.loaded, problem=silence) if silence else self.loaded

    def _take(self, text: FileText) -> None:
        """Take the text of the file into the store, where it has changed."""
        file, state = str(self._path), self.loaded.state
        if text.problem:
            self.loaded = replace(self.loaded, state=state, problem=text.problem)
        elif text.tasks is not None:
            self.loaded = Loaded(state=self._tables.load(file, text.digest, text.tasks, text.first))
        else:
            self.loaded = Loaded(state=self._tables.state(file))
        self._signature = text.signature  # after the store has it: a text that it could not take is read again

    @property
    def is_unwritten(self) -> bool:
        """True if the mirror lacks changes."""
        return self.loaded.state is not None and self.loaded.state.seq != self._mirrored

    @property
    def trouble(self) -> str:
        """The reason why the mirror cannot be written; "": it can."""
        return self._unwritten

    def finish(self) -> bool:
        """Write the last changes to the mirror; return True once they are under way, or the file does not answer."""
        self.look()
        return bool(self._reader.silence) or not self.is_unwritten


class TaskWatch:
    """The task files of a steward's workers."""

    def __init__(
        self, store: Store, record: Record, took: Took, note: Callable[[str], None], wake: Callable[[], None]
    ) -> None:
        """note: keeps a problem for people; wake: ends the steward's wait, from any thread"""
        self._store, self._record, self._took, self._note, self._wake = store, record, took, note, wake
        self._files: dict[str, _File] = {}

    def give(self, workers: Iterable[Job], now: float, lease: Lease | None) -> None:
        """Give workers their next tasks, as task files have them now. Raises LeaseLost, StoreFailed.

        now: seconds since the epoch
        """
        jobs = list(workers)
        seen, takers = self._look(jobs, now) if jobs or self._files else ([], [])
        for number in takers:
            if (decided := self._store.give_task(number, now, lease)) is not None:
                self._took(decided.job, decided.orders)
        for number, fact in seen:
            self._record(number, fact)
        for file in self._files.values():
            if file.trouble:
                self._note(file.trouble)

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
            file = self._files.setdefault(key, _File(self._store.tasks, worker.tasks, self._wake))
            loaded = file.look()
            shares = _shares(loaded, jobs, now)
            takers += [job.id for job in jobs if job.id in shares and wants_task(job, now)]
            seen += [(job.id, fact) for job in jobs for fact in _news(job, loaded, shares, now)]
        for key in self._files.keys() - by_file.keys():
            if self._files[key].finish():
                del self._files[key]
        return seen, takers


def _spec(job: Job) -> WorkerSpec:
    worker = as_worker(job)
    assert worker is not None
    return worker


def _shares(loaded: Loaded, jobs: Sequence[Job], now: float) -> dict[int, str]:
    """Return which workers would get which task now: first those that have machines, then those that wait for some."""
    if loaded.state is None:
        return {}
    free = [job for job in jobs if job.work is not None and job.work.turn is None]
    coming = (State.REQUESTING, State.PREPARING, State.RUNNING)  # running a step of its prefix
    holders = sorted((job for job in free if job.state in coming), key=lambda job: (not is_ready(job), job.id))
    queued = sorted((job for job in free if job.state is State.QUEUED), key=lambda job: (-job.priority, job.id))
    workers = [(job.id, _spec(job)) for job in (*holders, *queued)]
    return shared_out(loaded.state.tasks, loaded.state.records, workers, now)


def _news(job: Job, loaded: Loaded, shares: dict[int, str], now: float) -> Iterator[TasksSeen]:
    """Yield what a worker is to learn, if it does not have it already."""
    work, state = job.work, loaded.state
    if work is None or work.turn is not None or not (job.state is State.QUEUED or is_ready(job)):
        return
    has_tasks, over, failed = job.id in shares, False, 0
    is_fresh = loaded.read_at > job.submitted and not loaded.problem
    if _spec(job).ends and not has_tasks and state is not None and is_fresh:
        over = is_over(state.tasks, state.records, _spec(job))
        failed = failed_count(state.tasks, state.records, _spec(job)) if over else 0
    if job.state is not State.QUEUED:
        has_tasks = work.has_tasks  # of interest while it waits for machines
    if over or has_tasks != work.has_tasks or loaded.problem != work.problem:
        yield TasksSeen(time=now, has_tasks=has_tasks, is_over=over, failed=failed, problem=loaded.problem)
