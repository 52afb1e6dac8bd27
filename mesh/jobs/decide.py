"""The decisions about a job: an event goes in, the job after it and the orders to carry out come out.

No clock, no I/O: times come with events. Orders follow from the state alone, so that a steward that starts again gives
the orders that are still open.
"""

from __future__ import annotations

import hashlib
import math
import time as clock

from msgspec.structs import replace

from mesh.jobs import leaving, working
from mesh.jobs.change import HELD_MACHINES_S, fetch_until, to_fetch
from mesh.jobs.cleaning import setup_due, undo_order
from mesh.jobs.events import AnyEvent, Intended, NotAsked, RunSeen, TakenOver, Timer
from mesh.jobs.fold import fold
from mesh.jobs.keeping import end_at
from mesh.jobs.orders import AnyLook, AnyOrder, Delete, Fetch, LookAtMachines, LookAtRun, Make, Prepare, Start, Stop
from mesh.jobs.overdue import report_at
from mesh.jobs.values import Job, OpenOrder, Phase, Stage, State


def decide(job: Job | None, event: AnyEvent) -> tuple[Job, tuple[OpenOrder, ...]]:
    """Return the job after an event, and the orders to carry out now.

    Orders with an `op` above the `ops` of the job before are new: the job that is returned has them as intended, and
    the store gets an `Intended` for each, with the event, before any is carried out. Others are open ones to repeat.
    """
    before = job.ops if job else 0
    job = fold(job, event)
    while (order := next_order(job, event.time)) is not None:
        job = fold(job, Intended(time=event.time, op=job.ops + 1, order=order))
    repeats = isinstance(event, TakenOver) or (isinstance(event, Timer) and not job.retry_at)
    return job, tuple(one for one in job.open if one.op > before or (repeats and not isinstance(one.order, Start)))


def written(before: Job | None, event: AnyEvent, orders: tuple[OpenOrder, ...]) -> list[AnyEvent]:
    """Return the events that the store gets for a decision: the event, and the new intents that follow from it."""
    ops = before.ops if before else 0
    new = [Intended(time=event.time, op=one.op, order=one.order) for one in orders if one.op > ops]
    return [event, *new]


def next_order(job: Job, time: float) -> AnyOrder | None:
    """Return an order that the state asks for and that is not open yet; None without one."""
    if (delete := leaving.delete_order(job, time)) is not None:
        return delete
    if job.retry_at and time < job.retry_at:
        return None
    generation, attempt = job.generation, job.current
    if (back := working.returning(job)) is not None:
        return back
    if job.state is State.REQUESTING:
        if generation is not None and generation.phase is Phase.PLANNED and not job.is_open(Make):
            return Make(generation=generation.number, name=generation.name)
        return None
    if job.state is State.PREPARING:
        return _preparation(job, time)
    if job.state not in (State.RECOVERING, State.ENDING, State.HELD):
        return None
    is_condemned = generation is not None and bool(generation.maker) and generation.phase is Phase.RELEASING
    if attempt is not None and not is_condemned:
        if attempt.stage in (Stage.UNSURE, Stage.LIVE) and not job.is_open(Stop):
            return Stop(run=attempt.run, hosts=attempt.hosts)
        return None
    ended = to_fetch(job, time)
    if ended is not None:
        if job.is_open(Fetch):
            return None
        is_over = job.state is State.ENDING or job.is_over_limit
        is_last = is_over and ended == [one for one in job.attempts if one.stage is Stage.ENDED][-1]
        return Fetch(run=ended.run, hosts=ended.hosts, results=is_last and bool(job.spec.results))
    if generation is None or generation.phase is not Phase.RELEASING:
        return None
    if not generation.maker:
        return undo_order(job, generation)
    if leaving.is_being_deleted(job, generation.number) or time >= leaving.leave_at(job):
        return None  # machines that are due to be left have an order of their own
    return Delete(generation=generation.number, name=generation.name)


