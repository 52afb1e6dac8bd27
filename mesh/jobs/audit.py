"""Ownership of machines in the cloud, by their labels and the rows of the store; and what may be deleted. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum

from msgspec import Struct

from mesh.core.tpu import accelerator_of
from mesh.hosts.tpu.machines import GENERATION_LABEL, JOB_LABEL, STORE_LABEL, Machine
from mesh.jobs.costs import PriceOf, zone_of_generation
from mesh.jobs.values import Job, Phase

LOOK_INTERVAL_S = 60.0  # between the two looks that must agree before something is deleted
Place = tuple[str, str]  # project and zone
STOPPED_STATES = ("PREEMPTED", "TERMINATED", "STOPPED")  # of nodes that cost nothing


class Whose(Enum):
    """Ownership of a machine."""

    OWNED = "owned"  # a job has it
    CONDEMNED = "condemned"  # a job has given it back, and it is being deleted
    ORPHAN = "orphan"  # the row of its generation is released, or its job has ended
    UNKNOWN = "unknown"  # it has the label of this store, and the store has no row for it
    OTHER = "other store"  # of another store of jobs
    NOBODYS = "nobody's"  # without labels of mesh
    MISSING = "missing"  # a job has it, and it is not there


DELETABLE = (Whose.CONDEMNED, Whose.ORPHAN)
BY_NAME = (Whose.UNKNOWN,)
TROUBLES = (Whose.ORPHAN, Whose.UNKNOWN, Whose.MISSING)


class Owned(Struct, frozen=True, kw_only=True):
    """A generation of machines, as the store has it."""

    job: int
    job_name: str
    generation: int
    name: str
    phase: Phase
    is_over: bool  # its job has ended
    made_by: int = 0  # the job that it was made for, whose labels it has; 0: its job
    made_number: int = 0  # with made_by: its number there
    project: str
    zones: tuple[str, ...]  # in which it may be

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of job and generation that its machines have."""
        return str(self.made_by or self.job), str(self.made_number or self.generation)


