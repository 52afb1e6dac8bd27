"""Ten minutes without an answer of the API, by the decisions of the steward, with a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.app.machines import Evidence, Pace, intent_of, node_ids
from mesh.core.job import MachinesSpec
from mesh.core.tpu import TpuSpec
from mesh.hosts.tpu.machines import Machine, Seen
from mesh.hosts.tpu.nodes import TpuNode, Worker
from mesh.hosts.tpu.standing import How, standing
from mesh.jobs import events
from mesh.jobs.books import Books
from mesh.jobs.children import operation_of
from mesh.jobs.decide import is_news
from mesh.jobs.events import AnyAnswer
from mesh.jobs.interfaces import Request, event_of
from mesh.jobs.orders import AnyLook, AnyOrder, Delete, LookAtMachines, LookAtRun, Make
from mesh.jobs.values import Job, Phase, State
from tests.job_histories import History, job_spec
from tests.jobman_rules import INTERVAL_S, deletes

TPU = TpuSpec(accelerator="v4-8", runtime="r", zones=("us-central2-b",), project="lab")
SPEC = job_spec("failure", machines=MachinesSpec(maker="tpu", pool="p", units=4, tpu=TPU))
SILENCE_S = 600.0
TURN_S = 0.5
FAILED_CALL = Seen(complete=False, why="403")
HALF = Seen(complete=False, why="the list has holes")
Answer = Callable[[Job], Seen]


def cloud(job: Job, state: str = "READY", request: str = "ACTIVE") -> Seen:
    """Return a complete answer that lists the newest generation in a state."""
    generation = job.generations[-1]
    labels = intent_of(job, generation).labels
    workers = (Worker(internal="10.0.0.1"),) if state == "READY" else ()
    node = TpuNode(name=generation.name, state=state, workers=workers, id=(node_ids(generation.keys) or ("17",))[0])
    machines = (
        Machine(name=generation.name, state=request, is_request=True, labels=labels),
        Machine(name=generation.name, state=state, labels=labels, node=node),
    )
    return Seen(complete=True, machines=machines)


class Desk:
    """A steward without processes: its books, its decisions and its rules of evidence, and a clock."""

    def __init__(self, words: str) -> None:
        self.history = History(SPEC).play(words)
        self.books = Books()
        self.evidence = Evidence(Pace())
        self.now = self.history.now
        self.looks: Counter[str] = Counter()
        self.orders_before = len(self.history.orders)
        self.books.put(self.job)

    @property
    def job(self) -> Job:
        return self.history.job

    @property
    def orders(self) -> list[str]:
        """The orders to the API since the beginning."""
        return [one for one in self.history.orders[self.orders_before :] if one in ("make", "delete")]

    def let_pass(self, seconds: float, answer: Answer, *, hosts_answer: bool) -> None:
        """Let time pass while the API gives one kind of answer, and hosts answer or not."""
        until = self.now + seconds
        while self.now < until:
            self.now += TURN_S
            if self.books.due(self.now):
                self._record(events.Timer(time=self.now))
            for one in [one for one in self.job.open if isinstance(one.order, Make | Delete)]:
                if not answer(self.job).complete and self.job.retry_at <= self.now:
                    self._take(one.order, events.NotAsked(what="tpu", why="403"), one.op)
            for kind in (LookAtRun, LookAtMachines):
                for _, look in self.books.due_looks(self.now, kind, is_busy=False):
                    self.looks[operation_of(look)] += 1
                    self._take(look, self._fact(look, answer, hosts_answer=hosts_answer))

    def play(self, words: str) -> None:
        """Have events happen now."""
        self.history.now = self.now
        self.history.play(words)
        self.books.put(self.job)

    def _fact(self, look: AnyLook, answer: Answer, *, hosts_answer: bool) -> AnyAnswer | None:
        if isinstance(look, LookAtRun):
            return events.RunSeen(run=look.run) if hosts_answer else None
        seen = answer(self.job)
        if not seen.complete:
            return None
        generation = self.job.generations[-1]
        found = standing(intent_of(self.job, generation), seen, node_ids(generation.keys))
        if not self.evidence.is_proved(look.name, found, self.now) or found.how is How.PENDING:
            return events.MachinesPending(
                generation=look.generation, state=found.text, is_unlisted=found.how is How.ABSENT
            )
        match found.how:
            case How.READY:
                return events.MachinesReady(generation=look.generation, hosts=("h0",), keys=("17/0",))
            case How.LOST:
                return events.MachinesLost(generation=look.generation, evidence=found.text, is_ended=found.is_ended)
            case How.ABSENT:
                return events.MachinesAbsent(generation=look.generation, evidence=found.text)
        return None

    def _take(self, order: AnyLook | AnyOrder, answer: AnyAnswer | None, number: int = 0) -> None:
        request = Request(op=number, order=order, job=self.job, directory=Path("/"))
        self._record(event_of(request, answer, self.now))

    def _record(self, event: events.AnyEvent) -> None:
        if not isinstance(event, events.Answer) or event.op or is_news(self.job, event):
            self.history.happen(event)
        self.books.put(self.job)


BEGINNINGS = {
    "waiting in Google's queue": "granted made waiting",
    "being made": "granted made pending",
    "running": "granted made ready started",
    "ending": "granted made ready started ended fetched deleting",
    "recovering": "granted made ready started lost deleting",
}
SILENCES = {"403": FAILED_CALL, "half a list": HALF}


@pytest.mark.parametrize("hosts_answer", [True, False])
@pytest.mark.parametrize("silence", SILENCES.values(), ids=SILENCES)
@pytest.mark.parametrize("words", BEGINNINGS.values(), ids=BEGINNINGS)
def test_ten_minutes_of_silence_change_nothing(words: str, silence: Seen, hosts_answer: bool) -> None:
    desk = Desk(words)
    before, generation = desk.job.state, desk.job.generations[-1]
    desk.let_pass(SILENCE_S, lambda _: silence, hosts_answer=hosts_answer)
    (after,) = desk.job.generations
    assert desk.job.state is before
    assert replace(after, reports=0) == generation  # a report that they are not gone yet changes nothing else
    assert "make" not in desk.orders
    assert set(desk.orders) <= ({"delete"} if generation.phase is Phase.RELEASING else set())  # of condemned ones only
    assert desk.looks["look-machines"] >= SILENCE_S / 15.0 - 1
    assert desk.job.api_silent_since
    assert bool(desk.job.silent_since) == (before is State.RUNNING and not hosts_answer)
    written = [one for one in desk.history.events if isinstance(one, events.NotAsked) and not one.op]
    assert len(written) == 1 + bool(desk.job.silent_since)  # each silence once, however often they look


def test_all_goes_on_after_ten_minutes_of_silence() -> None:
    desk = Desk("granted made waiting")
    desk.let_pass(SILENCE_S, lambda _: FAILED_CALL, hosts_answer=False)
    desk.let_pass(10.0, cloud, hosts_answer=False)
    assert (desk.job.state, desk.history.orders) == (State.PREPARING, ["make", "start"])
    assert not desk.job.api_silent_since


def test_jobman_deletes_a_healthy_machine_in_the_same_silence() -> None:
    """That is the point: its call that fails means that the machine is not there."""
    answers = [FAILED_CALL] * round(SILENCE_S / INTERVAL_S)
    assert sum(map(deletes, answers)) == len(answers)
    desk = Desk("granted made ready started")
    assert not deletes(cloud(desk.job))
    desk.let_pass(SILENCE_S, lambda _: FAILED_CALL, hosts_answer=True)
    assert desk.orders == []


@pytest.mark.parametrize("begin", range(0, 15, 2))
def test_a_preemption_is_noticed_within_twenty_seconds(begin: int) -> None:
    desk = Desk("granted made ready started")
    desk.let_pass(30.0 + begin, cloud, hosts_answer=True)
    assert desk.job.state is State.RUNNING
    preempted = desk.now
    for _ in range(200):
        desk.let_pass(TURN_S, lambda job: cloud(job, "PREEMPTED"), hosts_answer=False)
        if desk.job.state is not State.RUNNING:
            break
    assert desk.now - preempted <= 20.0
    assert desk.orders == ["delete"]


def test_the_next_request_follows_the_first_answer_without_machines_that_were_preempted() -> None:
    desk = Desk("granted made waiting")
    desk.let_pass(10.0, cloud, hosts_answer=True)
    desk.play("started")
    desk.let_pass(20.0, lambda job: cloud(job, "PREEMPTED"), hosts_answer=False)
    desk.play("deleting")
    desk.let_pass(10.0, lambda job: cloud(job, "DELETING", "DELETING"), hosts_answer=False)
    assert desk.job.state is State.RECOVERING
    desk.let_pass(3.0, lambda _: Seen(complete=True), hosts_answer=False)
    assert desk.job.state is State.QUEUED
    assert [one.number for one in desk.job.left] == [1]


def test_the_next_request_follows_twenty_seconds_after_the_absence_begins() -> None:
    desk = Desk("granted made ready started lost deleting")
    gone = desk.now
    for _ in range(200):
        desk.let_pass(TURN_S, lambda _: Seen(complete=True), hosts_answer=False)
        if desk.job.state is State.QUEUED:
            break
    assert 20.0 <= desk.now - gone <= 24.0
