"""The steward's picture of jobs: what is due, and what a turn looks at."""

from __future__ import annotations

import math
import random

from msgspec.structs import replace

from mesh.jobs.agenda import Agenda
from mesh.jobs.books import AGAIN_S, YOUNG_PART, Books
from mesh.jobs.orders import LookAtMachines, LookAtRun
from mesh.jobs.queue import Ask
from mesh.jobs.values import Job
from tests.job_histories import History, job_spec


def numbered(job: Job, number: int) -> Job:
    return replace(job, id=number)


def test_an_agenda_has_what_a_table_of_times_has() -> None:
    chance, agenda, table = random.Random(1), Agenda[int](), dict[int, float]()
    for now in range(3000):
        key, action = chance.randrange(40), chance.random()
        if action < 0.6:
            table[key] = now + chance.choice([0.0, 3.0, 50.0, math.inf])
            agenda.put(key, table[key])
            table = {one: time for one, time in table.items() if time < math.inf}
        elif action < 0.8:
            table.pop(key, None)
            agenda.drop(key)
        else:
            due = agenda.take_due(float(now))
            assert sorted(due) == sorted(one for one, time in table.items() if time <= now)
            assert [table[one] for one in due] == sorted(table[one] for one in due)
            table = {one: time for one, time in table.items() if time > now}
        assert agenda.next() == min(table.values(), default=math.inf)
    assert len(agenda._heap) <= 2 * len(table) + 64  # old entries do not pile up


def test_a_timer_that_changed_nothing_is_due_again_after_a_pause() -> None:
    books = Books()
    job = History(job_spec()).play("granted not-asked:start unknown").job
    assert job.retry_at
    books.put(job)
    assert books.due(job.retry_at - 1) == []
    assert books.due(job.retry_at) == [job.id]
    assert books.due(job.retry_at) == []
    assert books.due(job.retry_at + AGAIN_S) == [job.id]


def test_looks_come_at_their_pace_and_wait_for_a_busy_child() -> None:
    books = Books(look_s=10.0, urgent_look_s=1.0)
    job = History(job_spec()).play("granted started").job
    books.put(job)
    assert [one.id for one, _ in books.due_looks(100.0, LookAtRun, is_busy=False)] == [job.id]
    assert books.due_looks(105.0, LookAtRun, is_busy=False) == []
    books.put(job)  # a change does not bring the next look forward
    assert books.due_looks(105.0, LookAtRun, is_busy=False) == []
    assert books.next_event() == 100.0 + (100.0 - job.since) * YOUNG_PART
    assert books.due_looks(110.0, LookAtRun, is_busy=True) == []
    assert len(books.due_looks(110.0 + 2 * AGAIN_S, LookAtRun, is_busy=False)) == 1
    assert books.due_looks(1e9, LookAtMachines, is_busy=False) == []
    books.drop(job.id)
    assert books.next_event() == math.inf


def test_a_young_run_is_looked_at_more_often_as_it_may_be_a_short_one() -> None:
    books = Books(look_s=10.0, urgent_look_s=1.0)
    job = History(job_spec()).play("granted started").job
    books.put(job)
    now, pauses = job.since + 1.0, []
    for _ in range(40):
        assert books.due_looks(now, LookAtRun, is_busy=False)
        pauses.append(books.next_event() - now)
        now = books.next_event()
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 10.0


def test_the_queue_is_asked_only_after_changes_that_concern_it() -> None:
    books = Books()
    waiting = numbered(History(job_spec(after=50.0)).job, 1)
    running = numbered(History(job_spec()).play("granted started").job, 2)
    for job in (waiting, running):
        books.put(job)
    books.turns(10.0)
    assert not books.has_changed
    books.put(running)
    assert not books.has_changed
    assert not books.is_turn_due(49.0)
    assert books.next_event() <= 50.0
    assert books.is_turn_due(50.0)
    books.put(numbered(History(job_spec()).play("granted started ended fetched").job, 2))
    assert books.has_changed


class Counting(dict[int, Ask]):
    """Asks of jobs that count how often they are looked through."""

    count = 0

    def values(self):  # type: ignore[no-untyped-def]
        type(self).count += 1
        return super().values()


def test_a_turn_in_which_nothing_is_due_does_not_look_through_the_jobs() -> None:
    books = Books()
    for number in range(200):
        books.put(numbered(History(job_spec(after=1e6)).job, number))
    books.turns(10.0)
    books._asks = Counting(books._asks)
    for now in range(20, 40):
        assert not books.due(now)
        assert not books.is_turn_due(now)
        assert not books.has_changed
        assert books.next_event() == 1e6
    assert Counting.count == 0
