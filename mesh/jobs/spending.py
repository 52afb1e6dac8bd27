"""Costs of a job: since when its machines cost, the warning before its limit, and the hold at the limit. Pure."""

from __future__ import annotations

import re

from msgspec.structs import replace

from mesh.jobs import working
from mesh.jobs.change import hold
from mesh.jobs.costs import PriceOf, spent
from mesh.jobs.events import (
    AnyEvent,
    CostSeen,
    MachinesAbsent,
    MachinesLost,
    MachinesPending,
    MachinesReady,
    StraysSeen,
)
from mesh.jobs.generations import with_generation
from mesh.jobs.overdue import noted
from mesh.jobs.values import Job, Phase, State, priced_uses

WARNED_SHARE = 0.8  # of the limit, from which on a warning is due
# States of nodes, as they stand in the text of a pending generation: from CREATING on Google counts the time.
BILLED = re.compile(r"\b(is CREATING|is STARTING|is RESTARTING|is REPAIRING|is REIMAGING|READY)\b")

# States after which a machine costs nothing, as they stand in the evidence of a loss. Silent hosts still cost.
UNBILLED = re.compile(r"\b(PREEMPTED|TERMINATED|STOPPED|SUSPENDED|FAILED)\b")


def metered(before: Job, job: Job, event: AnyEvent) -> Job:
    """Note the times from and to which machines cost, overdue deletions, and an extended limit."""
    time = event.time
    match event:
        case MachinesPending(generation=number, state=state) if BILLED.search(state):
            job = _marked(job, number, billed=time)
        case MachinesReady(generation=number):
            job = _marked(job, number, billed=time)
        case MachinesLost(generation=number, evidence=text) if UNBILLED.search(text) and _is_single(job):
            job = _marked(job, number, unbilled=time)
        case MachinesAbsent(generation=number):
            job = _marked(job, number, unbilled=time)
    for one in job.generations:
        if one.phase is Phase.RELEASED and one.billed and not one.unbilled:
            job = with_generation(job, one.number, unbilled=time)
    job = noted(job, time)
    if before.is_over_limit and job.state is not State.ENDING and job.state is not State.HELD:
        if job.state.is_final:
            return job
        return replace(job, is_over_limit=False, is_warned=False, allowances=job.allowances + 1)
    return job


def _is_single(job: Job) -> bool:
    """Return True if a generation is one slice; of several, the others may still be there."""
    tpu = job.spec.machines.tpu
    return tpu is not None and tpu.slices == 1


def _marked(job: Job, number: int, *, billed: float = 0.0, unbilled: float = 0.0) -> Job:
    """Note the first of each time of a generation. Machines that were never seen have no end."""
    one = next((one for one in job.generations if one.number == number), None)
    if one is None:
        return job
    end = one.unbilled or (unbilled if one.billed else 0.0)
    return with_generation(job, number, billed=one.billed or billed, unbilled=end)


def asked(job: Job, event: AnyEvent) -> Job:
    """Fold an event that answers no order, and that every job may have."""
    if isinstance(event, StraysSeen):
        return replace(job, strays=event.names)
    if not isinstance(event, CostSeen):
        return working.asked(job, event)
    if not event.is_reached:
        return replace(job, is_warned=True)
    if job.state is State.ENDING or job.state.is_final:
        return job
    job = replace(job, is_warned=True, is_over_limit=True)
    if job.state is State.HELD:
        return job  # for another reason; its machines are given back now
    limit, allowed = job.spec.cost_limit, job.spec.cost_limit * job.allowances
    reason = f"cost limit reached: {event.amount:.2f} of {allowed:g} spent; a resume allows {limit:g} more"
    return hold(job, event.time, reason, f"mesh job resume {job.id}")


def cost_event(job: Job, now: float, price_of: PriceOf) -> CostSeen | None:
    """Return the event that is due for what a job has cost; None without one.

    Machines without a price count nothing.
    """
    limit = job.spec.cost_limit
    if not limit or job.is_over_limit or job.state is State.ENDING or job.state.is_final:
        return None
    amount, _ = spent(priced_uses(job), now, price_of)
    allowed = limit * job.allowances
    if amount >= allowed:
        return CostSeen(time=now, amount=amount, is_reached=True)
    is_near = amount >= allowed - limit * (1 - WARNED_SHARE)
    return CostSeen(time=now, amount=amount) if is_near and not job.is_warned else None
