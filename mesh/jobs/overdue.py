"""Machines that are being deleted for too long: reported after ten minutes, and then each hour. Pure."""

from __future__ import annotations

import math

from mesh.jobs.generations import with_generation
from mesh.jobs.values import Generation, Job, Phase

OVERDUE_AFTER_S = 600.0  # from the decision to delete machines until they are reported, if they are not gone
OVERDUE_AGAIN_S = 3600.0


def report_at(job: Job) -> float:
    """Return when machines that are still being deleted are to be reported next; infinity without any."""
    return min((_report_at(one) for one in job.generations if _is_deleted(one)), default=math.inf)


def _is_deleted(generation: Generation) -> bool:
    """Return True for machines that are being deleted; hosts that stay are only given back."""
    return generation.phase is Phase.RELEASING and bool(generation.maker)


def _report_at(generation: Generation) -> float:
    if not generation.condemned:
        return math.inf
    return generation.condemned + OVERDUE_AFTER_S + generation.reports * OVERDUE_AGAIN_S


def noted(job: Job, time: float) -> Job:
    """Note when the deletion of machines was decided, and that they are reported."""
    for one in job.generations:
        if not _is_deleted(one):
            continue
        if not one.condemned:
            job = with_generation(job, one.number, condemned=time)
        elif time >= _report_at(one):
            passed = math.floor((time - one.condemned - OVERDUE_AFTER_S) / OVERDUE_AGAIN_S)
            job = with_generation(job, one.number, reports=passed + 1)  # one report for all that were missed
    return job


def overdue(job: Job) -> tuple[Generation, ...]:
    """Return the generations that were reported and are not gone."""
    return tuple(one for one in job.generations if _is_deleted(one) and one.reports)
