"""Task files in the store: their tasks as they were read last, and the record of each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field
from sqlalchemy import Connection, delete, insert, select, update

from mesh.core.job import JobSpec
from mesh.core.tasks import TaskList
from mesh.jobs import tables
from mesh.jobs.coding import decode, encode
from mesh.jobs.database import Database
from mesh.jobs.tasking import TaskRecord, ended, given, next_task, record_of
from mesh.jobs.turns import Turn
from mesh.jobs.values import Job
from mesh.jobs.working import as_worker


class TaskFileState(Struct, frozen=True, kw_only=True):
    """A task file as the store has it."""

    file: str  # its key
    seq: int  # another one after each change
    digest: str
    tasks: TaskList
    records: Mapping[str, TaskRecord] = field(default_factory=dict)


def key_of(spec: JobSpec) -> str:
    """Return the key of the task file of a worker, which is its absolute path; "" for other jobs."""
    return str(spec.worker.tasks) if spec.worker else ""


class TaskTables:
    """The task files of one store. It may be used from one thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def seq(self, file: str) -> int:
        """Return a number that is another one after a change of a file's tasks; 0 before it was loaded."""
        query = select(tables.task_files.c.seq).where(tables.task_files.c.file == file)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def state(self, file: str) -> TaskFileState | None:
        """Return a file; None before it was loaded."""
        with self._database.reading() as connection:
            return read(connection, file)

    def load(self, file: str, digest: str, found: TaskList, first: Iterable[TaskRecord] = ()) -> TaskFileState:
        """Take tasks as those of a file. first: records for a file that was never loaded"""
        with self._database.writing() as connection:
            before = read(connection, file, locks=True)
            seq = before.seq + 1 if before else 1
            row = {"file": file, "seq": seq, "digest": digest, "body": encode(found)}
            if before is None:
                connection.execute(insert(tables.task_files).values(row))
                _write(connection, file, first)
            else:
                mine = tables.task_files.c.file == file
                connection.execute(update(tables.task_files).where(mine).values(row))
            state = read(connection, file)
        assert state is not None
        return state

    def change(self, file: str, names: Iterable[str], change: Callable[[TaskRecord], TaskRecord]) -> list[TaskRecord]:
        """Change the records of some tasks; return them as they are then."""
        with self._database.writing() as connection:
            before = read(connection, file, locks=True)
            if before is None:
                return []
            changed = [change(record_of(before.records, name)) for name in names]
            _save(connection, before, changed)
        return changed


def read(connection: Connection, file: str, *, locks: bool = False) -> TaskFileState | None:
    """Return a file; None before it was loaded. locks: nobody else changes it until the transaction ends"""
    table = tables.task_files
    query = select(table).where(table.c.file == file)
    row = connection.execute(query.with_for_update() if locks else query).one_or_none()
    if row is None:
        return None
    bodies = connection.execute(select(tables.tasks.c.body).where(tables.tasks.c.file == file)).scalars()
    records = {record.id: record for record in (decode(body, TaskRecord) for body in bodies)}
    found = decode(row.body, TaskList)
    return TaskFileState(file=file, seq=row.seq, digest=row.digest, tasks=found, records=records)


def claim(connection: Connection, job: Job, time: float) -> Turn | None:
    """Give a worker its next task, in the transaction that notes it for the worker; None if there is none now.

    The transaction holds the row of the job already.
    """
    state, worker = read(connection, key_of(job.spec), locks=True), as_worker(job)
    if state is None or worker is None:
        return None
    task = next_task(state.tasks, state.records, worker, job.id, time)
    if task is None:
        return None
    record = given(record_of(state.records, task.id), job.id, time)
    _save(connection, state, [record])
    return Turn(task=task, number=record.runs, since=time)


def note_turn(connection: Connection, before: Job, job: Job) -> None:
    """Note the end of a worker's turn for its task, in the transaction that notes it for the worker."""
    had, has = before.work and before.work.turn, job.work and job.work.turn
    end = job.work.end if job.work else None
    if not had or had == has or end is None:
        return
    if has and (has.task.id, has.number) == (had.task.id, had.number):
        return
    state = read(connection, key_of(job.spec), locks=True)
    if state is None:
        return
    last = max((record.behind for record in state.records.values()), default=0)
    _save(connection, state, [ended(record_of(state.records, had.task.id), job.id, end, last)])


def _save(connection: Connection, state: TaskFileState, records: Iterable[TaskRecord]) -> None:
    _write(connection, state.file, records)
    mine = tables.task_files.c.file == state.file
    connection.execute(update(tables.task_files).where(mine).values(seq=state.seq + 1))


def _write(connection: Connection, file: str, records: Iterable[TaskRecord]) -> None:
    for record in records:
        mine = (tables.tasks.c.file == file) & (tables.tasks.c.task == record.id)
        connection.execute(delete(tables.tasks).where(mine))
        connection.execute(insert(tables.tasks).values(file=file, task=record.id, body=encode(record)))
