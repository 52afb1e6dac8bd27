"""The store of jobs: events, the jobs that they fold to, orders, usage and notices.

All SQL is here, in `tables`, `database` and `leases`. Commands that only look use `reading`, without SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy import delete as sql_delete

from mesh.core.errors import MeshError
from mesh.core.job import JobSpec
from mesh.jobs import tables
from mesh.jobs.coding import decode, decode_events, decode_job, decode_jobs, encode
from mesh.jobs.database import Database, open_database
from mesh.jobs.decide import decide, is_news, written
from mesh.jobs.events import AnyEvent, MachinesGiven, MachinesTaken, Submitted, TaskGiven
from mesh.jobs.fold import fold_all
from mesh.jobs.keeping import handed_now, keeper_spec, may_take, passed_on
from mesh.jobs.leases import Lease, Leases, check
from mesh.jobs.notices import Notice, notices
from mesh.jobs.place import StorePlace
from mesh.jobs.queue import aged
from mesh.jobs.reading import FINAL, Selection
from mesh.jobs.tasktables import TaskTables, claim, note_turn
from mesh.jobs.values import Generation, Job, OpenOrder, State, row_of
from mesh.jobs.working import wants_task


class Decided(Struct, frozen=True, kw_only=True):
    """A job after an event, and the orders that are to be carried out."""

    job: Job
    orders: tuple[OpenOrder, ...] = ()
    events: tuple[AnyEvent, ...] = ()  # that were written; (): the event was no news
    keeper: Job | None = None  # a new job, which has the machines that the job had until now


class Store:
    """The jobs of one store. It may be used from one thread; each process and thread opens its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.leases = Leases(database)
        self.tasks = TaskTables(database)
        self.place = database.place
        with database.reading() as connection:
            found = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == "store"))
            self.id = str(found.scalar_one())

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def change_count(self) -> int:
        """Return a number that is another one after a change by another process; only compare it."""
        return self._database.change_count()

    # ---- jobs

    def submit(self, specs: Sequence[JobSpec], time: float) -> list[Job]:
        """Write new jobs in one transaction, all or none. Specs with an array are one array."""
        with self._database.writing() as connection:
            first = self._ids(connection, len(specs))
            wanted = {job for spec in specs for job in spec.depends_on}
            states = self._states(connection, wanted)
            if missing := sorted(wanted - set(states)):
                raise MeshError(f"depends_on: there is no job {missing[0]}", hint="mesh job list --all")
            made: list[Job] = []
            rows: list[dict[str, object]] = []
            facts: list[dict[str, object]] = []
            for number, spec in enumerate(specs, first):
                if spec.array is not None:
                    spec = replace(spec, array=replace(spec.array, first=first))
                waits = tuple(job for job in spec.depends_on if states[job] != State.SUCCEEDED.value)
                fact = Submitted(time=time, job=number, store=self.id, spec=spec, depends_on=waits)
                job, _ = decide(None, fact)
                made.append(job)
                rows.append(_row(job))
                facts.append({"job": number, "seq": 1, "body": encode(fact)})
            connection.execute(insert(tables.jobs), rows)
            connection.execute(insert(tables.events), facts)
        return made

    def record(self, job: int, fact: AnyEvent, lease: Lease | None = None) -> Decided:
        """Write an event of a job, the intents that follow from it, and the job after it, in one transaction.

        An event that changes nothing is not written. Raises LeaseLost, StoreFailed, or MeshError without such a job.
        """
        with self._database.writing() as connection:
            return self._record(connection, job, fact, lease)

    def give_task(self, job: int, time: float, lease: Lease | None = None) -> Decided | None:
        """Give a worker its next task, and note that for both, in one transaction; None if there is none now.

        Raises LeaseLost, StoreFailed.
        """
        query = select(tables.jobs.c.body).where(tables.jobs.c.id == job).with_for_update()
        with self._database.writing() as connection:
            found = connection.execute(query).scalar()
            worker = decode_job(found) if found else None
            if worker is None or not wants_task(worker, time):
                return None
            turn = claim(connection, worker, time)
            return self._record(connection, job, TaskGiven(time=time, turn=turn), lease) if turn else None

    def hand_over(self, keeper: int, job: int, time: float, lease: Lease | None = None) -> list[Decided]:
        """Give a queued job the machines that another one keeps, in one transaction; return both, [] if it cannot be.

        Raises LeaseLost, StoreFailed.
        """
        query = select(tables.jobs.c.body).where(tables.jobs.c.id.in_((keeper, job))).order_by(tables.jobs.c.id)
        with self._database.writing() as connection:
            found = {one.id: one for one in decode_jobs(connection.execute(query.with_for_update()).scalars().all())}
            before = found.get(keeper)
            if len(found) < 2 or before is None or not may_take(before, found[job], time):
                return []
            assert before.generation is not None
            machines = passed_on(keeper, before.generation)
            facts = (
                (keeper, MachinesTaken(time=time, by=job)),
                (job, MachinesGiven(time=time, generation=machines, by=keeper)),
            )
            return [self._record(connection, number, fact, lease) for number, fact in facts]

    def record_all(self, facts: Iterable[tuple[int, AnyEvent]], lease: Lease | None = None) -> list[Decided]:
        """Write events of several jobs in one transaction, as `record` does."""
        with self._database.writing() as connection:
            return [self._record(connection, job, fact, lease) for job, fact in facts]

    def jobs(self, *, active_only: bool = False, user: str = "") -> list[Job]:
        """Return the jobs, by id. active_only: those that have not ended"""
        query = select(tables.jobs.c.body).order_by(tables.jobs.c.id)
        if active_only:
            query = query.where(tables.jobs.c.state.not_in(FINAL))
        if user:
            query = query.where(tables.jobs.c.user == user)
        with self._database.reading() as connection:
            return decode_jobs(connection.execute(query).scalars().all())

    def job(self, number: int) -> Job | None:
        """Return a job; None if there is none with this id."""
        query = select(tables.jobs.c.body).where(tables.jobs.c.id == number)
        with self._database.reading() as connection:
            found = connection.execute(query).scalar()
        return decode_job(found) if found else None

    def states(self, numbers: Iterable[int]) -> dict[int, str]:
        """Return the states of jobs by id; missing ones are left out."""
        with self._database.reading() as connection:
            return self._states(connection, numbers)

    def rows(self, selection: Selection) -> list[tuple[int, str]]:
        """Return the ids and rows of jobs, by id; each row is a JSON object."""
        table = tables.jobs
        query = select(table.c.id, table.c.row).order_by(table.c.id)
        if not selection.deleted:
            query = query.where(~table.c.is_deleted)
        if selection.ids:
            query = query.where(table.c.id.in_(selection.ids))
        if selection.states:
            query = query.where(table.c.state.in_(selection.states))
        if selection.active_only:
            query = query.where(table.c.state.not_in(FINAL))
        if selection.user:
            query = query.where(table.c.user == selection.user)
        if selection.since:
            query = query.where(table.c.submitted >= selection.since)
        with self._database.reading() as connection:
            return [(int(number), str(row)) for number, row in connection.execute(query)]

    def seqs(self, user: str = "") -> dict[int, int]:
        """Return how many events each job has that has not ended, by id. user: whose jobs; "": everybody's"""
        query = select(tables.jobs.c.id, tables.jobs.c.seq).where(tables.jobs.c.state.not_in(FINAL))
        if user:
            query = query.where(tables.jobs.c.user == user)
        with self._database.reading() as connection:
            return {int(job): int(seq) for job, seq in connection.execute(query)}

    def events(self, job: int, after: int = 0) -> list[AnyEvent]:
        """Return the events of a job, oldest first. after: only those behind so many"""
        table = tables.events
        query = select(table.c.body).where(table.c.job == job, table.c.seq > after).order_by(table.c.seq)
        with self._database.reading() as connection:
            return decode_events(connection.execute(query).scalars().all())

    def open_orders(self, job: int) -> list[int]:
        """Return the ops of a job's orders that are open, for audits."""
        query = select(tables.orders.c.op).where(tables.orders.c.job == job, tables.orders.c.is_open)
        with self._database.reading() as connection:
            return list(connection.execute(query.order_by(tables.orders.c.op)).scalars())

    def audit(self) -> list[int]:
        """Return the jobs whose rows are not the fold of their events, or whose orders are not those that are open."""
        wrong = []
        for job in self.jobs():
            is_fold = fold_all(self.events(job.id)) == job
            if not is_fold or self.open_orders(job.id) != sorted(one.op for one in job.open):
                wrong.append(job.id)
        return wrong

    def prune(self, before: float, keep: int) -> list[int]:
        """Forget jobs that ended before a time, and deleted ones, but not the newest `keep` of the others."""
        table = tables.jobs
        newest = select(table.c.id).where(table.c.state.in_(FINAL), ~table.c.is_deleted)
        newest = newest.order_by(table.c.id.desc()).limit(keep)
        old = table.c.state.in_(FINAL) & (table.c.is_deleted | ((table.c.ended < before) & table.c.id.not_in(newest)))
        with self._database.writing() as connection:
            gone = list(connection.execute(select(table.c.id).where(old).order_by(table.c.id)).scalars())
            for some in _portions(gone):
                for other in (tables.events, tables.orders, tables.notices):
                    connection.execute(sql_delete(other).where(other.c.job.in_(some)))
                connection.execute(sql_delete(table).where(table.c.id.in_(some)))
        return gone

    # ---- usage

    def usage(self, now: float) -> dict[str, float]:
        """Return the seconds of hosts that each user has used, aged to a time."""
        found: dict[str, float] = {}
        with self._database.reading() as connection:
            for row in connection.execute(select(tables.usage)):
                found[row.user] = found.get(row.user, 0.0) + aged(row.seconds, now - row.at)
        return found

    # ---- notices

    def notices(self) -> list[tuple[int, int, Notice]]:
        """Return the notices that are to be sent: number, tries so far, notice. Of each job only the oldest."""
        table = tables.notices
        oldest = select(func.min(table.c.id)).where(~table.c.is_done).group_by(table.c.job)
        query = select(table.c.id, table.c.tries, table.c.body).where(table.c.id.in_(oldest)).order_by(table.c.id)
        with self._database.reading() as connection:
            return [(row.id, row.tries, decode(row.body, Notice)) for row in connection.execute(query)]

    def note_notice(self, number: int, tries: int, *, is_done: bool, problem: str) -> None:
        """Note that a notice was sent, or tried."""
        table = tables.notices
        with self._database.writing() as connection:
            changed = update(table).where(table.c.id == number)
            connection.execute(changed.values(tries=tries, is_done=is_done, problem=problem))

    # ---- inside of a transaction

    def _record(self, connection: Connection, number: int, fact: AnyEvent, lease: Lease | None) -> Decided:
        if lease is not None:
            check(connection, lease)
        query = select(tables.jobs.c.body).where(tables.jobs.c.id == number).with_for_update()
        found = connection.execute(query).scalar()
        if found is None:
            raise MeshError(f"there is no job {number}", hint="mesh job list --all")
        before = decode_job(found)
        if not is_news(before, fact):
            return Decided(job=before)
        job, given = decide(before, fact)
        facts = written(before, fact, given)
        lines = [{"job": number, "seq": seq, "body": encode(one)} for seq, one in enumerate(facts, before.seq + 1)]
        assert before.seq + len(facts) == job.seq
        connection.execute(insert(tables.events), lines)
        connection.execute(update(tables.jobs).where(tables.jobs.c.id == number).values(_row(job)))
        self._write_orders(connection, before, job, lease.epoch if lease else 0)
        self._write_holds(connection, before, job)
        self._add_usage(connection, before, job, fact.time)
        note_turn(connection, before, job)
        for notice in notices(before, job, fact):
            body = encode(notice)
            values = {"job": number, "tries": 0, "is_done": False, "problem": "", "body": body}
            connection.execute(insert(tables.notices).values(values))
        machines = handed_now(before, job)
        keeper = self._keep(connection, job, machines, fact.time) if machines is not None else None
        return Decided(job=job, orders=given, events=tuple(facts), keeper=keeper)

    def _keep(self, connection: Connection, job: Job, machines: Generation, time: float) -> Job:
        """Write the job that keeps the machines of another one, and return it."""
        tpu, number = job.spec.machines.tpu, self._ids(connection, 1)
        assert tpu is not None
        facts = (
            Submitted(time=time, job=number, store=job.store, spec=keeper_spec(job.spec)),
            MachinesGiven(time=time, generation=passed_on(job.id, machines), by=job.id, until=time + tpu.keep),
        )
        keeper = fold_all(facts)
        lines = [{"job": number, "seq": seq, "body": encode(fact)} for seq, fact in enumerate(facts, 1)]
        connection.execute(insert(tables.jobs).values(_row(keeper)))
        connection.execute(insert(tables.events), lines)
        return keeper

    def _write_orders(self, connection: Connection, before: Job, job: Job, epoch: int) -> None:
        """Write orders that are new, and close those that are open no more."""
        table = tables.orders
        still = {one.op for one in job.open}
        for one in job.open:
            if one.op > before.ops:
                body = encode(one.order)
                kind = type(one.order).__name__
                values = {"job": job.id, "op": one.op, "kind": kind, "epoch": epoch, "is_open": True, "body": body}
                connection.execute(insert(table).values(values))
        if over := [one.op for one in before.open if one.op not in still]:
            these = (table.c.job == job.id) & table.c.op.in_(over)
            connection.execute(update(table).where(these).values(is_open=False))

    def _write_holds(self, connection: Connection, before: Job, job: Job) -> None:
        """Note which machines a job has. A machine that another job has is an error of the database."""
        table, had, has = tables.holds, _held(before), _held(job)
        if lost := sorted(had - has):
            mine = table.c.machine.in_(lost) & (table.c.job == job.id)
            connection.execute(sql_delete(table).where(mine))
        if new := sorted(has - had):
            connection.execute(insert(table), [{"machine": key, "job": job.id} for key in new])

    def _add_usage(self, connection: Connection, before: Job, job: Job, now: float) -> None:
        """Add to the usage of a job's user, where the job has given machines back."""
        had = before.generation
        if had is None or (job.generation is not None and job.generation.number == had.number):
            return
        seconds = (now - had.granted) * max(len(had.hosts), had.units)
        table, user, pool = tables.usage, job.spec.user, had.pool or job.spec.machines.cluster
        mine = (table.c.user == user) & (table.c.pool == pool)
        found = connection.execute(select(table).where(mine).with_for_update()).one_or_none()
        if found is None:
            connection.execute(insert(table).values(user=user, pool=pool, seconds=seconds, at=now))
            return
        total = aged(found.seconds, now - found.at) + seconds
        connection.execute(update(table).where(mine).values(seconds=total, at=now))

    def _ids(self, connection: Connection, count: int) -> int:
        """Reserve ids that no other job has or had; return the first one."""
        last = tables.meta.c.name == "last_id"
        found = int(connection.execute(select(tables.meta.c.value).where(last).with_for_update()).scalar_one())
        connection.execute(update(tables.meta).where(last).values(value=str(found + count)))
        return found + 1

    def _states(self, connection: Connection, numbers: Iterable[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for some in _portions(list(numbers)):
            query = select(tables.jobs.c.id, tables.jobs.c.state).where(tables.jobs.c.id.in_(some))
            found |= {int(job): str(state) for job, state in connection.execute(query)}
        return found


def _held(job: Job) -> set[str]:
    generation = job.generation
    return set(generation.keys) if generation is not None and not generation.maker else set()


def _row(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "seq": job.seq,
        "user": job.spec.user,
        "name": job.spec.name,
        "state": job.state.value,
        "submitted": job.submitted,
        "ended": job.ended,
        "is_deleted": job.is_deleted,
        "row": encode(row_of(job)),
        "body": encode(job),
    }


def _portions(numbers: Sequence[int], size: int = 500) -> Iterator[Sequence[int]]:
    for place in range(0, len(numbers), size):
        yield numbers[place : place + size]


def open_store(place: StorePlace) -> Store:
    """Open the store of a place; make it, or bring it to this version, where that is needed.

    Raises MeshError: it cannot be had, is of a newer version, or its file system cannot hold it.
    """
    return Store(open_database(place))
