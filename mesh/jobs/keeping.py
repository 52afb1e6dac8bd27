"""Machines that stay for the next job when their job ends (`keep:`). Pure.

The job that ends hands its machines to another job, which keeps them: the keeper. One transaction of the store does
that, so that the machines have an owner at every moment. The keeper hands them to the next job of the same kind, or
deletes them when their time is over. The labels of the machines stay those of the job that they were made for.
"""

from __future__ import annotations

import hashlib
import math

from msgspec.structs import replace

from mesh.core.amounts import span
from mesh.core.job import CommandSpec, JobSpec, Keep, NotifySpec, WorkspaceSpec
from mesh.core.notify import Moment
from mesh.core.outcome import Cause
from mesh.core.tpu import TpuSpec
from mesh.jobs.coding import encode
from mesh.jobs.doubts import is_silent
from mesh.jobs.generations import next_zones, with_generation
from mesh.jobs.orders import Fetch
from mesh.jobs.values import Generation, Job, Phase, State, Wanted

OWNER = "pool {}"  # what a keeper holds, by the kind of its chips: no cluster has such a name
NAME_CHARACTERS = 64
LATE = (Moment.STUCK, Moment.LEFT)  # notifications of a job that its keeper sends too


def may_keep(job: Job) -> bool:
    """Return True for a job that ends now and whose machines stay for the next one.

    Machines of a job that a person stops are deleted at once, if nothing else was asked for. So are those that were
    lost, or are in doubt.
    """
    tpu, generation = job.spec.machines.tpu, job.generation
    if tpu is None or not tpu.keep or job.kept_until or generation is None or not _is_sound(generation):
        return False
    by_itself = job.wanted is Wanted.RUN and job.outcome in (State.SUCCEEDED, State.FAILED)
    as_asked = job.wanted is Wanted.STOP and job.is_stop_kept  # not by a stop before the last resume
    is_over = job.state is State.ENDING and (by_itself or as_asked)
    is_wanted = not job.is_restarting and not job.is_over_limit
    is_lost = job.cause == Cause.LOST.value or is_silent(job) or job.is_open(Fetch)
    return is_over and is_wanted and not is_lost


def kept(job: Job) -> Job:
    """Have a job hand its machines on; the store makes the keeper in the same transaction."""
    tpu = job.spec.machines.tpu
    assert tpu is not None
    return replace(handed(job), reason=f"{job.reason}; its machines are kept for {span(tpu.keep)}")


def handed(job: Job) -> Job:
    """Note that another job has the machines from now on."""
    assert job.generation is not None
    return with_generation(job, job.generation.number, phase=Phase.RELEASED, is_handed=True)


def handed_now(before: Job, job: Job) -> Generation | None:
    """Return the machines that a job has handed to a keeper by its last event; None without any."""
    generation = before.generation
    if generation is None or before.kept_until:
        return None
    after = next(one for one in job.generations if one.number == generation.number)
    return generation if after.is_handed else None


def keeper_spec(spec: JobSpec) -> JobSpec:
    """Return the spec of the job that keeps the machines of another one."""
    tpu = spec.machines.tpu
    assert tpu is not None
    notify = [replace(one, on=on) for one in spec.notify if (on := _late(one))]
    return JobSpec(
        name=f"keep-{spec.name}"[:NAME_CHARACTERS],
        user=spec.user,
        machines=replace(spec.machines, tpu=replace(tpu, keep=0.0)),
        command=CommandSpec(words=()),
        workspace=WorkspaceSpec(keep=Keep.NONE),
        modules=spec.modules,
        project_modules=spec.project_modules,
        notify=tuple(notify),
        holds=OWNER.format(tpu.kind),
    )


def _late(one: NotifySpec) -> tuple[Moment, ...]:
    return tuple(moment for moment in one.on if moment in LATE)


def passed_on(owner: int, generation: Generation) -> Generation:
    """Return machines as another job gets them. owner: the job that had them until now

    The owner keeps the history of its time with them. The job that made them goes along: their labels name it.
    """
    return Generation(
        number=generation.number,
        name=generation.name,
        phase=Phase.READY,
        hosts=generation.hosts,
        keys=generation.keys,
        maker=generation.maker,
        pool=generation.pool,
        units=generation.units,
        billed=generation.billed,
        zone=generation.zone,
        asked=generation.asked,
        made_by=generation.made_by or owner,
        made_number=generation.made_number or generation.number,
    )


# ---- the next job


def kept_kind(job: Job) -> str:
    """Return the kind of machines that a keeper offers to the next job; "": none."""
    generation = job.generation
    if not job.kept_until or job.state is not State.RUNNING or generation is None or not _is_sound(generation):
        return ""
    return _kind(job.spec, generation.zone)


def usable_kinds(job: Job) -> tuple[str, ...]:
    """Return the kinds of kept machines that a job can use, the preferred kind first."""
    if job.spec.machines.tpu is None or job.kept_until:
        return ()
    return tuple(_kind(job.spec, zone) for zone in next_zones(job))


def may_take(keeper: Job, job: Job, time: float) -> bool:
    """Return True if a job can have the machines of a keeper now."""
    is_queued = job.state is State.QUEUED and job.generation is None and not job.depends_on
    kind = kept_kind(keeper)
    return is_queued and bool(kind) and time < keeper.kept_until and kind in usable_kinds(job)


def _kind(spec: JobSpec, zone: str) -> str:
    """Return a text that is equal for machines of one user, kind, zone, image and set of modules."""
    tpu = spec.machines.tpu
    assert tpu is not None
    parts = spec.user, zone, _machines(tpu), spec.modules, spec.project_modules
    return hashlib.blake2b(encode(parts).encode(), digest_size=16).hexdigest()


def _machines(tpu: TpuSpec) -> TpuSpec:
    """Return a request without the keys that make no difference to the machines."""
    plain = TpuSpec(accelerator="", runtime="", zones=())
    return replace(
        tpu,
        zones=(),
        prefix="",
        description="",
        valid_for=plain.valid_for,
        make_for=plain.make_for,
        recreate=plain.recreate,
        unreachable_for=plain.unreachable_for,
        probe=plain.probe,
        repair_for=plain.repair_for,
        keep=plain.keep,
    )


def _is_sound(generation: Generation) -> bool:
    """Return True for machines that are ready, and that neither the API nor an agent has reported as doubtful."""
    is_doubted = generation.doubt_since or generation.sick_since or generation.accused or generation.has_lost
    return bool(generation.maker) and generation.phase is Phase.READY and not is_doubted


def end_at(job: Job) -> float:
    """Return when a keeper deletes its machines; infinity for other jobs."""
    return job.kept_until if job.kept_until and job.state is State.RUNNING else math.inf
