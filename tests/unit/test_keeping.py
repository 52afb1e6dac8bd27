"""Machines that stay for the next job: who has them at each moment, and who gets them. No process, a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.app.machines import intent_of
from mesh.core.job import Format, JobSpec, NotifySpec
from mesh.core.module import Python
from mesh.core.notify import Moment
from mesh.hosts.tpu.machines import Machine, labels_of
from mesh.jobs.audit import Whose, audit, owned_by
from mesh.jobs.decide import decide, wake_at
from mesh.jobs.events import (
    AnyEvent,
    CostSeen,
    Fetched,
    Granted,
    HoldChanged,
    MachinesAbsent,
    MachinesGiven,
    MachinesLost,
    MachinesPending,
    MachinesReady,
    Made,
    NotAsked,
    RestartAsked,
    RunEnded,
    RunStarted,
    Submitted,
    Timer,
    Wished,
)
from mesh.jobs.keeping import usable_kinds
from mesh.jobs.orders import Delete
from mesh.jobs.place import StorePlace
from mesh.jobs.queue import Pools, ask_of, hold_of, next_jobs
from mesh.jobs.store import Store, open_store
from mesh.jobs.values import Job, Phase, State, Wanted, row_of
from tests.unit.test_audit import SPEC, no_price

KEEP_S = 600.0
TPU = SPEC.machines.tpu
assert TPU is not None
KEPT = replace(SPEC, machines=replace(SPEC.machines, tpu=replace(TPU, keep=KEEP_S)))
ENDED_AT = 200.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(StorePlace(directory=tmp_path / "jobs"))
    yield found
    assert found.audit() == []
    found.close()


class Owners:
    """The jobs of a store, and by the cloud's labels the owner of the machines that the first one made."""

    def __init__(self, store: Store, spec: JobSpec = KEPT) -> None:
        self.store = store
        self.first = store.submit([spec], 1.0)[0].id
        self.add(self.first, Granted(time=2.0))
        self.add(self.first, Made(time=3.0, op=self.op(self.first), generation=1))
        ready = MachinesReady(time=4.0, generation=1, hosts=("h0", "h1"), keys=("1/0", "1/1"))
        job = self.add(self.first, ready)
        self.name, self.zone = job.generations[0].name, job.generations[0].zone
        self.labels = labels_of(job.store, str(self.first), 1, "me")
        self.add(self.first, RunStarted(time=5.0, op=self.op(self.first), run=job.runs_ever[-1]))

    def add(self, number: int, event: AnyEvent) -> Job:
        return self.store.record(number, event).job

    def job(self, number: int) -> Job:
        found = self.store.job(number)
        assert found is not None
        return found

    def op(self, number: int) -> int:
        return self.job(number).open[-1].op

    def end(self, exit_code: int = 0, cause: str = "completed") -> Job:
        """End the attempt of the first job, and fetch its output."""
        run = self.job(self.first).runs[-1]
        op = max((one.op for one in self.job(self.first).open), default=0)
        self.add(self.first, RunEnded(time=ENDED_AT - 1, op=op, run=run, exit_code=exit_code, cause=cause))
        return self.add(self.first, Fetched(time=ENDED_AT, op=self.op(self.first), run=run))

    @property
    def keeper(self) -> Job:
        """The job that keeps the machines, or did last."""
        return next(job for job in reversed(self.store.jobs()) if job.kept_until)

    @property
    def owner(self) -> tuple[Whose, int | None]:
        """The owner that an audit finds."""
        tpu = self.job(self.first).spec.machines.tpu
        assert tpu is not None
        there = Machine(
            name=self.name, state="READY", labels=self.labels, accelerator="v6e-8", zone=self.zone, project=tpu.project
        )
        rows = owned_by(self.store.jobs())
        (found,) = audit(self.job(self.first).store, rows, {(tpu.project, self.zone): [there]}, no_price)
        return found.whose, found.job


