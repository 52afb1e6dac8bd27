"""Generations of machines that are made for a job: their names, their zones, and the time by which they are ready."""

from __future__ import annotations

import math
import re

from msgspec.structs import replace

from mesh.core.job import JobSpec
from mesh.jobs.values import Generation, Job, Phase, State

LABEL = "mesh"  # the beginning of a generation's name where nothing else is asked for
PREFIX_CHARACTERS = 30  # so that names have 61 characters at most, with the number of a slice behind
LOST, CAPACITY = "lost", "capacity"  # ends of a generation
LOSSES_COUNT = 2  # losses within LOSSES_S, after which a zone is tried last
LOSSES_S = 3600.0
VALID_SLACK_S = 120.0  # for the API to end a request that has waited for as long as it may


def generation_name(spec: JobSpec, store: str, job: int, number: int) -> str:
    """Return the name of a generation, PREFIX-STORE6-JOB-gN; no other one ever has it.

    >>> from mesh.core.job import CommandSpec, MachinesSpec
    >>> spec = JobSpec(name="Train 8B", user="me", machines=MachinesSpec(), command=CommandSpec(words=()))
    >>> generation_name(spec, "abc123", 7, 2)
    'mesh-abc123-7-g2'
    """
    tpu = spec.machines.tpu
    prefix = LABEL if tpu is None else (tpu.prefix or spec.name)
    if spec.machines.carrier is not None:
        prefix = f"{LABEL}-{spec.name}"
    prefix = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")[:PREFIX_CHARACTERS].strip("-")
    if not prefix[:1].isalpha():
        prefix = f"{LABEL}-{prefix}".strip("-")
    return f"{prefix}-{store}-{job}-g{number}"


def next_zones(job: Job) -> tuple[str, ...]:
    """Return the zones for the next generation, that to be tried first at the front; () where machines have none.

    Zones are tried in the order of the file. One without capacity, or that took machines away twice within an hour,
    goes to the end.
    """
    tpu = job.spec.machines.tpu
    zones = list(tpu.zones) if tpu is not None else []
    lost: dict[str, list[float]] = {}
    for one in job.generations:
        if one.zone not in zones:
            continue
        moves = one.end == CAPACITY
        if one.end == LOST:
            before = lost.setdefault(one.zone, [])
            before.append(one.ended)
            moves = len(before) >= LOSSES_COUNT and before[-1] - before[-LOSSES_COUNT] <= LOSSES_S
        if moves:
            zones.remove(one.zone)
            zones.append(one.zone)
    return tuple(zones)


def pools_of(job: Job) -> tuple[str, ...]:
    """Return the quotas of which a job's next generation may use one, that to be tried first at the front.

    () for machines that are not made.
    """
    machines = job.spec.machines
    if machines.tpu is not None and machines.tpu.zones:
        return tuple(machines.tpu.pool(zone) for zone in next_zones(job))
    return (machines.pool or machines.maker,) if machines.maker else ()


def place_of(job: Job, pool: str) -> tuple[str, str]:
    """Return the zone and the quota of the next generation. pool: that the queue has granted, which may name none"""
    zones, pools = next_zones(job), pools_of(job)
    if not zones or pool not in pools:  # hosts that are there, and the grants of an earlier version
        return (zones[0] if zones else ""), job.spec.machines.pool
    return zones[pools.index(pool)], pool


def overdue_at(job: Job) -> float:
    """Return the time from which a look that finds machines not ready gives them back; infinity if there is none."""
    machines, generation = job.spec.machines, job.generation
    if generation is None or job.state is not State.REQUESTING or generation.phase is not Phase.ASKED:
        return math.inf
    if (carrier := machines.carrier) is not None:
        return generation.making_since + carrier.start_timeout if generation.making_since else math.inf
    if (tpu := machines.tpu) is None:
        return math.inf
    if generation.making_since:
        return generation.making_since + tpu.make_for
    return generation.asked + tpu.valid_for + VALID_SLACK_S if generation.asked and tpu.valid_for else math.inf


def with_generation(job: Job, number: int, **changes: object) -> Job:
    """Change the generation with a number."""
    changed = tuple(replace(one, **changes) if one.number == number else one for one in job.generations)
    return replace(job, generations=changed)


def ended(generation: Generation, state: State, time: float) -> dict[str, object]:
    """Return how a generation has ended that its job has not given back itself."""
    if generation.phase in (Phase.RELEASING, Phase.RELEASED):
        return {}
    return {"end": CAPACITY if state is State.REQUESTING else LOST, "ended": time}
