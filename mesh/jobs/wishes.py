"""The wishes of people for a job, and the ends of jobs that it depends on. Each function returns the changed job."""

from __future__ import annotations

from msgspec.structs import replace

from mesh.core.outcome import Cause
from mesh.jobs import events, working
from mesh.jobs.change import EXIT_STOPPED, end, hold, move, queue, recover
from mesh.jobs.orders import Stop
from mesh.jobs.values import Job, Phase, Setup, State, Wanted

KEEPS_MACHINES = "goes on with the machines that it has"


def wished(job: Job, event: events.Wished) -> Job:
    """Fold the wish of a person that the job runs, stops or is deleted."""
    time = event.time
    if event.wanted is Wanted.RUN:
        if job.is_deleted:
            return job
        return resume(replace(job, wanted=Wanted.RUN, is_on_hold=False), time)
    deletes = event.wanted is Wanted.DELETE
    if job.state.is_final:
        return replace(job, is_deleted=True, wanted=Wanted.DELETE) if deletes else job
    wanted = Wanted.DELETE if deletes or job.wanted is Wanted.DELETE else Wanted.STOP
    is_stop_kept = event.keeps_machines and wanted is Wanted.STOP
    job = replace(job, wanted=wanted, is_restarting=False, is_stop_kept=is_stop_kept)
    if job.state is State.ENDING:
        return job
    job = replace(job, cause=Cause.SIGNAL.value)
    return end(job, State.STOPPED, time, f"stopped{f' by {event.by}' if event.by else ''}", EXIT_STOPPED)


def resume(job: Job, time: float) -> Job:
    """Let a job go on that is held, has ended, or is ending."""
    if job.state is State.ENDING:
        return replace(job, is_restarting=True)
    if job.state is State.HELD:
        generation = job.generation
        if generation is not None and generation.phase is Phase.READY:
            if job.is_open(Stop):  # its ranks are being ended: that end is no end of the job
                return recover(job, time, KEEPS_MACHINES, 0.0, keeps_machines=True)
            return move(job, State.PREPARING, time, KEEPS_MACHINES)
        if generation is not None:  # condemned, or not made yet
            return recover(job, time, working.WAITS_FOR_TURN, 0.0)
        after = job.spec.after if job.spec.after > time else 0.0  # a release ends a pause, not the wait for its time
        return queue(replace(job, not_before=after), time, "waits for its time" if after else working.WAITS_FOR_TURN)
    if job.state.is_final:
        job = replace(job, exit_code=None, cause="", ended=0.0, failures=0, streak=0, status=0, not_before=0.0)
        return queue(job, time, working.WAITS_FOR_TURN)
    return job


def restart(job: Job, time: float, by: str) -> Job:
    """Fold the wish of a person that the attempt ends, and another one follows."""
    if job.is_deleted or job.state in (State.ENDING, State.RECOVERING):
        return job
    if job.setup is Setup.FORCE and job.work is not None:
        job = replace(job, work=replace(job.work, steps=0))  # on machines that it keeps as well
    if job.state is State.QUEUED:
        return replace(job, not_before=0.0)
    if job.state is State.HELD or job.state.is_final:
        return resume(replace(job, wanted=Wanted.RUN, is_on_hold=False, prepared=0), time)
    reason = f"restarted{f' by {by}' if by else ''}"
    return replace(recover(job, time, reason, 0.0, keeps_machines=True), is_restarting=True)


def dependency(job: Job, event: events.DependencyEnded) -> Job:
    """Fold the end of a job that this one depends on."""
    if event.job not in job.depends_on:
        return job
    job = replace(job, depends_on=tuple(one for one in job.depends_on if one != event.job))
    if job.state is not State.QUEUED:
        return job
    if not event.succeeded:
        return hold(job, event.time, f"job {event.job} did not succeed", f"mesh job release {job.id}")
    return replace(job, reason=working.waiting_reason(job))