def test_machines_of_a_job_that_ends_belong_to_another_one_until_their_time_is_over(store: Store) -> None:
    cloud = Owners(store)
    assert cloud.owner == (Whose.OWNED, cloud.first)
    ended, keeper = cloud.end(), cloud.keeper
    assert (ended.state, ended.exit_code, ended.generation) == (State.SUCCEEDED, 0, None)
    assert "its machines are kept for 10 min" in ended.reason
    assert (keeper.state, keeper.kept_from, keeper.kept_until) == (State.RUNNING, ended.id, ENDED_AT + KEEP_S)
    assert (row_of(keeper).machines, row_of(keeper).kept_from) == (("h0", "h1"), ended.id)
    assert cloud.owner == (Whose.OWNED, keeper.id)
    assert wake_at(keeper) == keeper.kept_until
    # Just before its time is over, and then.
    assert cloud.add(keeper.id, Timer(time=keeper.kept_until - 1)).state is State.RUNNING
    decided = store.record(keeper.id, Timer(time=keeper.kept_until))
    assert [type(one.order).__name__ for one in decided.orders] == ["Delete"]
    assert cloud.owner == (Whose.CONDEMNED, keeper.id)
    intent = intent_of(decided.job, decided.job.generations[0])
    assert (intent.name, intent.zone, intent.labels) == (cloud.name, cloud.zone, cloud.labels)
    gone = MachinesAbsent(time=keeper.kept_until + 9, op=decided.orders[0].op, generation=1, evidence="not listed")
    assert cloud.add(keeper.id, gone).state is State.SUCCEEDED
    assert cloud.owner == (Whose.ORPHAN, keeper.id)  # one that comes back


def test_the_next_job_of_the_same_kind_gets_them_and_gives_them_back_itself(store: Store) -> None:
    cloud = Owners(store)
    cloud.end()
    keeper = cloud.keeper
    second = store.submit([SPEC], ENDED_AT + 1)[0]
    turns = next_jobs(ENDED_AT + 2, [ask for ask in [ask_of(second)] if ask], [one for one in [hold_of(keeper)] if one])
    assert [(grant.job, grant.keeper) for grant in turns.grants] == [(second.id, keeper.id)]
    first, given = store.hand_over(keeper.id, second.id, ENDED_AT + 2)
    assert (first.job.state, first.job.exit_code, first.job.reason) == (
        State.SUCCEEDED,
        0,
        f"job {second.id} has its machines",
    )
    assert (given.job.state, [type(one.order).__name__ for one in given.orders]) == (State.PREPARING, ["Start"])
    assert cloud.owner == (Whose.OWNED, second.id)
    assert store.hand_over(keeper.id, second.id, ENDED_AT + 3) == []
    # It costs each of them for its own time.
    used = [
        (generation.billed, generation.unbilled) for job in store.jobs() for generation in cloud.job(job.id).generations
    ]
    assert used == [(4.0, ENDED_AT), (ENDED_AT, ENDED_AT + 2), (ENDED_AT + 2, 0.0)]
    # Its file has no keep:, so that they are deleted at its end, by their old name and labels.
    run = given.job.runs_ever[-1]
    cloud.add(second.id, RunStarted(time=300.0, op=given.orders[0].op, run=run))
    cloud.add(second.id, RunEnded(time=301.0, run=run, exit_code=0, cause="completed"))
    done = cloud.add(second.id, Fetched(time=302.0, op=cloud.op(second.id), run=run))
    assert (done.state, cloud.owner) == (State.ENDING, (Whose.CONDEMNED, second.id))
    assert intent_of(done, done.generations[-1]).labels == cloud.labels


def test_lost_machines_of_a_job_that_took_them_are_made_anew_under_its_own_name(store: Store) -> None:
    cloud = Owners(store)
    cloud.end()
    second = store.submit([SPEC], ENDED_AT + 1)[0]
    store.hand_over(cloud.keeper.id, second.id, ENDED_AT + 2)
    gone = cloud.add(second.id, MachinesAbsent(time=300.0, generation=1, evidence="not listed"))
    assert gone.state is State.QUEUED
    again = cloud.add(second.id, Granted(time=301.0)).generations[-1]
    assert (again.number, again.name, again.made_by) == (2, cloud.name.replace("-1-g1", f"-{second.id}-g2"), 0)


OTHERS = {
    "another user": replace(SPEC, user="you"),
    "another accelerator": replace(SPEC, machines=replace(SPEC.machines, tpu=replace(TPU, accelerator="v6e-16"))),
    "another image": replace(SPEC, machines=replace(SPEC.machines, tpu=replace(TPU, runtime="other"))),
    "another zone": replace(SPEC, machines=replace(SPEC.machines, tpu=replace(TPU, zones=("us-east5-b",)))),
    "other modules": replace(SPEC, modules=(("venv", Python(tool="venv")),)),
}


