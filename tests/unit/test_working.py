"""Workers in the fold: their turns, prefixes, idle times and ends. Histories in words, without a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from mesh.core.tasks import PrefixStep, TaskList, TaskSpec, WorkerSpec
from mesh.jobs import events
from mesh.jobs.decide import decide, is_news, looks, wake_at
from mesh.jobs.events import AnyEvent
from mesh.jobs.fold import fold_all
from mesh.jobs.orders import Start
from mesh.jobs.place import StorePlace
from mesh.jobs.queue import ask_of
from mesh.jobs.store import Store, open_store
from mesh.jobs.tasktables import key_of
from mesh.jobs.turns import How, Turn
from mesh.jobs.values import Job, Stage, State, row_of
from mesh.jobs.working import PREFIX_FAILED, as_worker, is_ready, wants_task
from tests.full import times
from tests.job_histories import EVENTS, History, job_spec

FILE = Path("/x/tasks.yaml")
WORKER = WorkerSpec(tasks=FILE, idle=100.0)
STEPS = (PrefixStep(name="one", run="1"), PrefixStep(name="two", run="2", required=True))
TASK = TaskSpec(id="a", run="a", accelerator="v4-8")


def spec(worker: WorkerSpec = WORKER, **changes: object):  # type: ignore[no-untyped-def]
    return job_spec(worker=worker, **changes)


def _task(job: Job, name: str = "a") -> AnyEvent:
    return events.TaskGiven(turn=Turn(task=replace(TASK, id=name), number=job.attempt + 1, since=1.0))


MORE: dict[str, Callable[..., AnyEvent]] = {
    "task": _task,
    "seen": lambda job, what="some": events.TasksSeen(
        has_tasks=what == "some", is_over=what != "some", failed=int(what == "bad")
    ),
    "alive": lambda job: EVENTS["seen"](job),
    "return": lambda job, name="a": events.TaskReturnAsked(task=name, by="me"),
}


class Worker(History):
    """A worker that events happen to."""

    def event(self, word: str) -> AnyEvent:
        name, *arguments = word.split(":")
        made = MORE.get(name, EVENTS.get(name))
        assert made is not None, word
        return replace(made(self.job, *arguments), time=self.now)


READY = "seen granted"
# The worker, its history, state, operations, and ends of turns: done, failed, interrupted.
HISTORIES: dict[str, tuple[object, str, str, str, tuple[int, int, int]]] = {
    "a worker waits for a task before it asks for machines": (spec(), "", "queued", "", (0, 0, 0)),
    "without a task it starts nothing": (spec(), READY, "preparing", "", (0, 0, 0)),
    "a restart by force runs the steps again on machines that are kept": (
        spec(replace(WORKER, prefix=STEPS), made=True),
        "seen granted made ready started ended fetched started ended fetched restart-forced",
        "preparing",
        "make start fetch start fetch start",
        (0, 0, 0),
    ),
    "any other restart does not": (
        spec(replace(WORKER, prefix=STEPS), made=True),
        "seen granted made ready started ended fetched started ended fetched restart",
        "preparing",
        "make start fetch start fetch",
        (0, 0, 0),
    ),
    "a task is started": (spec(), f"{READY} task", "preparing", "start", (0, 0, 0)),
    "a task that is done is fetched, and the worker goes on": (
        spec(),
        f"{READY} task started ended fetched",
        "preparing",
        "start fetch",
        (1, 0, 0),
    ),
    "a failure is one of the task, and not of the worker": (
        spec(),
        f"{READY} task started ended:3 fetched task:b started",
        "running",
        "start fetch start",
        (0, 1, 0),
    ),
    "a timeout is a failure of the task": (
        spec(),
        f"{READY} task started ended:124",
        "preparing",
        "start fetch",
        (0, 1, 0),
    ),
    "no task is taken while output is being fetched": (
        spec(),
        f"{READY} task started ended task:b",
        "preparing",
        "start fetch",
        (1, 0, 0),
    ),
    "a lost host interrupts the task": (spec(), f"{READY} task started ended:76", "queued", "start", (0, 0, 1)),
    "a run that no host has any more is lost": (spec(), f"{READY} task started unknown", "queued", "start", (0, 0, 1)),
    "a start without an answer keeps its task until the hosts have answered": (
        spec(),
        f"{READY} task not-asked:start",
        "preparing",
        "start",
        (0, 0, 0),
    ),
    "a task that never started is started again": (
        spec(),
        f"{READY} task not-asked:start unknown @100 timer",
        "preparing",
        "start start",
        (0, 0, 0),
    ),
    "a stop interrupts the task once it is gone": (
        spec(),
        f"{READY} task started stop ended:143 fetched",
        "stopped 143",
        "start stop fetch",
        (0, 0, 1),
    ),
    "until then the task is the worker's": (spec(), f"{READY} task started stop", "ending", "start stop", (0, 0, 0)),
    "a task that succeeds while its worker is stopped is done": (
        spec(),
        f"{READY} task started stop ended:0 fetched",
        "stopped 143",
        "start stop fetch",
        (1, 0, 0),
    ),
    "a run that a person stops ends the worker": (
        spec(),
        f"{READY} task started ended:143 fetched",
        "stopped 143",
        "start fetch",
        (0, 0, 1),
    ),
    "busy hosts give the task back": (spec(), f"{READY} task refused:busy", "queued", "start", (0, 0, 1)),
    "an earlier task that still holds the hosts is ended, and this one goes back": (
        spec(),
        f"{READY} task started ended fetched task:b refused:busy:first",
        "preparing",
        "start fetch start stop",
        (1, 0, 0),
    ),
    "its end is not that of the task that waited for it": (
        spec(),
        f"{READY} task started ended fetched task:b refused:busy:first ended",
        "preparing",
        "start fetch start stop fetch",
        (1, 0, 1),
    ),
    "what needs a person gives the task back": (spec(), f"{READY} task refused:person", "held", "start", (0, 0, 1)),
    "a requeue ends the task first": (spec(), f"{READY} task started return", "running", "start stop", (0, 0, 0)),
    "and then the worker takes another one": (
        spec(),
        f"{READY} task started return ended:143 fetched task:b started",
        "running",
        "start stop fetch start",
        (0, 0, 1),
    ),
    "a requeue of another task changes nothing": (
        spec(),
        f"{READY} task started return:z",
        "running",
        "start",
        (0, 0, 0),
    ),
    "a restart gives the task back": (
        spec(),
        f"{READY} task started restart ended:143 fetched",
        "queued",
        "start stop fetch",
        (0, 0, 1),
    ),
    "steps run before any task, also where one fails that is not required": (
        spec(replace(WORKER, prefix=STEPS)),
        f"{READY} task started ended:3 fetched started ended fetched task",
        "preparing",
        "start fetch start fetch start",
        (0, 0, 0),
    ),
    "a required step that fails holds the worker": (
        spec(replace(WORKER, prefix=STEPS)),
        f"{READY} started ended fetched started ended:1 fetched",
        "held",
        "start fetch start fetch",
        (0, 0, 0),
    ),
    "steps run again on other machines": (
        spec(replace(WORKER, prefix=STEPS[:1])),
        f"{READY} started ended fetched task started ended:76 granted started",
        "running",
        "start fetch start start",
        (0, 0, 1),
    ),
    "a lost step is no failure of it": (
        spec(replace(WORKER, prefix=STEPS)),
        f"{READY} started ended:76",
        "queued",
        "start",
        (0, 0, 0),
    ),
    "idle machines are given back": (spec(), f"{READY} @300 timer", "queued", "", (0, 0, 0)),
    "machines that are made are deleted when idle": (
        spec(made=True),
        "seen granted made ready @300 timer absent",
        "queued",
        "make delete",
        (0, 0, 0),
    ),
    "a worker with a task is not idle": (spec(), f"{READY} task started @900 timer", "running", "start", (0, 0, 0)),
    "a held worker gives its machines back after its task": (
        spec(),
        f"{READY} task started hold ended fetched",
        "held",
        "start fetch",
        (1, 0, 0),
    ),
    "a worker ends once no task is left": (
        spec(replace(WORKER, ends=True)),
        f"{READY} task started ended fetched seen:over",
        "succeeded 0",
        "start fetch",
        (1, 0, 0),
    ),
    "with a status where one has failed": (spec(replace(WORKER, ends=True)), "seen:bad", "failed 1", "", (0, 0, 0)),
    "others wait for the next task": (spec(), f"{READY} seen:over", "preparing", "", (0, 0, 0)),
}


@pytest.mark.parametrize(("job", "words", "state", "operations", "ends"), HISTORIES.values(), ids=HISTORIES)
def test_what_happens_to_a_worker(
    job: object, words: str, state: str, operations: str, ends: tuple[int, int, int]
) -> None:
    worker = Worker(job).play(words)  # type: ignore[arg-type]
    assert (worker.told, " ".join(worker.orders)) == (state, operations)
    work = worker.job.work
    assert work is not None
    assert (work.done, work.failed, work.interrupted) == ends
    assert fold_all(worker.events) == worker.job


def test_only_a_worker_with_a_task_asks_for_machines() -> None:
    waiting = Worker(spec())
    assert ask_of(waiting.job) is None
    assert waiting.job.reason == "waits for a task of tasks.yaml"
    assert ask_of(waiting.play("seen").job) is not None
    assert ask_of(waiting.play("seen:none").job) is None


def test_a_required_step_is_named() -> None:
    worker = Worker(spec(replace(WORKER, prefix=STEPS))).play(f"{READY} started ended fetched started ended:4 fetched")
    assert worker.job.reason == f"{PREFIX_FAILED}: two: exit 4"


def test_the_row_of_a_worker_has_its_task() -> None:
    assert row_of(Worker(spec()).play(f"{READY} task started").job).task == "a"


def test_an_idle_worker_wakes_at_the_end_of_its_idle_time() -> None:
    worker = Worker(spec()).play(READY)
    assert worker.job.work is not None
    assert wake_at(worker.job) == worker.job.work.idle_since + WORKER.idle


def test_the_record_of_a_worker_does_not_grow_without_limit() -> None:
    worker = Worker(spec()).play(READY)
    for _ in range(300):
        worker.play("task started ended fetched")
    for _ in range(150):
        worker.play("task started ended:76 granted")
    assert len(worker.job.attempts) == 100
    assert len(worker.job.generations) <= 101
    assert worker.job.attempt == 450
    assert all(one.part is None or one.part.task is None for one in worker.job.attempts if one.is_fetched)
    runs = [
        event.order.run
        for event in worker.events
        if isinstance(event, events.Intended) and isinstance(event.order, Start)
    ]
    assert len(set(runs)) == 450


WORDS = [f"ended:{code}" for code in (0, 3, 76, 124, 143)]
WORDS += [
    "granted",
    "started",
    "alive",
    "seen",
    "unknown",
    "attached",
    "fetched",
    "not-asked:start",
    "not-asked:stop",
    "not-asked:fetch",
]
WORDS += [
    "refused:busy",
    "refused:person",
    "refused:unreachable",
    "refused:busy:own",
    "stop",
    "resume",
    "restart",
    "hold",
    "release",
]
WORDS += ["timer", "taken-over", "return", "seen:none"]


class Turns(RuleBasedStateMachine):
    """A worker to which anything happens, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(spec(replace(WORKER, prefix=STEPS[1:]), on="failure"))
        self.given = 0

    @rule(word=st.sampled_from(WORDS), delay=st.sampled_from([0.5, 5.0, 120.0, 900.0]))
    def happen(self, word: str, delay: float) -> None:
        self.worker.now += delay
        self.worker.play(word)

    @rule()
    def take(self) -> None:
        if wants_task(self.worker.job, self.worker.now):
            self.worker.play(f"task:t{self.given}")
            self.given += 1

    @invariant()
    def a_turn_is_open_while_anything_of_it_may_run(self) -> None:
        job = self.worker.job
        work = job.work
        assert work is not None
        attempt = job.current
        if attempt is not None and attempt.part is not None and attempt.part.step < 0:
            assert work.turn is not None
            assert work.turn.task.id == attempt.part.name
        if work.turn is not None and attempt is None:
            assert job.state is State.PREPARING

    @invariant()
    def each_turn_ends_once(self) -> None:
        work = self.worker.job.work
        assert work is not None
        assert work.done + work.failed + work.interrupted + (work.turn is not None) == self.given

    @invariant()
    def one_attempt_is_open(self) -> None:
        job = self.worker.job
        assert sum(one.stage not in (Stage.ENDED, Stage.NEVER) for one in job.attempts) <= 1
        if job.state.is_final:
            assert job.work is not None
            assert job.work.turn is None


