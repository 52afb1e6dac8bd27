"""The rules of task files: which task a worker gets next, and what follows from the end of one. Pure."""

from __future__ import annotations

import fnmatch
import time as clock
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.tasks import TaskList, TaskSpec, WorkerSpec
from mesh.jobs.pauses import growing
from mesh.jobs.turns import How, TurnEnd

HISTORY_COUNT = 20  # ends of a task that are kept


class Running(Struct, frozen=True, kw_only=True):
    """An instance of a task that a worker has."""

    job: int  # the worker
    number: int
    since: float  # seconds since the epoch


class Ended(Struct, frozen=True, kw_only=True):
    """An instance of a task that has ended."""

    job: int
    number: int
    how: How
    started: float
    ended: float
    exit_code: int = 0
    run: str = ""


class TaskRecord(Struct, frozen=True, kw_only=True):
    """The state of a task that is kept beside its file."""

    id: str
    runs: int = 0  # instances so far
    failures: int = 0  # since the last success or reset
    is_done: bool = False
    is_first: bool = False  # a person wants it next
    behind: int = 0  # the greater, the later among those of one priority
    running: tuple[Running, ...] = ()
    history: tuple[Ended, ...] = ()  # the last ones, oldest first


class TaskState(Enum):
    """The state of a task."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    BLOCKED = "blocked"  # a task that it depends on has failed


Records = Mapping[str, TaskRecord]


class Status(Struct, frozen=True, kw_only=True):
    """A task with its state, as lists show it."""

    task: TaskSpec | None  # None: it was removed from the file, and still runs
    record: TaskRecord
    state: TaskState
    why: str = ""


def record_of(records: Records, name: str) -> TaskRecord:
    """Return the record of a task; an empty one if it has none yet."""
    return records.get(name, TaskRecord(id=name))


def has_failed(task: TaskSpec, record: TaskRecord) -> bool:
    """Return True if a task has failed for good."""
    return not record.is_done and record.failures >= task.failures_max


def next_try_at(task: TaskSpec, record: TaskRecord) -> float:
    """Return the time before which a task that has failed is not started again, in seconds since the epoch.

    0 without a failure since the last success or reset, and for a task that a person wants next.
    """
    last = next((one.ended for one in reversed(record.history) if one.how is How.FAILED), 0.0)
    if not record.failures or not last or record.is_first:
        return 0.0
    return last + growing(task.backoff, record.failures, f"{task.id}/{last!r}")


# ---- states


def statuses(tasks: TaskList, records: Records, time: float = 0.0) -> list[Status]:
    """Return all tasks in the order of their file, and then those that were removed from it and still run.

    time: in seconds since the epoch, for the pauses after failures
    """
    stopped = _blocked(tasks, records)
    found = [_status(task, record_of(records, task.id), stopped, records, time) for task in tasks.tasks]
    known = {task.id for task in tasks.tasks}
    removed = [record for name, record in records.items() if name not in known and record.running]
    why = "removed from the file"
    return found + [Status(task=None, record=record, state=TaskState.RUNNING, why=why) for record in removed]


def _status(task: TaskSpec, record: TaskRecord, stopped: Mapping[str, str], records: Records, time: float) -> Status:
    if record.running:
        workers = ", ".join(str(one.job) for one in record.running)
        return Status(task=task, record=record, state=TaskState.RUNNING, why=f"by job {workers}")
    if record.is_done:
        return Status(task=task, record=record, state=TaskState.DONE)
    if has_failed(task, record):
        return Status(task=task, record=record, state=TaskState.FAILED, why=f"{record.failures} failures")
    if task.id in stopped:
        return Status(task=task, record=record, state=TaskState.BLOCKED, why=f"{stopped[task.id]} failed")
    waits = [other for other in task.depends_on if not record_of(records, other).is_done]
    why = f"waits for {', '.join(waits)}" if waits else _pause_words(task, record, time)
    return Status(task=task, record=record, state=TaskState.PENDING, why=why)


def _pause_words(task: TaskSpec, record: TaskRecord, time: float) -> str:
    """Return which failure a task has behind it, and when it may start again; "" without a failure."""
    if not record.failures:
        return ""
    at = next_try_at(task, record)
    again = f", again at {clock.strftime('%H:%M:%S', clock.localtime(at))}" if at > time else ""
    return f"failure {record.failures} of {task.failures_max}{again}"


def _blocked(tasks: TaskList, records: Records) -> dict[str, str]:
    """Return the tasks that cannot be done as another one has failed, each with that one."""
    failed = {task.id: task.id for task in tasks.tasks if has_failed(task, record_of(records, task.id))}
    found: dict[str, str] = {}
    has_changed = bool(failed)
    while has_changed:
        has_changed = False
        for task in tasks.tasks:
            if task.id in found or task.id in failed or record_of(records, task.id).is_done:
                continue
            cause = next((one for other in task.depends_on if (one := failed.get(other) or found.get(other))), "")
            if cause:
                found[task.id], has_changed = cause, True
    return found


def is_over(tasks: TaskList, records: Records, worker: WorkerSpec) -> bool:
    """Return True if no task of a worker can be run any more, and none runs."""
    final = (TaskState.DONE, TaskState.FAILED, TaskState.BLOCKED)
    return all(one.state in final for one in statuses(tasks, records) if one.task and matches(one.task, worker))


def failed_count(tasks: TaskList, records: Records, worker: WorkerSpec) -> int:
    """Return how many tasks of a worker were not done for good."""
    bad = (TaskState.FAILED, TaskState.BLOCKED)
    return sum(one.state in bad for one in statuses(tasks, records) if one.task and matches(one.task, worker))


# ---- the next task


def matches(task: TaskSpec, worker: WorkerSpec) -> bool:
    """Return True if a task is for workers of this accelerator and zone."""
    return (not worker.accelerator or worker.accelerator == task.accelerator) and (
        not worker.zone or not task.zone or worker.zone == task.zone
    )


def may_start(task: TaskSpec, records: Records, time: float) -> bool:
    """Return True if an instance of a task may be given to a worker. time: in seconds since the epoch"""
    record = record_of(records, task.id)
    if time < next_try_at(task, record):
        return False
    if record.is_done or has_failed(task, record) or len(record.running) >= task.max_jobs:
        return False
    return all(record_of(records, other).is_done for other in task.depends_on)


def next_task(tasks: TaskList, records: Records, worker: WorkerSpec, job: int, time: float) -> TaskSpec | None:
    """Return the task that a worker gets next; None if there is none for it now.

    job: the worker's; time: in seconds since the epoch
    """
    able = [
        task
        for task in tasks.tasks
        if matches(task, worker)
        and may_start(task, records, time)
        and all(one.job != job for one in record_of(records, task.id).running)
    ]

    def order(task: TaskSpec) -> tuple[bool, int, int]:
        record = record_of(records, task.id)
        return not record.is_first, -task.priority, record.behind

    return min(able, key=order, default=None)


def shared_out(
    tasks: TaskList, records: Records, workers: Sequence[tuple[int, WorkerSpec]], time: float
) -> dict[int, str]:
    """Return the task that each of some workers would get at a time, by job. Earlier workers choose first."""
    now, found = dict(records), {}
    for job, worker in workers:
        task = next_task(tasks, now, worker, job, time)
        if task is not None:
            found[job] = task.id
            now[task.id] = given(record_of(now, task.id), job, 0.0)
    return found


# ---- changes of a record


def given(record: TaskRecord, job: int, time: float) -> TaskRecord:
    """Return the record once a worker has an instance of the task."""
    number = record.runs + 1
    running = (*record.running, Running(job=job, number=number, since=time))
    return replace(record, runs=number, running=running, is_first=False)


def ended(record: TaskRecord, job: int, end: TurnEnd, last: int = 0) -> TaskRecord:
    """Return the record once an instance has ended. last: the greatest `behind` of the file's tasks"""
    mine = [one for one in record.running if (one.job, one.number) == (job, end.number)]
    if not mine:
        return record
    line = Ended(
        job=job,
        number=end.number,
        how=end.how,
        started=end.started,
        ended=end.ended,
        exit_code=end.exit_code,
        run=end.run,
    )
    record = replace(
        record,
        running=tuple(one for one in record.running if one not in mine),
        history=(*record.history, line)[-HISTORY_COUNT:],
        behind=last + 1 if end.is_requeued else record.behind,
    )
    if end.how is How.DONE:
        return replace(record, is_done=True, failures=0)
    return replace(record, failures=record.failures + 1) if end.how is How.FAILED else record


def reset(record: TaskRecord) -> TaskRecord:
    """Return the record of a task that may be run anew. Its instances that run go on."""
    return replace(record, failures=0, is_done=False, behind=0)


def marked_done(record: TaskRecord) -> TaskRecord:
    """Return the record of a task that a person has done."""
    return replace(record, is_done=True, failures=0, is_first=False)


def prioritized(record: TaskRecord) -> TaskRecord:
    """Return the record of a task that is next."""
    return replace(record, is_first=True)


def named(tasks: TaskList, records: Records, pattern: str) -> list[str]:
    """Return the ids of tasks that a pattern with wildcards means, in the order of their file."""
    names: Iterable[str] = dict.fromkeys([*(task.id for task in tasks.tasks), *records])
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]
