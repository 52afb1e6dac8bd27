"""The fold of a worker: a job whose attempts are steps of its prefix and tasks, one after another on its machines.

A turn is open from its claim until nothing of it runs any more. Only then the task is free for another worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from mesh.core.outcome import Cause
from mesh.core.tasks import WorkerSpec
from mesh.jobs.change import HELD_BY_PERSON, end, fetch_until, hold, move, recover, settle, to_fetch
from mesh.jobs.cleaning import setup_due
from mesh.jobs.events import AnyEvent, RunEnded, TaskGiven, TaskReturnAsked, TasksSeen
from mesh.jobs.orders import Fetch, Prepare, Start, Stop
from mesh.jobs.turns import How, Part, TurnEnd, Work, next_part
from mesh.jobs.values import Attempt, Job, Phase, Stage, State

EXIT_SOME_FAILED = 1  # of a worker that ends when a task has failed
PREFIX_FAILED = "prefix failed"  # begins the reason of a worker that a required step holds
WAITS_FOR_TURN = "waits for its turn"


def waits_for(job: Job) -> str:
    """Return the reason of a worker without a task."""
    assert job.spec.worker is not None
    problem = job.work.problem if job.work else ""
    return problem or f"waits for a task of {job.spec.worker.tasks.name}"


def as_worker(job: Job) -> WorkerSpec | None:
    """Return the worker that a job is, in the zone of the machines that it has; None for other jobs."""
    worker, generation = job.spec.worker, job.generation
    if worker is None or worker.zone or generation is None or not generation.zone:
        return worker
    return replace(worker, zone=generation.zone)


def part_to_run(job: Job) -> Part | None:
    """Return what a worker runs next on its machines; None for other jobs, and if it waits for a task."""
    if job.work is None or job.spec.worker is None or job.generation is None:
        return None
    return next_part(job.work, job.spec.worker, job.generation.number)


def is_ready(job: Job) -> bool:
    """Return True for a worker with prepared machines on which nothing of it runs or is to be run."""
    generation = job.generation
    if job.work is None or job.state is not State.PREPARING or generation is None or job.current is not None:
        return False
    return generation.phase is Phase.READY and setup_due(job, generation) is None and part_to_run(job) is None


def wants_task(job: Job, time: float) -> bool:
    """Return True if a worker may be given a task now."""
    if not is_ready(job) or job.is_on_hold or job.is_open(Start, Prepare, Stop):
        return False
    return to_fetch(job, time) is None


# ---- events


def asked(job: Job, event: AnyEvent) -> Job:
    """Fold an event of task files. It leaves a job that is no worker as it is."""
    work = job.work
    if work is None:
        return job
    match event:
        case TaskGiven(turn=turn, time=time) if wants_task(job, time):
            job = replace(job, work=replace(work, turn=turn, idle_since=0.0))
            return move(job, State.PREPARING, time, f"task {turn.task.id} starts")
        case TasksSeen():
            return _seen(job, work, event)
        case TaskReturnAsked(task=task, number=number, by=by, time=time) if work.turn is not None:
            if (work.turn.task.id, number or work.turn.number) != (task, work.turn.number):
                return job
            job = replace(job, work=replace(work, is_returning=True))
            return move(job, job.state, time, f"task {task} goes back{f' for {by}' if by else ''}")
    return job


def _seen(job: Job, work: Work, event: TasksSeen) -> Job:
    job = replace(job, work=replace(work, has_tasks=event.has_tasks, problem=event.problem))
    assert job.spec.worker is not None
    is_free = is_ready(job) or (job.state is State.QUEUED and not job.depends_on)
    if is_free and event.is_over and job.spec.worker.ends:
        if event.failed:
            return end(job, State.FAILED, event.time, f"{event.failed} tasks were not done", EXIT_SOME_FAILED)
        return end(job, State.SUCCEEDED, event.time, "every task is done", 0)
    if job.state is State.QUEUED and not job.depends_on:
        return replace(job, reason="waits for its turn" if event.has_tasks else waits_for(job))
    return replace(job, reason=waits_for(job)) if is_ready(job) and event.problem != work.problem else job


def ended(job: Job, event: RunEnded) -> Job | None:
    """Return a worker after the end of a step or task; None where the rules of every job hold: a loss, a stop."""
    work, attempt = job.work, job.attempts[-1]
    part, generation = attempt.part, job.generation
    if work is None or part is None or generation is None or event.cause == Cause.LOST.value:
        return None
    if event.cause == Cause.SIGNAL.value and not work.is_returning:
        return None
    succeeded = event.cause == Cause.COMPLETED.value
    detail = "" if succeeded else f": {event.reason or f'exit {event.exit_code}'}"
    if part.step < 0:
        if work.is_returning and not succeeded:
            return replace(move(job, State.PREPARING, event.time, f"task {part.name} was given back"), streak=0)
        job = move(job, State.PREPARING, event.time, f"task {part.name} {'is done' if succeeded else 'failed'}{detail}")
        return replace(job, streak=0)
    assert job.spec.worker is not None
    if not succeeded and job.spec.worker.prefix[part.step].required:
        return hold(job, event.time, f"{PREFIX_FAILED}: {part.name}{detail}")
    job = replace(job, work=replace(work, generation=generation.number, steps=part.step + 1))
    return move(job, State.PREPARING, event.time, f"prefix {part.name} {'is done' if succeeded else 'failed'}{detail}")


def adopted(job: Job, earlier: Attempt, refused: Attempt) -> Job:
    """Return a worker whose hosts run an earlier command of its own. It is ended, and the turn given back."""
    if job.work is None or earlier.part == refused.part:
        return job
    return replace(job, work=replace(job.work, is_returning=True))


def settle_work(job: Job, time: float) -> Job:
    """Close a turn of which nothing runs any more, and give machines back after the idle time."""
    worker = job.spec.worker
    if job.work is None or worker is None:
        return job
    job = _closed(job, job.work, time)
    if not is_ready(job):
        return replace(job, work=replace(job.work, idle_since=0.0)) if job.work and job.work.idle_since else job
    assert job.work is not None
    since = job.work.idle_since or time
    job = replace(job, work=replace(job.work, idle_since=since))
    if job.is_on_hold:
        return _freed(hold(job, time, HELD_BY_PERSON, f"mesh job release {job.id}"), time)
    if time < since + worker.idle:
        return job
    return _freed(recover(job, time, f"idle for {worker.idle:g} s: no task for it", 0.0), time)


def _freed(job: Job, time: float) -> Job:
    """Give the machines of a worker back, as far as that needs nothing else."""
    assert job.work is not None
    return settle(replace(job, work=replace(job.work, idle_since=0.0, has_tasks=False)), time)


def _closed(job: Job, work: Work, time: float) -> Job:
    turn = work.turn
    if job.current is not None:
        return job
    if turn is None:  # an earlier command that still held the hosts has been ended: the next one is started
        return replace(job, work=replace(work, is_returning=False)) if work.is_returning else job
    mine = [one for one in job.attempts if turn.has(one.part)]
    last = mine[-1] if mine and mine[-1].stage is Stage.ENDED else None
    if last is None and job.state is State.PREPARING and not work.is_returning:
        return job  # it is started soon, perhaps again
    how = _how(job, work, last)
    closing = TurnEnd(
        task=turn.task.id,
        number=turn.number,
        how=how,
        started=turn.since,
        ended=time,
        exit_code=last.exit_code if last else 0,
        run=last.run if last else "",
        is_requeued=work.is_returning and how is How.INTERRUPTED,
    )
    work = replace(
        work,
        turn=None,
        end=closing,
        is_returning=False,
        done=work.done + (how is How.DONE),
        failed=work.failed + (how is How.FAILED),
        interrupted=work.interrupted + (how is How.INTERRUPTED),
    )
    return replace(job, work=work)


def _how(job: Job, work: Work, last: Attempt | None) -> How:
    """Return the end of a turn. Only a run that ended by itself can have failed."""
    if last is None:
        return How.INTERRUPTED
    if last.cause == Cause.COMPLETED.value:
        return How.DONE
    by_itself = last.cause not in (Cause.LOST.value, Cause.SIGNAL.value) and job.state is State.PREPARING
    return How.FAILED if by_itself and not work.is_returning else How.INTERRUPTED


# ---- orders


def returning(job: Job) -> Stop | None:
    """Return the order to end the task of a worker that a person wants back; None without one."""
    attempt = job.current
    if job.work is None or not job.work.is_returning or job.state not in (State.PREPARING, State.RUNNING):
        return None
    if attempt is None or attempt.stage not in (Stage.UNSURE, Stage.LIVE) or job.is_open(Stop):
        return None
    return Stop(run=attempt.run, hosts=attempt.hosts)


def fetch_first(job: Job, time: float) -> Fetch | None:
    """Return the order to bring the output of an ended attempt before the next one; None if it is here, or under way.

    The caller has seen that no attempt is open.
    """
    attempt = to_fetch(job, time)
    if attempt is None or job.is_open(Fetch):
        return None
    is_task = attempt.part is not None and attempt.part.step < 0
    return Fetch(run=attempt.run, hosts=attempt.hosts, results=is_task and bool(job.spec.results))


def may_start(job: Job, time: float) -> bool:
    """Return True if a worker has something to run, and the output of what it has run is here."""
    return part_to_run(job) is not None and to_fetch(job, time) is None


def wake_times(job: Job) -> Sequence[float]:
    """Return the times at which a Timer changes something in a worker."""
    if job.work is None or job.spec.worker is None or job.state is not State.PREPARING:
        return ()
    found = [until for one in job.attempts if 0.0 < (until := fetch_until(job, one)) < math.inf]
    return [*found, job.work.idle_since + job.spec.worker.idle] if job.work.idle_since else found


def waiting_reason(job: Job) -> str:
    """Return why a queued job cannot have its turn yet."""
    if job.depends_on:
        return f"waits for job {', '.join(map(str, job.depends_on))}"
    if job.work is not None and not job.work.has_tasks:
        return waits_for(job)
    return "waits for its time" if job.not_before else WAITS_FOR_TURN
