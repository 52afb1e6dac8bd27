"""The fold of machines that one job hands to another: to a keeper, and from it to the next job."""

from __future__ import annotations

from msgspec.structs import replace

from mesh.jobs.change import end, kept_generations, move, short_list
from mesh.jobs.events import AnyEvent, HoldChanged, MachinesGiven, MachinesTaken, RestartAsked, Wished
from mesh.jobs.keeping import end_at, handed
from mesh.jobs.values import Job, State, Wanted


def given(job: Job, event: MachinesGiven) -> Job:
    """Give a job the machines of another one: a new job keeps them for a time, a queued one starts on them."""
    if job.state is not State.QUEUED or job.generation is not None:
        return job
    machines, time = event.generation, event.time
    number = job.generations[-1].number + 1 if job.generations else 1
    machines = replace(machines, number=number, granted=time, billed=time if machines.billed else 0.0)
    job = replace(job, generations=(*kept_generations(job), machines), not_before=0.0)
    if not event.until:
        return move(job, State.PREPARING, time, f"starts on {short_list(machines.hosts)}, kept by job {event.by}")
    count = len(machines.hosts)
    reason = f"keeps {count} host{'s' * (count != 1)} of job {event.by} for the next job"
    return move(replace(job, kept_until=event.until, kept_from=event.by), State.RUNNING, time, reason)


def taken(job: Job, event: MachinesTaken) -> Job:
    """End a keeper whose machines another job has from now on."""
    if not job.kept_until or job.state is not State.RUNNING or job.generation is None:
        return job
    job = replace(handed(job), open=(), exit_code=0, ended=event.time)
    return move(job, State.SUCCEEDED, event.time, f"job {event.by} has its machines")


def expired(job: Job, time: float) -> Job:
    """Have a keeper delete its machines once their time is over."""
    if time < end_at(job):
        return job
    return end(job, State.SUCCEEDED, time, "no other job has used its machines in time", 0)


def lost(job: Job, time: float, evidence: str) -> Job:
    """End a keeper whose machines are gone. No others are made for it."""
    return end(job, State.SUCCEEDED, time, f"its machines are gone ({evidence})", 0)


def is_refused(job: Job, event: AnyEvent) -> bool:
    """Return True for a wish that a keeper cannot have: it runs nothing, and its machines are not made again."""
    is_wish = isinstance(event, RestartAsked | HoldChanged) or (
        isinstance(event, Wished) and event.wanted is Wanted.RUN
    )
    return bool(job.kept_until) and is_wish