Turns.TestCase.settings = settings(
    max_examples=times(40, full=80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTurns = Turns.TestCase


# ---- the store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = open_store(StorePlace(directory=tmp_path / "jobs"))
    yield found
    found.close()


def ready_worker(store: Store, name: str) -> Job:
    made = store.submit([spec(name=name)], 1.0)[0]
    store.record(made.id, events.TasksSeen(time=2.0, has_tasks=True))
    store.record(made.id, events.Granted(time=3.0, hosts=(name,), keys=(name,)))
    found = store.job(made.id)
    assert found is not None
    assert is_ready(found)
    return found


def test_a_turn_and_its_record_are_one_transaction(store: Store) -> None:
    first, second = ready_worker(store, "h0"), ready_worker(store, "h1")
    key = key_of(first.spec)
    store.tasks.load(key, "1", TaskList(path=FILE, tasks=(TASK,)))
    given = store.give_task(first.id, 4.0)
    assert given is not None
    assert store.give_task(first.id, 4.0) is None
    assert store.give_task(second.id, 4.0) is None  # max_jobs 1
    state = store.tasks.state(key)
    assert state is not None
    assert [(one.job, one.number) for one in state.records["a"].running] == [(first.id, 1)]
    run = given.job.attempts[-1].run
    store.record(first.id, events.RunStarted(time=5.0, op=1, run=run))
    store.record(first.id, events.RunEnded(time=6.0, run=run, exit_code=3, cause="rank"))
    state = store.tasks.state(key)
    assert state is not None
    record = state.records["a"]
    assert (record.running, record.failures, record.history[-1].how) == ((), 1, How.FAILED)
    assert record.history[-1].run == run
    assert store.give_task(second.id, 7.0) is None  # a pause follows a failure
    assert store.give_task(second.id, 99.0) is not None
    assert store.audit() == []


def test_a_worker_whose_zone_is_open_takes_tasks_of_the_zone_that_it_got() -> None:
    worker = Worker(spec()).play(READY)
    far = tuple(replace(one, zone="far") for one in worker.job.generations)
    found = as_worker(replace(worker.job, generations=far))
    assert found is not None
    assert (found.zone, as_worker(worker.job)) == ("far", WORKER)
    own = replace(worker.job, generations=far, spec=spec(replace(WORKER, zone="near")))
    assert as_worker(own) == replace(WORKER, zone="near")


def test_a_store_of_the_version_before_gets_its_tables(tmp_path: Path) -> None:
    import sqlite3

    place = StorePlace(directory=tmp_path)
    open_store(place).close()
    with sqlite3.connect(place.file) as connection:
        connection.executescript(
            "DROP TABLE tasks; DROP TABLE task_files; UPDATE meta SET value='1' WHERE name='version'"
        )
    connection.close()
    store = open_store(place)
    assert store.tasks.state("/x") is None
    store.tasks.load("/x", "1", TaskList(path=FILE, tasks=(TASK,)))
    store.close()


def test_a_look_and_a_repeated_word_are_no_news() -> None:
    worker = Worker(spec()).play(f"{READY} task started")
    assert not is_news(worker.job, events.TaskReturnAsked(task="z"))
    assert is_news(worker.job, events.TaskReturnAsked(task="a"))
    assert len(looks(worker.job)) == 1
    job, _ = decide(worker.job, events.TaskReturnAsked(time=99.0, task="a"))
    assert looks(job) == ()  # the answer to the stop shows it


def test_a_step_is_started_once_an_earlier_task_on_its_hosts_has_been_ended() -> None:
    history = Worker(spec(replace(WORKER, prefix=STEPS[:1])))
    history.play("seen granted started ended fetched task started")
    task = history.job.attempts[-1].run
    history.play(f"ended:76 seen granted refused:busy:{task}")  # a lost host, on which the task goes on
    assert history.orders[-1] == "stop"
    history.play("ended:143")
    assert history.orders[-1] == "start"
    assert history.job.work is not None
    assert not history.job.work.is_returning  # else the steward stops every start of it
    assert history.play("started").job.state is State.RUNNING


def test_a_task_that_is_given_back_has_not_failed() -> None:
    history = Worker(spec()).play(f"{READY} task started return ended:143")
    assert history.job.reason == "task a was given back"
    assert Worker(spec()).play(f"{READY} task started ended:3").job.reason == "task a failed: exit 3"
