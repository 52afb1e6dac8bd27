"""Doubts about machines that were ready: their hosts are silent, or the API calls them anything but READY.

A doubt alone condemns no machine, because it may still work. `docs/machines.md` has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.amounts import span
from mesh.core.tpu import REPAIR_FOR_S
from mesh.jobs.events import MachinesPending
from mesh.jobs.generations import with_generation
from mesh.jobs.values import Generation, Job

UNREACHABLE_LIMIT_S = 600.0  # for hosts to become reachable before a job gives them back
UNREACHABLE_RETRY_S = 10.0
LONG_RETRY_S = 60.0  # between tries after UNREACHABLE_LIMIT_S


def is_waited_for(job: Job, hosts: Sequence[str], time: float) -> bool:
    """Return True if a job waits for hosts that it cannot reach before its start.

    Machines that were made are waited for without a limit: this machine's own network may be down. An agent's report
    that a host is lost ends the wait, if other hosts of the same machines have answered now.
    hosts: those that were not reached
    """
    if time < (job.unreachable_since or time) + UNREACHABLE_LIMIT_S:
        return True
    generation = job.generation
    if generation is None or not generation.maker:
        return False
    is_accused = bool(hosts) and set(hosts) <= set(generation.accused)
    return not (is_accused and len(set(hosts)) < len(generation.hosts))


def retry_pause(job: Job, time: float) -> float:
    """Return the seconds until hosts that were not reached are tried again."""
    is_long = time >= (job.unreachable_since or time) + UNREACHABLE_LIMIT_S
    return LONG_RETRY_S if is_long else UNREACHABLE_RETRY_S


def is_silent(job: Job) -> bool:
    """Return True if hosts of a job have not answered at the last look or try."""
    return bool(job.silent_since or job.unreachable_since)


def accused(job: Job, hosts: Sequence[str]) -> Job:
    """Note that an attempt has lost hosts of the present machines. hosts: those that agents report as lost"""
    generation = job.generation
    if generation is None or not generation.maker:
        return job
    return with_generation(job, generation.number, accused=tuple(hosts), has_lost=True)


def is_first_loss(generation: Generation | None) -> bool:
    """Return True if the loss of machines was not counted when the attempt on them ended."""
    return generation is None or not generation.has_lost


def noted(job: Job, event: MachinesPending) -> Job:
    """Note an answer of the API by which machines that were ready are not."""
    generation = job.generation
    assert generation is not None
    sick_since = (generation.sick_since or event.time) if event.is_sick else 0.0
    doubt_since = generation.doubt_since or event.time
    return with_generation(job, generation.number, doubt_since=doubt_since, sick_since=sick_since)


def cleared(job: Job, number: int) -> Job:
    """Note an answer of the API by which machines are ready and healthy."""
    generation = job.generation
    if generation is None or generation.number != number or not generation.doubt_since:
        return job
    return with_generation(job, number, doubt_since=0.0, sick_since=0.0)


def is_sick_for_long(job: Job, time: float) -> bool:
    """Return True if machines are under repair, or unhealthy, for longer than `repair_for`, and their hosts are silent.

    Ranks whose hosts answer show that the machines work, whatever the API calls them.
    """
    generation, tpu = job.generation, job.spec.machines.tpu
    if generation is None or not generation.sick_since or not is_silent(job):
        return False
    return time >= generation.sick_since + (tpu.repair_for if tpu is not None else REPAIR_FOR_S)


def sickness(job: Job, event: MachinesPending) -> str:
    """Return the evidence that is_sick_for_long has found, for people."""
    generation = job.generation
    assert generation is not None
    return f"{event.state} for {span(event.time - generation.sick_since)}, and its hosts do not answer"


def sign_at(job: Job) -> float:
    """Return when the first sign came that made machines may be gone; 0 without one."""
    generation = job.generation
    if generation is None or not generation.maker:
        return 0.0
    return max(job.silent_since, generation.doubt_since)
