"""Task files and the workers that take their tasks. Each function is a part of ``mesh job queue`` or ``requeue``.

from mesh.api import tasks
print(tasks.listing("tasks.yaml").rows)
tasks.reset("tasks.yaml", ["pretrain-8b-s42"])
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.api.jobstore import JobRow, JobStore
from mesh.app.owner import user_name
from mesh.core.errors import UsageError
from mesh.core.tasks import TaskSpec
from mesh.jobs import tasking
from mesh.jobs.events import TaskReturnAsked
from mesh.jobs.place import store_place
from mesh.jobs.tasking import Ended, Running, Status, TaskRecord, TaskState, record_of, statuses
from mesh.jobs.taskmirror import write_mirror
from mesh.jobs.taskreading import load_tasks
from mesh.jobs.tasktables import TaskFileState, TaskTables

File = str | os.PathLike[str]


class TaskRow(Struct, frozen=True, kw_only=True):
    """A task as ``mesh job queue FILE --json`` prints it."""

    id: str
    state: str  # pending, running, done, failed or blocked
    why: str
    accelerator: str
    zone: str
    priority: int
    is_first: bool  # a person wants it next
    is_hidden: bool
    is_removed: bool  # from the file, while it runs
    runs: int
    failures: int  # since the last success or reset
    next_try_at: float  # before which it is not started again, in seconds since the epoch; 0: it has not failed
    max_retries: int
    max_jobs: int
    depends_on: tuple[str, ...]
    running: tuple[Running, ...]
    history: tuple[Ended, ...]  # the last ones, oldest first


class Listing(Struct, frozen=True, kw_only=True):
    """The tasks of a file."""

    rows: tuple[TaskRow, ...]
    counts: dict[str, int]  # of all of them, by state
    hidden: int  # tasks that are left out
    notices: tuple[str, ...] = ()


def listing(file: File, *, show_all: bool = False, states: Sequence[str] = ()) -> Listing:
    """Return the tasks of a file in their order, with their states.

    show_all: also those with ``hide:``; states: only those in one of them
    Raises UsageError with all problems of the file, and MeshError if the store cannot be read.
    """
    with _opened(file) as (_, state):
        found = [_row(one) for one in statuses(state.tasks, state.records, time.time())]
    counts = Counter(row.state for row in found)
    shown = [row for row in found if show_all or not row.is_hidden]
    rows = [row for row in shown if not states or row.state in states]
    notices = state.tasks.notices
    return Listing(rows=tuple(rows), counts=dict(counts), hidden=len(found) - len(shown), notices=notices)


def task(file: File, name: str) -> TaskRow:
    """Return one task of a file, hidden or not. Raises UsageError if there is none of this id."""
    for row in listing(file, show_all=True).rows:
        if row.id == name:
            return row
    raise _unknown(file, name)


# ---- changes


def reset(file: File, names: Sequence[str]) -> list[str]:
    """Let tasks run anew, as if they had never failed or ended; return their ids. Their instances that run go on.

    Raises UsageError for an id that is not in the file.
    """
    return _change(file, lambda state: _known(file, state, names), tasking.reset)


def reset_all(file: File) -> list[str]:
    """Let all tasks of a file run anew; return their ids."""
    return _change(file, lambda state: tasking.named(state.tasks, state.records, "*"), tasking.reset)


def reset_failed(file: File) -> list[str]:
    """Let all tasks that have failed for good run anew; return their ids."""

    def failed(state: TaskFileState) -> list[str]:
        return [one.record.id for one in statuses(state.tasks, state.records) if one.state is TaskState.FAILED]

    return _change(file, failed, tasking.reset)


def reset_pattern(file: File, pattern: str) -> list[str]:
    """Let all tasks whose ids match a pattern, as ``pretrain-*``, run anew; return their ids.

    Raises UsageError if none does.
    """

    def matching(state: TaskFileState) -> list[str]:
        if found := tasking.named(state.tasks, state.records, pattern):
            return found
        raise UsageError(f"{file}: no id of a task matches {pattern!r}", hint=f"mesh job queue {file} --show-all")

    return _change(file, matching, tasking.reset)


def prioritize(file: File, names: Sequence[str]) -> list[str]:
    """Have tasks taken before all others, once; return their ids. Raises UsageError for an unknown id."""
    return _change(file, lambda state: _known(file, state, names), tasking.prioritized)


def mark_done(file: File, names: Sequence[str]) -> list[str]:
    """Mark tasks as done, so that no worker takes them; return their ids. Raises UsageError for an unknown id."""
    return _change(file, lambda state: _known(file, state, names), tasking.marked_done)


def requeue(words: Sequence[str]) -> list[JobRow]:
    """End running tasks, and put them behind the others; return their workers, which then take the next task.

    words: ids of tasks, or numbers of workers. Raises UsageError for a task that no worker has, and MeshError.
    """
    if not words:
        raise UsageError("expected a task: its id, or the number of its worker", hint="mesh job queue tasks.yaml")
    store = JobStore()
    rows = store.rows()
    chosen: dict[int, JobRow] = {}
    for word in words:
        job = word.removeprefix("job:")
        number = int(job) if job.isascii() and job.isdecimal() else 0  # JOBMAN writes 000042
        found = [row for row in rows if row.task and (row.task == word or row.id == number)]
        if not found:
            raise UsageError(f"no worker has a task {word!r}", hint="mesh job list")
        chosen |= {row.id: row for row in found}
    by, now = user_name(), time.time()
    return [
        changed
        for row in chosen.values()
        for changed in store.record([row.id], TaskReturnAsked(time=now, task=row.task, by=by))
    ]


# ---- parts


@contextlib.contextmanager
def _opened(file: File) -> Iterator[tuple[TaskTables, TaskFileState]]:
    """Yield the tables of the store, and the state of a task file as it is now. Raises UsageError, MeshError."""
    from mesh.jobs.store import open_store

    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"{file}: there is no such file", hint="docs/tasks.md shows a task file")
    store = open_store(store_place(os.environ))
    try:
        yield store.tasks, load_tasks(store.tasks, path)
    finally:
        store.close()


def _change(
    file: File, names: Callable[[TaskFileState], Sequence[str]], change: Callable[[TaskRecord], TaskRecord]
) -> list[str]:
    with _opened(file) as (tables, state):
        changed = tables.change(state.file, names(state), change)
        after = tables.state(state.file)
        if after is not None:
            with contextlib.suppress(OSError):  # the steward reports a directory that it cannot write
                write_mirror(after)
    return [record.id for record in changed]


def _known(file: File, state: TaskFileState, names: Sequence[str]) -> list[str]:
    known = {one.id for one in state.tasks.tasks} | set(state.records)
    for name in names:
        if name not in known:
            raise _unknown(file, name)
    return list(dict.fromkeys(names))


def _unknown(file: File, name: str) -> UsageError:
    return UsageError(f"{file}: there is no task {name!r}", hint=f"mesh job queue {file} --show-all")


def _row(status: Status) -> TaskRow:
    record = record_of({status.record.id: status.record}, status.record.id)
    spec = status.task or TaskSpec(id=record.id, run="", accelerator="")
    return TaskRow(
        id=record.id,
        state=status.state.value,
        why=status.why,
        accelerator=spec.accelerator,
        zone=spec.zone,
        priority=spec.priority,
        is_first=record.is_first,
        is_hidden=spec.is_hidden,
        is_removed=status.task is None,
        runs=record.runs,
        failures=record.failures,
        next_try_at=tasking.next_try_at(spec, record) if status.state is TaskState.PENDING else 0.0,
        max_retries=spec.max_retries,
        max_jobs=spec.max_jobs,
        depends_on=spec.depends_on,
        running=record.running,
        history=record.history,
    )