@pytest.mark.parametrize("spec", OTHERS.values(), ids=OTHERS)
def test_a_job_of_another_kind_gets_none(store: Store, spec: JobSpec) -> None:
    cloud = Owners(store)
    cloud.end()
    other = store.submit([spec], ENDED_AT + 1)[0]
    assert store.hand_over(cloud.keeper.id, other.id, ENDED_AT + 2) == []
    assert (cloud.owner, cloud.job(other.id).state) == ((Whose.OWNED, cloud.keeper.id), State.QUEUED)


def test_what_says_nothing_about_the_machines_does_not_count() -> None:
    plain = replace(TPU, prefix="run-9", description="x", valid_for=60.0, make_for=5.0, keep=9.0, repair_for=1.0)
    same = replace(SPEC, name="other", machines=replace(SPEC.machines, tpu=plain))
    kinds = [usable_kinds(Job(id=1, spec=spec)) for spec in (SPEC, same)]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) == len(TPU.zones)


def test_an_earlier_job_that_waits_for_the_quota_is_not_overtaken(store: Store) -> None:
    cloud = Owners(store)
    cloud.end()
    hold = hold_of(cloud.keeper)
    assert hold is not None
    large = replace(SPEC.machines, units=24, tpu=replace(TPU, slices=3))
    jobs = store.submit([replace(SPEC, machines=large), SPEC], ENDED_AT + 1)
    pool = cloud.keeper.generations[0].pool
    asks = [ask for ask in map(ask_of, jobs) if ask is not None]
    turns = next_jobs(ENDED_AT + 2, asks, [hold], Pools(limits={pool: 32.0}))
    assert turns.grants == ()


def test_a_full_quota_does_not_keep_the_next_job_from_kept_machines(store: Store) -> None:
    cloud = Owners(store)
    cloud.end()
    hold, second = hold_of(cloud.keeper), store.submit([SPEC, SPEC], ENDED_AT + 1)
    assert hold is not None
    limits = {TPU.pool(zone): float(hold.units if zone == cloud.zone else 0) for zone in TPU.zones}
    turns = next_jobs(ENDED_AT + 2, [ask for ask in map(ask_of, second) if ask], [hold], Pools(limits=limits))
    assert [(grant.job, grant.keeper) for grant in turns.grants] == [(second[0].id, cloud.keeper.id)]
    assert set(turns.waits) == {second[1].id}


def test_machines_of_a_job_that_fails_stay_too(store: Store) -> None:
    cloud = Owners(store)
    assert cloud.end(exit_code=3, cause="rank").state is State.FAILED
    assert cloud.owner == (Whose.OWNED, cloud.keeper.id)


def test_machines_of_a_job_that_a_person_stops_stay_if_that_is_asked_for(store: Store) -> None:
    cloud = Owners(store)
    cloud.add(cloud.first, Wished(time=100.0, wanted=Wanted.STOP, keeps_machines=True))
    assert cloud.end(exit_code=143, cause="signal").state is State.STOPPED
    assert cloud.owner == (Whose.OWNED, cloud.keeper.id)


def test_a_stop_that_kept_machines_counts_no_more_after_a_resume(store: Store) -> None:
    cloud = Owners(store)
    cloud.add(cloud.first, Wished(time=100.0, wanted=Wanted.STOP, keeps_machines=True))
    cloud.end(exit_code=143, cause="signal")
    cloud.add(cloud.first, Wished(time=300.0, wanted=Wanted.RUN))
    taken = store.hand_over(cloud.keeper.id, cloud.first, 301.0)[1].job
    run = taken.runs_ever[-1]
    cloud.add(cloud.first, RunStarted(time=302.0, op=cloud.op(cloud.first), run=run))
    cloud.add(cloud.first, RunEnded(time=303.0, run=run, exit_code=143, cause="signal"))
    done = cloud.add(cloud.first, Fetched(time=304.0, op=cloud.op(cloud.first), run=run))
    assert (done.state, cloud.owner) == (State.ENDING, (Whose.CONDEMNED, cloud.first))


DELETED: dict[str, tuple[JobSpec, tuple[AnyEvent, ...]]] = {
    "a job without keep:": (SPEC, ()),
    "a job that a person stops": (KEPT, (Wished(time=100.0, wanted=Wanted.STOP),)),
    "a job that is stopped again": (
        KEPT,
        (
            Wished(time=100.0, wanted=Wanted.STOP, keeps_machines=True),
            Wished(time=101.0, wanted=Wanted.STOP),
        ),
    ),
    "a job that is deleted, whatever is asked for": (
        KEPT,
        (Wished(time=100.0, wanted=Wanted.DELETE, keeps_machines=True),),
    ),
    "a job that a person deletes": (KEPT, (Wished(time=100.0, wanted=Wanted.DELETE),)),
    "a job whose machines are in doubt": (KEPT, (MachinesPending(time=100.0, generation=1, state="REPAIRING"),)),
    "a job over its cost limit": (replace(KEPT, cost_limit=1.0), (CostSeen(time=100.0, amount=2.0, is_reached=True),)),
    "machines of which some are lost": (KEPT, (MachinesLost(time=100.0, generation=1, evidence="PREEMPTED"),)),
}