def _preparation(job: Job, time: float) -> AnyOrder | None:
    """Return the next order on the way to running ranks."""
    generation = job.generation
    if generation is None or generation.phase is not Phase.READY or job.current or job.is_open(Prepare, Start):
        return None
    number = job.attempt if job.attempts and job.attempts[-1].stage is Stage.NEVER else job.attempt + 1
    if (modules := setup_due(job, generation)) is not None:
        return Prepare(attempt=number, hosts=generation.hosts, modules=modules)
    if job.in_the_way:
        return None  # ranks on machines that may still run have priority over new ones
    if job.work is not None:
        if (fetch := working.fetch_first(job, time)) is not None or not working.may_start(job, time):
            return fetch
        number = job.attempt + 1  # a number belongs to one turn
    return Start(attempt=number, run=run_id(job, time), hosts=generation.hosts)


def run_id(job: Job, time: float) -> str:
    """Return the id of the next run of a job: its time, and a part of its own that no other run has.

    It is written to the store before the run is started.
    """
    seed = f"{job.store}/{job.id}/{len(job.attempts)}/{time!r}"
    digest = hashlib.blake2b(seed.encode(), digest_size=3).hexdigest()
    return f"{clock.strftime('%Y%m%d-%H%M%S', clock.localtime(time))}-{digest}"


def looks(job: Job) -> tuple[AnyLook, ...]:
    """Return the questions whose answers may let the job go on, now and until the next event."""
    found: list[AnyLook] = []
    attempt, generation = job.current, job.generation
    if attempt is not None and attempt.stage in (Stage.UNSURE, Stage.LIVE) and not job.is_open(Stop):
        found.append(LookAtRun(run=attempt.run, hosts=attempt.hosts))
    phases = (Phase.ASKED, Phase.READY, Phase.RELEASING)
    # While the order to make them is under way, machines that are not there yet would look as if they were gone.
    if generation is not None and generation.maker and generation.phase in phases and not job.is_open(Make):
        found.append(LookAtMachines(generation=generation.number, name=generation.name))
    found += [LookAtMachines(generation=one.number, name=one.name) for one in job.left]
    return tuple(found)


def ends_starts(before: Job | None, job: Job) -> bool:
    """Return True if the hands that prepare or start a job are to be ended. before: the job before the last change

    Such an order takes hours at most, and its machines cost meanwhile. One whose machines are gone is open no more.
    """
    if not (job.is_open(Start, Prepare) or (before is not None and before.is_open(Start, Prepare))):
        return False
    is_returning = job.work is not None and job.work.is_returning
    return job.state in (State.ENDING, State.RECOVERING, State.HELD) or is_returning


def is_urgent(job: Job) -> bool:
    """Return True if a look may let the job go on at once, so that it is asked more often."""
    attempt = job.current
    return job.state is not State.RUNNING or (attempt is not None and attempt.stage is Stage.UNSURE)


def wake_at(job: Job) -> float:
    """Return the time at which a Timer changes something in a job; infinity if none does. Turns are the queue's."""
    moments = [job.retry_at] if job.retry_at else []
    generation = job.generation
    if job.state is State.HELD and generation is not None and generation.phase is not Phase.RELEASING:
        moments.append(job.since + HELD_MACHINES_S)
    if job.state in (State.RECOVERING, State.ENDING, State.HELD) and job.current is None:
        moments += [until for one in job.attempts if 0.0 < (until := fetch_until(job, one)) < math.inf]
    return min([*moments, report_at(job), end_at(job), *working.wake_times(job), *leaving.wake_times(job)])


def is_news(job: Job, event: AnyEvent) -> bool:
    """Return True if an answer to a look changes a job in more than the count of its events.

    Answers that change nothing are not written: a job that runs for a week has no row for each look.
    """
    if isinstance(event, NotAsked):
        since = job.api_silent_since if event.of_maker else job.silent_since
        return not since or any(one.op == event.op for one in job.open)  # an order is repeated after a pause
    if isinstance(event, RunSeen) and not job.silent_since:
        attempt = job.current
        is_live = attempt is not None and attempt.run == event.run and attempt.stage is Stage.LIVE
        return not (is_live and event.is_detached and event.progress in ("", job.progress))
    after = fold(job, event)
    return after != replace(job, seq=after.seq)