class Found(Struct, frozen=True, kw_only=True):
    """A machine of the cloud, or one that is missing there."""

    whose: Whose
    name: str
    project: str
    zone: str
    state: str = ""  # as the API calls it; "": it is missing
    kind: str = "node"  # "node" or "request"
    accelerator: str = ""
    pricing: str = ""
    chips: int = 0
    store: str = ""  # of the label
    job: int | None = None  # None: no row of this store
    created: float = 0.0  # seconds since the epoch; 0: unknown
    per_hour: float | None = None  # None: its price is unknown
    request: str = ""  # of a node: the request that it belongs to

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields by which two looks show the same machine."""
        return self.kind, self.project, self.zone, self.name, self.created


def owned_by(jobs: Iterable[Job]) -> list[Owned]:
    """Return the generations of machines that jobs have or had, each with its last owner."""
    found = []
    for job in jobs:
        tpu = job.spec.machines.tpu
        if tpu is None:
            continue
        for one in job.generations:
            if one.is_handed:
                continue  # another job has it
            zone = zone_of_generation(job, one)
            found.append(
                Owned(
                    job=job.id,
                    job_name=job.spec.name,
                    generation=one.number,
                    name=one.name,
                    phase=one.phase,
                    is_over=job.state.is_final,
                    made_by=one.made_by,
                    made_number=one.made_number,
                    project=tpu.project,
                    zones=tuple(zone.split("+")) if zone else tpu.zones,
                )
            )
    return found


def places_of(jobs: Iterable[Job]) -> list[Place]:
    """Return every project and zone that a job has named."""
    specs = [job.spec.machines.tpu for job in jobs if job.spec.machines.tpu is not None]
    return list(dict.fromkeys((tpu.project, zone) for tpu in specs for zone in tpu.zones))


def classify(machine: Machine, store: str, rows: Mapping[tuple[str, str], Owned]) -> tuple[Whose, Owned | None]:
    """Return whose a machine is. rows: by the labels of job and generation"""
    label = machine.labels.get(STORE_LABEL, "")
    if not label:
        return Whose.NOBODYS, None
    if label != store:
        return Whose.OTHER, None
    row = rows.get((machine.labels.get(JOB_LABEL, ""), machine.labels.get(GENERATION_LABEL, "")))
    if row is None or not re.fullmatch(re.escape(row.name) + r"(-[0-9]+)?", machine.name):
        return Whose.UNKNOWN, None
    if row.phase is Phase.RELEASED or row.is_over:
        return Whose.ORPHAN, row
    return (Whose.CONDEMNED if row.phase is Phase.RELEASING else Whose.OWNED), row


def audit(store: str, rows: Iterable[Owned], seen: Mapping[Place, Sequence[Machine]], price_of: PriceOf) -> list[Found]:
    """Return every machine of some zones, and those that jobs have and that are not there.

    store: six characters of its id, as labels have it
    rows: as the store has them after the zones were asked; seen: complete answers alone
    """
    listed = list(rows)
    by_label = {row.labels: row for row in listed}
    found: list[Found] = []
    there: set[tuple[int, int]] = set()
    for machines in seen.values():
        for machine in machines:
            whose, row = classify(machine, store, by_label)
            if row is not None:
                there.add((row.job, row.generation))
            found.append(_found(machine, whose, row, price_of))
    for row in listed:
        is_held = row.phase is Phase.READY and not row.is_over
        if (
            is_held
            and (row.job, row.generation) not in there
            and all((row.project, zone) in seen for zone in row.zones)
        ):
            zone = "+".join(row.zones)
            found.append(Found(whose=Whose.MISSING, name=row.name, project=row.project, zone=zone, job=row.job))
    return found


def _found(machine: Machine, whose: Whose, row: Owned | None, price_of: PriceOf) -> Found:
    accelerator = accelerator_of(machine.accelerator)
    price = price_of(accelerator.kind, machine.zone, machine.pricing)
    is_free = machine.is_request or machine.state in STOPPED_STATES
    return Found(
        whose=whose,
        name=machine.name,
        project=machine.project,
        zone=machine.zone,
        state=machine.state,
        kind="request" if machine.is_request else "node",
        accelerator=machine.accelerator,
        pricing=machine.pricing,
        chips=accelerator.chips * machine.slices,
        store=machine.labels.get(STORE_LABEL, ""),
        job=row.job if row is not None else None,
        created=machine.created,
        per_hour=0.0 if is_free else None if price is None else price * accelerator.chips,
        request=machine.request,
    )


def due(first: Iterable[Found], second: Iterable[Found], names: Collection[str] = ()) -> list[Found]:
    """Return what may be deleted after two complete looks: those that both show with the same right to delete them.

    names: of machines without a row, which a person has named; no other name has any effect
    """
    before = {one.identity: one for one in first if _may_go(one, names)}
    return [one for one in second if _may_go(one, names) and one.identity in before]


def _may_go(one: Found, names: Collection[str]) -> bool:
    return one.whose in DELETABLE or (one.whose in BY_NAME and one.name in names)


def in_order(found: Sequence[Found]) -> list[Found]:
    """Return what is deleted by itself: requests, which take their nodes with them, and nodes without a request."""
    requests = {(one.project, one.zone, one.name) for one in found if one.kind == "request"}
    return [one for one in found if one.kind == "request" or (one.project, one.zone, one.request) not in requests]


class Quota(Struct, frozen=True, kw_only=True):
    """The chips of one kind, zone and pricing."""

    pool: str
    used: int = 0  # of nodes that are there
    asked: int = 0  # of requests that wait
    idle: int = 0  # of requests and nodes that hold quota for nothing
    limit: float | None = None  # None: unknown
    holders: tuple[str, ...] = ()  # the names of those that hold it for nothing


IDLE_STATES = ("SUSPENDED", "FAILED")  # of requests: they hold quota until they are deleted
WAITING_STATES = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")  # of requests


def quotas(machines: Iterable[Machine], limit_of: Callable[[str], float | None]) -> list[Quota]:
    """Return the use of every quota, by its name. machines: complete lists of some zones"""
    listed = list(machines)
    nodes = {one.request for one in listed if not one.is_request}
    found: dict[str, Quota] = {}
    for one in listed:
        accelerator = accelerator_of(one.accelerator)
        pool = f"{accelerator.kind}/{one.zone}/{one.pricing}"
        before = found.get(pool, Quota(pool=pool, limit=limit_of(pool)))
        used, asked, idle, holders = before.used, before.asked, before.idle, before.holders
        chips = accelerator.chips * one.slices
        if not one.is_request:
            is_idle = one.state in STOPPED_STATES
            used, idle = used + (0 if is_idle else chips), idle + (chips if is_idle else 0)
            holders = (*holders, one.name) if is_idle else holders
        elif one.state in IDLE_STATES:
            idle, holders = idle + chips, (*holders, one.name)
        elif one.state in WAITING_STATES and one.name not in nodes:
            asked += chips
        found[pool] = Quota(pool=pool, used=used, asked=asked, idle=idle, limit=before.limit, holders=holders)
    return [found[pool] for pool in sorted(found)]