@pytest.mark.parametrize(("spec", "events"), DELETED.values(), ids=DELETED)
def test_machines_that_are_deleted_at_once(store: Store, spec: JobSpec, events: tuple[AnyEvent, ...]) -> None:
    cloud = Owners(store, spec)
    for event in events:
        cloud.add(cloud.first, event)
    if not cloud.job(cloud.first).attempts[-1].ended:
        cloud.end()
    assert [job.id for job in store.jobs()] == [cloud.first]
    assert cloud.owner == (Whose.CONDEMNED, cloud.first)


def keeper() -> Job:
    """Return a job that keeps the machines of job 7."""
    made = Job(id=7, spec=KEPT, store="abc123")
    granted, _ = decide(made, Granted(time=2.0))
    ready, _ = decide(granted, MachinesReady(time=4.0, generation=1, hosts=("h0",), keys=("1/0",)))
    new, _ = decide(None, Submitted(time=9.0, job=8, store="abc123", spec=replace(KEPT, holds="pool v6e")))
    given = MachinesGiven(time=9.0, generation=replace(ready.generations[0], made_by=7), by=7, until=99.0)
    return decide(new, given)[0]


def test_a_keeper_whose_machines_are_lost_ends_and_none_are_made_anew() -> None:
    job, _ = decide(keeper(), MachinesAbsent(time=20.0, generation=1, evidence="not listed"))
    assert (job.state, job.exit_code) == (State.SUCCEEDED, 0)
    job, orders = decide(keeper(), MachinesLost(time=20.0, generation=1, evidence="PREEMPTED"))
    assert (job.state, [type(one.order).__name__ for one in orders]) == (State.ENDING, ["Delete"])


def test_an_api_that_is_silent_for_ten_minutes_lets_nothing_be_forgotten() -> None:
    job, orders = decide(keeper(), NotAsked(time=20.0, what="tpu", why="403", of_maker=True))
    assert (job.state, orders) == (State.RUNNING, ())
    job, orders = decide(job, Timer(time=job.kept_until))
    for minute in range(10):  # its time is over, and each deletion has no answer
        ((op, delete),) = [(one.op, one.order) for one in orders]
        assert isinstance(delete, Delete)
        job, _ = decide(job, NotAsked(time=200.0 + 60 * minute, op=op, what="tpu", why="403", of_maker=True))
        assert (job.state, job.generations[0].phase) == (State.ENDING, Phase.RELEASING)
        job, orders = decide(job, Timer(time=job.retry_at))
    job, _ = decide(job, MachinesAbsent(time=900.0, op=orders[0].op, generation=1, evidence="not listed"))
    assert job.state is State.SUCCEEDED


def test_a_person_stops_a_keeper_and_cannot_restart_it() -> None:
    for event in (
        RestartAsked(time=20.0),
        HoldChanged(time=20.0, is_on_hold=True),
        Wished(time=20.0, wanted=Wanted.RUN),
    ):
        job, orders = decide(keeper(), event)
        assert (job, orders) == (replace(keeper(), seq=3), ())
    job, orders = decide(keeper(), Wished(time=20.0, wanted=Wanted.STOP))
    assert (job.state, [type(one.order).__name__ for one in orders]) == (State.ENDING, ["Delete"])
    job, _ = decide(job, Wished(time=21.0, wanted=Wanted.RUN))
    assert not job.is_restarting
    job, _ = decide(job, MachinesAbsent(time=30.0, op=orders[0].op, generation=1, evidence="not listed"))
    assert (job.state, job.generations[0].phase) == (State.STOPPED, Phase.RELEASED)


def test_a_keeper_reports_late_deletions_as_the_job_would(store: Store) -> None:
    wanted = NotifySpec(on=(Moment.END, Moment.STUCK), url_env="URL", format=Format.JSON)
    cloud = Owners(store, replace(KEPT, notify=(wanted, NotifySpec(on=(Moment.FAILED,), url_env="URL"))))
    cloud.end()
    assert cloud.keeper.spec.notify == (replace(wanted, on=(Moment.STUCK,)),)
