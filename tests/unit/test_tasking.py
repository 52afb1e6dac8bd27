"""The rules of task files: 25 cases as a table, and a machine that plays workers at random."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from mesh.core.errors import UsageError
from mesh.core.tasks import TaskList, TaskSpec, WorkerSpec
from mesh.jobs import tasking
from mesh.jobs.tasking import TaskRecord, TaskState, record_of, statuses
from mesh.jobs.taskmirror import mirror_of, read_mirror
from mesh.jobs.turns import How, TurnEnd
from tests.full import times

FILE = Path("/x/tasks.yaml")
ANY = WorkerSpec(tasks=FILE)
LATE = 1e6  # after every pause


def task(name: str, **changes: object) -> TaskSpec:
    return replace(TaskSpec(id=name, run=name, accelerator="v4-8"), **changes)


class Queue:
    """A task file with its records, on which the words of a case are played."""

    def __init__(self, *tasks: TaskSpec) -> None:
        self.tasks = TaskList(path=FILE, tasks=tasks)
        self.records: dict[str, TaskRecord] = {}
        self.workers: dict[int, WorkerSpec] = {}

    def give(self, job: int) -> str:
        """Give a worker its next task."""
        found = tasking.next_task(self.tasks, self.records, self.workers.get(job, ANY), job, LATE)
        if found is None:
            return "-"
        self.records[found.id] = tasking.given(record_of(self.records, found.id), job, 1.0)
        return found.id

    def end(self, job: int, how: How, *, is_requeued: bool = False) -> None:
        """End the turn of a worker."""
        record = next(one for one in self.records.values() if any(mine.job == job for mine in one.running))
        number = next(one.number for one in record.running if one.job == job)
        end = TurnEnd(task=record.id, number=number, how=how, started=1.0, ended=2.0, is_requeued=is_requeued)
        last = max(one.behind for one in self.records.values())
        self.records[record.id] = tasking.ended(record, job, end, last)

    def play(self, word: str) -> str | None:
        """Play a word of a case: `1` gives worker 1 a task, `1:done` ends its turn, `reset:a` changes a task."""
        first, _, rest = word.partition(":")
        if first.isdecimal() and not rest:
            return self.give(int(first))
        if first.isdecimal():
            ends = {"done": How.DONE, "failed": How.FAILED, "lost": How.INTERRUPTED, "requeue": How.INTERRUPTED}
            self.end(int(first), ends[rest], is_requeued=rest == "requeue")
        elif first == "remove":
            self.tasks = replace(self.tasks, tasks=tuple(one for one in self.tasks.tasks if one.id != rest))
        elif first == "add":
            self.tasks = replace(self.tasks, tasks=(*self.tasks.tasks, task(rest)))
        elif first == "state":
            return next(one.state.value for one in statuses(self.tasks, self.records) if one.record.id == rest)
        else:
            changes = {"reset": tasking.reset, "done": tasking.marked_done, "first": tasking.prioritized}
            for name in tasking.named(self.tasks, self.records, rest):
                self.records[name] = changes[first](record_of(self.records, name))
        return None


A, B, C = task("a"), task("b"), task("c")
AFTER = task("b", depends_on=("a",))
# Words, and what they answer: tasks that workers get, or states.
CASES = {
    "1 the order of the file": ((A, B, C), "1 2 3 4", "a b c -"),
    "2 the greatest priority first": ((A, task("b", priority=5), C), "1 2 3", "b a c"),
    "3 prioritized once, before any priority": (
        (task("a", priority=9), B),
        "first:b 1 1:failed 1 1:done 1",
        "b a b",
    ),
    "4 one instance at a time": ((A,), "1 2 state:a", "a - running"),
    "5 as many instances as max_jobs": ((task("a", max_jobs=2), B), "1 2 3 4", "a a b -"),
    "6 no worker has two instances of a task": ((task("a", max_jobs=2),), "1 1", "a -"),
    "7 done is not run again": ((A,), "1 1:done 1 state:a", "a - done"),
    "8 a failure is tried again": ((A,), "1 1:failed state:a 1 1:done state:a", "a pending a done"),
    "9 the third failure is final": ((A,), "1 1:failed 1 1:failed 1 1:failed 1 state:a", "a a a - failed"),
    "10 max_retries of the task": ((task("a", max_retries=1),), "1 1:failed 1 state:a", "a - failed"),
    "11 max_retries 0 is one try": ((task("a", max_retries=0),), "1 1:failed state:a", "a failed"),
    "12 interruptions never count": (
        (task("a", max_retries=1),),
        "1 1:lost 1 1:lost 1 1:lost 1 1:done state:a",
        "a a a a done",
    ),
    "13 a success resets the failures": (
        (task("a", max_retries=2, max_jobs=2),),
        "1 1:failed 1 1:done reset:a 1 1:failed state:a",
        "a a a pending",
    ),
    "14 a dependency is waited for": ((AFTER, A), "1 2 1:done 2", "a - b"),
    "15 a failed dependency blocks": (
        (task("a", max_retries=1), AFTER, task("c", depends_on=("b",))),
        "1 1:failed 2 state:b state:c",
        "a - blocked blocked",
    ),
    "16 a reset of the dependency unblocks": (
        (task("a", max_retries=1), AFTER),
        "1 1:failed state:b reset:a state:b 1 1:done 2",
        "a blocked pending a b",
    ),
    "17 reset by pattern": (
        (task("x-1"), task("x-2"), task("y")),
        "1 1:done 1 1:done 1 1:done reset:x-* 1 2 3",
        "x-1 x-2 y x-1 x-2 -",
    ),
    "18 reset of all": ((A, B), "1 1:done 1 1:done 1 reset:* 1 2", "a b - a b"),
    "19 a reset ends nothing": ((A,), "1 reset:a 2 state:a 1:done state:a", "a - running done"),
    "20 done by a person": ((A, AFTER), "done:a state:a 1", "done b"),
    "21 removed while it runs": ((A, B), "1 remove:a state:a 2 1:done 3", "a running b -"),
    "22 added while others run": ((A,), "1 2 add:z 2", "a - z"),
    "23 a requeued task goes behind the others": ((A, B, C), "1 1:requeue 1 2 3", "a b c a"),
    "24 a worker of the accelerator alone": ((task("a", accelerator="v6e-8"), B), "81 82", "a -"),
    "25 zones: its own, none, and no other": (
        (task("a", zone="far"), task("b", zone="near"), C),
        "91 92 93",
        "b c -",
    ),
}


@pytest.mark.parametrize(("tasks", "words", "expected"), CASES.values(), ids=CASES)
def test_the_rules_of_jobmans_task_files(tasks: tuple[TaskSpec, ...], words: str, expected: str) -> None:
    queue = Queue(*tasks)
    queue.workers = dict.fromkeys((81, 82), WorkerSpec(tasks=FILE, accelerator="v6e-8"))
    queue.workers |= dict.fromkeys((91, 92, 93), WorkerSpec(tasks=FILE, zone="near"))
    answers = [queue.play(word) for word in words.split()]
    assert " ".join(answer for answer in answers if answer is not None) == expected


def test_a_failed_task_is_given_again_after_a_pause_that_grows_until_a_person_wants_it_next() -> None:
    queue, pauses = Queue(replace(A, max_retries=9, backoff=(10.0, 60.0)), B), []
    for _ in range(5):
        queue.play(["1", "1:failed"][0])
        queue.play("1:failed")
        at = tasking.next_try_at(queue.tasks.tasks[0], queue.records["a"])
        pauses.append(at - 2.0)  # each turn ends at 2.0
        assert tasking.next_task(queue.tasks, queue.records, ANY, 1, at - 0.1) == B  # others do not wait for it
        assert tasking.next_task(queue.tasks, queue.records, ANY, 1, at) == queue.tasks.tasks[0]
        assert tasking.shared_out(queue.tasks, queue.records, [(1, ANY), (2, ANY)], at - 0.1) == {1: "b"}
    limits = zip(pauses, (10.0, 20.0, 40.0, 60.0, 60.0), strict=True)
    assert all(0.75 * usual <= pause <= 1.25 * usual for pause, usual in limits)
    why = statuses(queue.tasks, queue.records, 3.0)[0].why
    assert why.startswith("failure 5 of 9, again at ")
    assert statuses(queue.tasks, queue.records, LATE)[0].why == "failure 5 of 9"
    assert not tasking.is_over(queue.tasks, queue.records, ANY)
    queue.play("first:a")
    assert tasking.next_task(queue.tasks, queue.records, ANY, 1, 2.0) == queue.tasks.tasks[0]


def test_a_reset_ends_the_pause_and_interruptions_begin_none() -> None:
    queue = Queue(A)
    for word in ("1", "1:lost"):
        queue.play(word)
    assert tasking.next_try_at(A, queue.records["a"]) == 0.0
    for word in ("1", "1:failed"):
        queue.play(word)
    assert tasking.next_try_at(A, queue.records["a"]) > 2.0
    queue.play("reset:a")
    assert tasking.next_try_at(A, queue.records["a"]) == 0.0


def test_there_are_twenty_five() -> None:
    assert len(CASES) == 25


def test_workers_that_wait_share_out_what_there_is() -> None:
    queue = Queue(task("a", max_jobs=2), task("b", accelerator="v6e-8"))
    workers = [(1, ANY), (2, ANY), (3, ANY), (4, ANY), (5, WorkerSpec(tasks=FILE, accelerator="v6e-8"))]
    assert tasking.shared_out(queue.tasks, queue.records, workers, LATE) == {1: "a", 2: "a", 3: "b"}


def test_a_worker_has_nothing_left_once_its_tasks_are_final() -> None:
    queue = Queue(task("a", max_retries=1), AFTER, task("c", accelerator="v6e-8"))
    mine = WorkerSpec(tasks=FILE, accelerator="v4-8")
    assert not tasking.is_over(queue.tasks, queue.records, mine)
    queue.play("1")
    queue.play("1:failed")
    assert tasking.is_over(queue.tasks, queue.records, mine)
    assert tasking.failed_count(queue.tasks, queue.records, mine) == 2


def test_what_was_removed_and_runs_is_shown_last() -> None:
    queue = Queue(A, B)
    queue.play("1")
    queue.play("remove:a")
    shown = statuses(queue.tasks, queue.records)
    assert [(one.record.id, one.state, one.task is None) for one in shown] == [
        ("b", TaskState.PENDING, False),
        ("a", TaskState.RUNNING, True),
    ]


WORKERS = strategies.integers(1, 4)
NAMES = strategies.sampled_from("abcde")


class Workers(RuleBasedStateMachine):
    """Workers that share a file whose tasks come, go and are changed meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(A, replace(AFTER, max_jobs=2), task("c", max_retries=1), task("d", depends_on=("b", "c")))
        self.has: dict[int, str] = {}

    def record(self, name: str) -> TaskRecord:
        return record_of(self.queue.records, name)

    @rule(job=WORKERS)
    def take(self, job: int) -> None:
        if job in self.has:
            return
        before = dict(self.queue.records)
        name = self.queue.give(job)
        if name == "-":
            return
        given = next(one for one in self.queue.tasks.tasks if one.id == name)
        record = record_of(before, name)
        assert not record.is_done
        assert record.failures < given.failures_max
        assert len(record.running) < given.max_jobs
        assert all(record_of(before, other).is_done for other in given.depends_on)
        assert self.record(name).runs == record.runs + 1
        self.has[job] = name

    @precondition(lambda self: self.has)
    @rule(job=WORKERS, how=strategies.sampled_from(How), is_requeued=strategies.booleans())
    def end(self, job: int, how: How, is_requeued: bool) -> None:
        if job not in self.has:
            return
        name = self.has.pop(job)
        before = self.record(name)
        self.queue.end(job, how, is_requeued=is_requeued and how is How.INTERRUPTED)
        after = self.record(name)
        expected = {How.DONE: 0, How.FAILED: before.failures + 1, How.INTERRUPTED: before.failures}[how]
        assert after.failures == expected
        assert after.is_done == (before.is_done or how is How.DONE)

    @rule(name=NAMES, what=strategies.sampled_from(["reset", "done", "first", "remove"]))
    def change(self, name: str, what: str) -> None:
        running = self.record(name).running
        self.queue.play(f"{what}:{name}")
        assert self.record(name).running == running

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        if all(one.id != name for one in self.queue.tasks.tasks):
            self.queue.play(f"add:{name}")

    @invariant()
    def each_turn_is_in_one_record(self) -> None:
        running = {one.job: name for name, record in self.queue.records.items() for one in record.running}
        assert running == self.has
        assert sum(len(record.running) for record in self.queue.records.values()) == len(self.has)

    @invariant()
    def every_task_has_one_state(self) -> None:
        shown = [one.record.id for one in statuses(self.queue.tasks, self.queue.records)]
        assert len(shown) == len(set(shown))
        assert set(self.has.values()) <= set(shown)


Workers.TestCase.settings = settings(max_examples=times(40, full=60), stateful_step_count=40, deadline=None)
TestWorkers = Workers.TestCase


@pytest.mark.parametrize("text", ["tasks: [", "- a", "tasks: {a: 2020-99-99}", "tasks: !!timestamp x", "[" * 5000])
def test_a_mirror_that_cannot_be_read_is_a_problem_of_its_file(text: str, tmp_path: Path) -> None:
    """Any other error would end each turn of the steward, also for jobs that have no task file."""
    file = tmp_path / "tasks.yaml"
    mirror_of(file).write_text(text)
    with pytest.raises(UsageError, match=r"tasks_state\.yaml"):
        read_mirror(file)
