"""Turns of a worker: the tasks that a job runs one after another, and the steps that prepare its machines."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from mesh.core.tasks import TaskSpec, WorkerSpec


class How(Enum):
    """The end of a turn."""

    DONE = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # a lost host, a stop, a refused start: it counts as no failure


class Turn(Struct, frozen=True, kw_only=True):
    """A task in the hands of a worker. No other worker has this instance of it."""

    task: TaskSpec
    number: int  # of the task's instances: 1 ..
    since: float  # seconds since the epoch

    def has(self, part: Part | None) -> bool:
        """Return True for the command of this turn."""
        return part is not None and part.step < 0 and (part.name, part.number) == (self.task.id, self.number)


class TurnEnd(Struct, frozen=True, kw_only=True):
    """The end of a worker's last turn. Nothing of it runs any more."""

    task: str
    number: int
    how: How
    started: float  # seconds since the epoch
    ended: float
    exit_code: int = 0
    run: str = ""  # "": it was never started
    is_requeued: bool = False  # by a person: the task goes behind the others


class Part(Struct, frozen=True, kw_only=True):
    """The command of a worker's attempt: a step of the prefix, or a task."""

    name: str  # of the step, or the id of the task
    number: int = 0  # of the task's instances; 0: a step
    step: int = -1  # index of the step; -1: a task
    task: TaskSpec | None = None  # until its output is here


class Work(Struct, frozen=True, kw_only=True):
    """The state of a worker, beside that of its job."""

    turn: Turn | None = None
    end: TurnEnd | None = None  # of the last turn
    has_tasks: bool = False  # the task file has a task for it now
    is_returning: bool = False  # a person wants the turn ended, and another one begun
    idle_since: float = 0.0  # it has machines and no task since then; 0: not so
    problem: str = ""  # with the task file, of which the tasks before hold
    generation: int = 0  # of the machines on which `steps` have been run
    steps: int = 0  # of the prefix that have ended there
    done: int = 0  # turns that succeeded
    failed: int = 0
    interrupted: int = 0


def next_part(work: Work, worker: WorkerSpec, generation: int) -> Part | None:
    """Return what a worker runs next on a generation of machines; None if it waits for a task."""
    steps = work.steps if work.generation == generation else 0
    if steps < len(worker.prefix):
        return Part(name=worker.prefix[steps].name, step=steps)
    if work.turn is None:
        return None
    return Part(name=work.turn.task.id, number=work.turn.number, task=work.turn.task)
