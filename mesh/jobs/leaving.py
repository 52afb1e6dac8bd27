"""Condemned machines that a job does not wait for: it asks for others before they are proved gone.

They are deleted and looked at until they are gone. No job ends before that. No rank starts before that either, unless
the lost machines are proved ended, and an answer does not list them: a machine that Google has preempted runs nothing.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from mesh.core.tpu import Recreate
from mesh.jobs.events import MachinesPending
from mesh.jobs.generations import with_generation
from mesh.jobs.orders import Delete, Fetch
from mesh.jobs.values import Generation, Job, Phase, State

LEAVE_AFTER_S = 60.0  # from the API's first answer that machines are being deleted
DELETE_AGAIN_S = 30.0  # until an order to delete is repeated; meanwhile looks find out if they are gone
LOST = "lost"  # the end of a generation that was taken away


def leave_at(job: Job) -> float:
    """Return when a job stops waiting until its condemned machines are gone; infinity if it does not."""
    generation, tpu = job.generation, job.spec.machines.tpu
    if job.state is not State.RECOVERING or generation is None or generation.phase is not Phase.RELEASING:
        return math.inf
    if tpu is not None and tpu.recreate is Recreate.EAGER and generation.end == LOST:
        return generation.ended
    if generation.is_over and generation.unlisted_since:  # its quota is free
        return generation.unlisted_since
    return generation.deleting_since + LEAVE_AFTER_S if generation.deleting_since else math.inf


def leave(job: Job, time: float) -> Job:
    """Have a job leave its condemned machines, if it is time."""
    if time < leave_at(job):
        return job
    generation = job.generations[-1]
    is_open = is_being_deleted(job, generation.number)
    # Output that was not fetched in time is deleted now: its order must not hold up those of the next attempt.
    job = replace(job, open=tuple(one for one in job.open if not isinstance(one.order, Fetch)))
    return _changed(_closed(job, generation.number), generation.number, time + DELETE_AGAIN_S if is_open else time)


def delete_order(job: Job, time: float) -> Delete | None:
    """Return the order to delete machines that were left, if one is due."""
    for one in job.left:
        if time >= one.delete_at and not is_being_deleted(job, one.number):
            return Delete(generation=one.number, name=one.name)
    return None


def is_being_deleted(job: Job, number: int) -> bool:
    """Return True if the order to delete a generation has no final answer yet."""
    return any(isinstance(one.order, Delete) and one.order.generation == number for one in job.open)


def is_left(job: Job, number: int) -> bool:
    """Return True for a generation that a job has left, and that is not proved gone."""
    return any(one.number == number for one in job.left)


def postponed(job: Job, number: int, time: float) -> Job:
    """Close the order to delete a generation that was left; it is due again after a pause."""
    return _changed(_closed(job, number), number, time + DELETE_AGAIN_S)


def gone(job: Job, number: int) -> Job:
    """Note that a generation is gone, if it was left."""
    if not is_left(job, number):
        return job
    changed = tuple(_released(one) if one.number == number else one for one in job.generations)
    return replace(_closed(job, number), generations=changed)


def noted(job: Job, event: MachinesPending) -> Job:
    """Note that the API shows condemned machines as being deleted, or no more."""
    generation = next((one for one in job.generations if one.number == event.generation), None)
    if generation is None or generation.phase is not Phase.RELEASING:
        return job
    deleting = generation.deleting_since or (event.time if event.is_deleting else 0.0)
    unlisted = generation.unlisted_since or (event.time if event.is_unlisted and generation.is_over else 0.0)
    return with_generation(job, generation.number, deleting_since=deleting, unlisted_since=unlisted)


def revived(job: Job, number: int) -> Job:
    """Note that condemned machines, which were proved ended, are listed as ready: ranks may run there after all."""
    generation = next((one for one in job.generations if one.number == number), None)
    if generation is None or generation.phase is not Phase.RELEASING or not generation.is_over:
        return job
    return with_generation(job, number, is_over=False, unlisted_since=0.0)


def wake_times(job: Job) -> list[float]:
    """Return the times at which a Timer lets machines be left, or deleted again."""
    return [leave_at(job), *(one.delete_at for one in job.left if not is_being_deleted(job, one.number))]


def _released(generation: Generation) -> Generation:
    return replace(generation, phase=Phase.RELEASED)


def _closed(job: Job, number: int) -> Job:
    rest = [one for one in job.open if not (isinstance(one.order, Delete) and one.order.generation == number)]
    return replace(job, open=tuple(rest))


def _changed(job: Job, number: int, delete_at: float) -> Job:
    changed = [
        replace(one, is_left=True, delete_at=delete_at) if one.number == number else one for one in job.generations
    ]
    return replace(job, generations=tuple(changed))
