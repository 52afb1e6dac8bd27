"""The fold of events to a job. It is the only place where a job's state changes."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mesh.core.job import RestartOn
from mesh.core.outcome import EXIT_LOST, Cause
from mesh.jobs import cleaning, doubts, events, handing, leaving, orders, spending, wishes, working
from mesh.jobs.change import (
    HELD_BY_PERSON,
    HELD_MACHINES_S,
    avoiding,
    closed,
    end,
    granted,
    has_others,
    heard,
    hold,
    intended,
    keys_of,
    lose_machines,
    move,
    recover,
    retried,
    settle,
    short_list,
    silenced,
    starts,
    unanswered,
    with_attempt,
    with_run,
)
from mesh.jobs.events import Answer, AnyEvent, FromMakers, Refusal, RunEnded
from mesh.jobs.generations import ended, overdue_at, with_generation
from mesh.jobs.restart import backoff, judge
from mesh.jobs.turns import Work
from mesh.jobs.values import Attempt, Job, Phase, Stage, State

BUSY_RETRY_S = 30.0  # for hosts that somebody else's run holds


def fold(job: Job | None, event: AnyEvent) -> Job:
    """Return a job after one more event. job: None before its first event"""
    if isinstance(event, events.Submitted):
        return submitted(event)
    assert job is not None
    before, job = job, replace(job, seq=job.seq + 1)
    if isinstance(event, events.NotAsked):
        return silenced(job, event)  # the state stays, whatever it is
    job = _answered(job, event) if isinstance(event, Answer) else _asked(job, event)
    job = handing.expired(job, event.time)
    return spending.metered(before, working.settle_work(settle(job, event.time), event.time), event)


def fold_all(history: Iterable[AnyEvent]) -> Job:
    """Return the job that a history makes."""
    job: Job | None = None
    for event in history:
        job = fold(job, event)
    assert job is not None
    return job


def submitted(event: events.Submitted) -> Job:
    """Return a new job."""
    spec = event.spec
    job = Job(
        id=event.job,
        spec=spec,
        priority=spec.priority,
        submitted=event.time,
        since=event.time,
        not_before=spec.after,
        depends_on=event.depends_on,
        seq=1,
        store=event.store,
        work=Work() if spec.worker is not None else None,
    )
    return replace(job, reason=working.waiting_reason(job))


def _asked(job: Job, event: AnyEvent) -> Job:
    """Fold an event that answers no order."""
    if handing.is_refused(job, event):
        return job
    match event:
        case events.Wished():
            return wishes.wished(job, event)
        case events.RestartAsked(time=time, by=by, setup=setup):
            return wishes.restart(replace(job, setup=setup), time, by)
        case events.HoldChanged(time=time, is_on_hold=is_on_hold):
            job = replace(job, is_on_hold=is_on_hold)
            if is_on_hold and job.state is State.QUEUED:
                return move(job, State.HELD, time, HELD_BY_PERSON, f"mesh job release {job.id}")
            return wishes.resume(job, time) if not is_on_hold and job.state is State.HELD else job
        case events.PriorityChanged(priority=priority):
            return replace(job, priority=priority)
        case events.DependencyEnded():
            return wishes.dependency(job, event)
        case events.Granted():
            return granted(job, event)
        case events.MachinesGiven():
            return handing.given(job, event)
        case events.MachinesTaken():
            return handing.taken(job, event)
        case events.Intended(op=op, order=order):
            return intended(job, op, order)
        case events.UndoneByHand(hosts=hosts):
            return cleaning.cleaned(job, hosts)
        case events.Timer(time=time):
            return retried(job) if job.retry_at and time >= job.retry_at else job
        case events.TakenOver():
            for one in job.open:
                job = unanswered(job, one, is_repeated=True)
            return replace(job, retry_at=0.0, tries=0)
    return spending.asked(job, event)


# ---- answers


def _answered(job: Job, event: Answer) -> Job:
    answered = next((one.order for one in job.open if one.op == event.op), None)
    if answered is None and (event.op or isinstance(event, events.Refused)) and not isinstance(event, RunEnded):
        return job  # of an order that was taken back meanwhile
    job = heard(job, of_maker=isinstance(event, FromMakers) or isinstance(answered, orders.Make))
    if isinstance(answered, orders.Delete) and isinstance(event, events.MachinesPending):  # until they are gone
        if leaving.is_left(job, answered.generation):
            return leaving.postponed(job, answered.generation, event.time)
        return replace(job, retry_at=event.time + leaving.DELETE_AGAIN_S, tries=0)
    job = replace(closed(job, event.op), tries=0)
    match event:  # a look may come before the answer to the start
        case events.RunStarted(run=run) | events.RunEnded(run=run) | events.RunSeen(run=run, is_detached=True):
            job = replace(job, open=tuple(one for one in job.open if not starts(one.order, run)))
    match event:
        case events.Refused():
            return _refused(job, event, answered)
        case events.RunStarted(time=time, run=run) | events.RunSeen(time=time, run=run, is_detached=True):
            return _seen(job, time, run, event.progress if isinstance(event, events.RunSeen) else "")
        case events.RunSeen():
            return replace(job, reason="its start was cut off; that run ends by itself")
        case events.RunEnded():
            return _ended(job, event)
        case events.RunUnknown(time=time, run=run):
            return _unknown(job, time, run)
        case events.Fetched(run=run, problem=problem):
            fetched = next((one for one in job.attempts if one.run == run), None)
            if fetched is None:
                return job
            part = replace(fetched.part, task=None) if fetched.part else None
            job = with_attempt(job, run, is_fetched=True, fetches=fetched.fetches + 1, part=part)
            return replace(job, hint=problem) if problem else job
        case events.Undone():
            return cleaning.undone(job, event)
        case events.Prepared():
            return replace(job, prepared=job.generation.number, unreachable_since=0.0) if job.generation else job
        case _:
            return _machines(job, event)


def _seen(job: Job, time: float, run: str, progress: str) -> Job:
    """Note that the ranks of a run have started, or still run."""
    attempt = job.current
    if attempt is None or attempt.run != run:
        return job
    started = attempt.started or time
    job = with_attempt(job, run, stage=Stage.LIVE, started=started)
    job = with_generation(job, attempt.generation, has_lost=False, accused=())
    job = replace(job, started=job.started or started, progress=progress or job.progress)
    if job.state is State.PREPARING:
        label = attempt.part.name if attempt.part else f"attempt {attempt.number}"
        return move(job, State.RUNNING, time, f"{label} on {short_list(attempt.hosts)}")
    return job


def _ended(job: Job, event: RunEnded) -> Job:
    attempt = job.current
    if attempt is None or attempt.run != event.run:
        return job
    if job.state is State.PREPARING and event.cause == Cause.SIGNAL.value and attempt.stage is not Stage.LIVE:
        return with_attempt(job, event.run, stage=Stage.NEVER)  # the hosts ended it when our own hand was killed
    if job.state is State.PREPARING and event.cause in (Cause.PREPARE.value, Cause.BUSY.value):
        kind = Refusal.BUSY if event.cause == Cause.BUSY.value else Refusal.UNREACHABLE
        refused = events.Refused(time=event.time, kind=kind, why=event.reason or "could not start", hosts=event.hosts)
        return _refused(job, refused, orders.Start(attempt=attempt.number, run=event.run, hosts=attempt.hosts))
    verdict, failures = judge(job, event), job.failures
    lost = keys_of(job, event.hosts)
    job = with_attempt(
        job,
        event.run,
        stage=Stage.ENDED,
        started=attempt.started or event.time,  # it may end before it is seen
        ended=event.time,
        exit_code=event.exit_code,
        cause=event.cause,
    )
    job = replace(job, started=job.started or attempt.started or event.time)
    if job.state is State.HELD and verdict.outcome is State.SUCCEEDED and job.work is None:
        # It was done before the order to end it came: a resume must not run it again.
        return end(replace(job, cause=event.cause), State.SUCCEEDED, event.time, verdict.reason, event.exit_code)
    if job.state not in (State.PREPARING, State.RUNNING):
        return job
    job = replace(
        job,
        cause=event.cause,
        preemptions=verdict.preemptions,
        failures=verdict.failures,
        streak=verdict.streak,
        avoided=lost,
    )
    if (worker := working.ended(job, event)) is not None:
        return replace(worker, failures=failures)  # those of tasks are counted by task
    if verdict.outcome is not None:
        return end(job, verdict.outcome, event.time, verdict.reason, event.exit_code)
    if event.cause == Cause.LOST.value:
        job = doubts.accused(job, event.hosts)  # made machines stay: only the API's answers prove them gone
    return recover(job, event.time, verdict.reason, verdict.delay, keeps_machines=True)


def _unknown(job: Job, time: float, run: str) -> Job:
    """Note that no host has or had a run: it never started, or its hosts were made anew."""
    attempt = job.current
    if attempt is None or attempt.run != run:
        return job
    if attempt.stage is Stage.INTENDED:
        return job  # the order to start it is under way
    if attempt.stage is Stage.LIVE:
        reason = "no host has its run any more"
        job = replace(job, open=tuple(one for one in job.open if not starts(one.order, run)))
        return _ended(job, RunEnded(time=time, run=run, exit_code=EXIT_LOST, cause=Cause.LOST.value, reason=reason))
    return with_attempt(job, run, stage=Stage.NEVER)


def _refused(job: Job, event: events.Refused, order: orders.Order | None) -> Job:
    """Follow a refusal of an order to make, prepare or start: nothing of it is left behind."""
    attempt, time = job.current, event.time
    if attempt is not None and isinstance(order, orders.Start) and order.run == attempt.run:
        job = with_attempt(job, attempt.run, stage=Stage.NEVER)
    elif isinstance(order, orders.Start):
        return job
    if isinstance(order, orders.Make) and job.generation is not None:
        # After a try whose answer was lost it is condemned, and proved gone like any other.
        phase = Phase.RELEASING if job.generation.is_unsure or event.has_rest else Phase.RELEASED
        end = ended(job.generation, job.state, time) if event.kind is Refusal.CAPACITY else {}
        job = with_generation(job, order.generation, phase=phase, **end)
    if event.kind is Refusal.BUSY and event.by_run and attempt and event.by_run in job.runs_ever:
        return _adopt(job, attempt, event.by_run)
    if job.state not in (State.REQUESTING, State.PREPARING, State.RUNNING):
        return job
    first = job.unreachable_since or time
    match event.kind:
        case Refusal.PERSON | Refusal.ENVIRONMENT:
            return hold(job, time, event.why, event.hint)
        case Refusal.LOST:
            job = replace(job, preemptions=job.preemptions + 1, streak=job.streak + 1)
            delay = backoff(job, job.streak - 1) if job.streak > 1 else 0.0
            return replace(recover(job, time, event.why, delay), avoided=keys_of(job, event.hosts))
        case Refusal.UNREACHABLE if job.state is State.PREPARING and doubts.is_waited_for(job, event.hosts, time):
            again = time + doubts.retry_pause(job, time)
            return replace(job, reason=event.why, hint=event.hint, retry_at=again, unreachable_since=first)
        case Refusal.BUSY:
            is_news = not set(keys_of(job, event.hosts)) <= set(job.avoided)
            job = avoiding(job, event.hosts)
            delay = 0.0 if is_news and has_others(job) else BUSY_RETRY_S
        case _:
            job = avoiding(job, event.hosts)
            job = replace(job, streak=job.streak + 1)
            delay = backoff(job, job.streak)
    # Made machines that are busy stay: a setup that was cut off still ends there, or a person's run goes on.
    return replace(recover(job, time, event.why, delay, keeps_machines=event.kind is Refusal.BUSY), hint=event.hint)


def _adopt(job: Job, refused: Attempt, run: str) -> Job:
    """Take an earlier run of this job, which holds the hosts, for the attempt that was refused."""
    earlier = with_run(job, run)
    others = tuple(one for one in job.attempts if one.run != run)
    adopted = replace(refused, run=run, stage=Stage.UNSURE, started=0.0, part=earlier.part)
    return replace(working.adopted(job, earlier, refused), attempts=(*others, adopted))


def _machines(job: Job, event: Answer) -> Job:
    """Fold an answer of a maker of machines."""
    generation = job.generation
    match event:
        case events.MachinesReady(time=time, generation=number, hosts=hosts, keys=keys):
            if generation is None or generation.number != number or generation.phase is not Phase.ASKED:
                return doubts.cleared(leaving.revived(job, number), number)
            job = with_generation(job, number, phase=Phase.READY, hosts=hosts, keys=keys)
            job = replace(job, open=tuple(one for one in job.open if not isinstance(one.order, orders.Make)))
            how = f"once {job.in_the_way[0].name} is gone" if job.in_the_way else f"on {short_list(hosts)}"
            return move(job, State.PREPARING, time, f"starts {how}") if _asks(job) else job
        case events.Made(time=time, generation=number):
            return with_generation(job, number, asked=time)
        case events.MachinesPending(time=time, generation=number, state=state, is_waiting=is_waiting):
            if generation is not None and generation.number == number and generation.phase is Phase.READY:
                return _doubted(job, event)
            if not _asks(job) or generation is None or generation.number != number:
                return leaving.noted(job, event)
            since = 0.0 if is_waiting else generation.making_since or time
            job = replace(with_generation(job, number, making_since=since), reason=state)
            # Not by the time alone: they may have become ready while the API, or this machine, was away.
            return _lost(job, time, "its machines were not ready in time") if time >= overdue_at(job) else job
        case events.MachinesLost(time=time, generation=number, evidence=evidence, by_silence=by_silence):
            if generation is None or generation.number != number or generation.phase is Phase.RELEASING:
                return leaving.revived(job, number) if event.rest else job
            if by_silence and not doubts.is_silent(job):
                return job  # the hosts have answered meanwhile
            job = with_generation(job, number, rest=event.rest, is_over=event.is_ended)
            if event.is_final and _asks(job):
                return hold(lose_machines(job, time, Phase.RELEASING), time, evidence, event.hint)
            return _lost(job, time, evidence)
        case events.MachinesAbsent(time=time, generation=number, evidence=evidence):
            if generation is None or generation.number != number:
                return leaving.gone(job, number)
            return _gone(job, time, evidence, Phase.RELEASED)
    return job


def _doubted(job: Job, event: events.MachinesPending) -> Job:
    """Note that machines which were ready are not, by the API, and give them back after a repair that takes long."""
    job = doubts.noted(job, event)
    if not doubts.is_sick_for_long(job, event.time):
        return job
    evidence = doubts.sickness(job, event)
    if job.state is State.HELD and event.time < job.since + HELD_MACHINES_S:
        return job
    if job.spec.restart.on is RestartOn.NEVER and job.state in (State.PREPARING, State.RUNNING):
        return hold(job, event.time, evidence)
    return _lost(job, event.time, evidence)


def _asks(job: Job) -> bool:
    return job.state is State.REQUESTING


def _lost(job: Job, time: float, evidence: str) -> Job:
    """Condemn machines of which some are gone, or that were never complete."""
    return _gone(job, time, evidence, Phase.RELEASING)


def _gone(job: Job, time: float, evidence: str, phase: Phase) -> Job:
    """Note that machines are gone: as ordered, by a preemption, or as they never came."""
    attempt, before = job.current, job.generation
    job = lose_machines(job, time, phase)
    if job.state is State.REQUESTING:
        job = replace(job, streak=job.streak + 1)
        return recover(job, time, evidence, backoff(job, job.streak))
    if job.state not in (State.PREPARING, State.RUNNING):
        return job
    if job.kept_until:
        return handing.lost(job, time, evidence)
    if attempt is None or attempt.stage is not Stage.LIVE:
        job = replace(job, preemptions=job.preemptions + doubts.is_first_loss(before))
        return recover(job, time, f"its machines are gone ({evidence})", 0.0)
    lost = RunEnded(time=time, run=attempt.run, exit_code=EXIT_LOST, cause=Cause.LOST.value, reason=evidence)
    alive = with_attempt(job, attempt.run, stage=Stage.LIVE)
    return _ended(alive, lost)
