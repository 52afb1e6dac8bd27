"""Machines that were made for jobs: their list, owners and costs, and the deletion of those that are left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from mesh.api.costing import prices_here
from mesh.api.jobstore import JobStore, chosen
from mesh.config.places import config_directory
from mesh.config.quotas import FILE as QUOTAS
from mesh.config.quotas import read_quotas
from mesh.config.tpu import TpuName
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.tpu.machines import Machine, Seen
from mesh.jobs.audit import (
    BY_NAME,
    LOOK_INTERVAL_S,
    Found,
    Place,
    Quota,
    Whose,
    audit,
    due,
    in_order,
    owned_by,
    places_of,
    quotas,
)
from mesh.jobs.costs import Cost, Use, costs_by, uses_of, zone_of_generation
from mesh.jobs.reading import Selection
from mesh.jobs.values import Generation, Job, Phase

GROUPS = ("job", "user", "zone", "day")
Look = Callable[[str, str], Seen]  # of a project and a zone
Remove = Callable[[Found], None]  # asks the API to delete it; raises MeshError


class HeldMachines(Struct, frozen=True, kw_only=True):
    """A generation of machines, as the store has it."""

    job: int
    job_name: str
    name: str
    accelerator: str
    slices: int
    pricing: str
    project: str
    zone: str
    phase: str
    hosts: tuple[str, ...]
    since: float  # seconds since the epoch
    chip_hours: float
    cost: float | None  # so far; None: a price is unknown
    state: str  # of the job, with its reason


class Audit(Struct, frozen=True, kw_only=True):
    """All machines of the zones that were asked."""

    found: tuple[Found, ...]
    asked: tuple[str, ...]  # zones whose answer is complete
    silent: tuple[str, ...] = ()  # zones without a complete answer, each with the reason
    silent_places: tuple[Place, ...] = ()  # the same zones
    currency: str = ""


class Collected(Struct, frozen=True, kw_only=True):
    """Machines that `gc` has deleted, or would delete."""

    deleted: tuple[Found, ...]
    failed: tuple[str, ...] = ()  # names, each with the reason
    silent: tuple[str, ...] = ()  # zones without a complete answer: nothing of them is deleted


class Bill(Struct, frozen=True, kw_only=True):
    """Estimated costs."""

    costs: tuple[Cost, ...]
    currency: str = ""
    date: str = ""  # of the prices


# ---- from the store alone


def list_machines(*, every: bool = False) -> list[HeldMachines]:
    """Return the machines that jobs have; every: also those that were given back. Raises MeshError."""
    now, prices, store = time.time(), prices_here(), JobStore()
    found = _carried(store, every=every)
    for job, uses in _uses(store):
        tpu = job.spec.machines.tpu
        assert tpu is not None
        by_begin = {(use.name, use.begin): use for use in uses}
        for one in job.generations:
            if one.phase is Phase.RELEASED and not every:
                continue
            use = by_begin.get((one.name, one.billed))
            hours = use.chip_hours(now) if use else 0.0
            price = prices.of(tpu.kind, use.zone, tpu.pricing.value) if use else 0.0
            found.append(
                HeldMachines(
                    job=job.id,
                    job_name=job.spec.name,
                    name=one.name,
                    accelerator=tpu.accelerator,
                    slices=tpu.slices,
                    pricing=tpu.pricing.value,
                    project=tpu.project,
                    zone=zone_of_generation(job, one),
                    phase=phase_of(job, one),
                    hosts=one.hosts,
                    since=one.granted,
                    chip_hours=hours,
                    cost=None if price is None else hours * price,
                    state=f"{job.state.value}{f': {job.reason}' if job.reason else ''}",
                )
            )
    return sorted(found, key=lambda one: one.job)


def _carried(store: JobStore, *, every: bool) -> list[HeldMachines]:
    """Return the hosts that schedulers have given to jobs, which have no price here."""
    return [
        HeldMachines(
            job=job.id,
            job_name=job.spec.name,
            name=one.name,
            accelerator=carrier.asked,
            slices=1,
            pricing="",
            project="",
            zone=job.spec.machines.cluster,
            phase=phase_of(job, one),
            hosts=one.hosts,
            since=one.granted,
            chip_hours=0.0,
            cost=0.0,
            state=f"{job.state.value}{f': {job.reason}' if job.reason else ''}",
        )
        for job in store.jobs()
        if (carrier := job.spec.machines.carrier) is not None
        for one in job.generations
        if every or one.phase is not Phase.RELEASED
    ]


def phase_of(job: Job, generation: Generation) -> str:
    """Return the phase of machines, for people."""
    if generation.is_handed:
        return "handed on"
    return "kept" if job.kept_until and generation.phase is Phase.READY else generation.phase.value


def cost(words: Sequence[int | str] = (), *, by: str = "job") -> Bill:
    """Return the estimated costs of jobs, all (), by "job", "user", "zone" or "day". Raises UsageError, MeshError."""
    if by not in GROUPS:
        raise UsageError(f"--by: expected {', '.join(GROUPS)}, found {by!r}")
    store = JobStore()
    ids = {row.id for row in chosen(store.rows(Selection(deleted=True)), list(map(str, words)))} if words else None
    uses = [use for job, found in _uses(store) if ids is None or job.id in ids for use in found]
    prices = prices_here()
    return Bill(costs=tuple(costs_by(by, uses, time.time(), prices.of)), currency=prices.currency, date=prices.date)


def _uses(store: JobStore) -> list[tuple[Job, list[Use]]]:
    """Return the jobs with machines that are made, each with its use of them."""
    jobs = [job for job in store.jobs() if job.spec.machines.tpu is not None]
    return [(job, uses_of(job)) for job in jobs]


# ---- from the API


def audit_machines(*, every: bool = False, look: Look | None = None, of_jobs: bool = False) -> Audit:
    """Ask every zone that a job has named, gcloud's and those of cluster.yaml, and return all machines of mesh.

    every: also machines that are nobody's; of_jobs: only zones that a job has named
    Raises UsageError and MeshError.
    """
    store = JobStore()
    before, prices = store.jobs(), prices_here()
    seen = _look(places_of(before) if of_jobs else _places(before), look or _ask)
    jobs = store.jobs()  # after the look: whatever was made meanwhile has a row by now
    complete = {place: one.machines for place, one in seen.items() if one.complete}
    ready = {(row.job, row.generation) for row in owned_by(before) if row.phase is Phase.READY}
    found = audit(store.id[:6], owned_by(jobs), complete, prices.of)
    kept = [one for one in found if one.whose is not Whose.MISSING or _was_ready(one, jobs, ready)]
    return Audit(
        found=tuple(one for one in kept if every or one.whose is not Whose.NOBODYS),
        asked=tuple(f"{zone} of {project}" for project, zone in complete),
        silent=_silent(seen),
        silent_places=tuple(place for place, one in seen.items() if not one.complete),
        currency=prices.currency,
    )


def _was_ready(missing: Found, jobs: Sequence[Job], ready: set[tuple[int, int]]) -> bool:
    """Return True if missing machines were ready already before the zones were asked."""
    return any(row.name == missing.name and (row.job, row.generation) in ready for row in owned_by(jobs))


def collect(
    names: Sequence[str] = (),
    *,
    dry_run: bool = False,
    look: Look | None = None,
    remove: Remove | None = None,
    interval: float = LOOK_INTERVAL_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Collected:
    """Delete machines that jobs have given back, orphans, and those unknown ones that are named.

    Two complete looks must agree. interval: seconds between them. dry_run: look once and delete nothing
    Raises UsageError for a name that may not be deleted, and MeshError.
    """
    first = audit_machines(every=True, look=look)
    _check_names(names, first)
    if dry_run:
        return Collected(deleted=tuple(in_order(due(first.found, first.found, names))), silent=first.silent)
    if not due(first.found, first.found, names):
        return Collected(deleted=(), silent=first.silent)
    sleep(interval)
    second = audit_machines(every=True, look=look)
    deleted, failed = [], []
    for one in in_order(due(first.found, second.found, names)):
        try:
            (remove or _delete)(one)
            deleted.append(one)
        except MeshError as error:
            failed.append(f"{one.name}: {error}")
    silent = tuple(dict.fromkeys((*first.silent, *second.silent)))
    return Collected(deleted=tuple(deleted), failed=tuple(failed), silent=silent)


def _check_names(names: Sequence[str], seen: Audit) -> None:
    by_name = {one.name: one for one in seen.found}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--yes: there is no machine {name}", hint="mesh job audit")
        whose = by_name[name].whose
        if whose not in BY_NAME:
            raise UsageError(
                f"--yes: {name} is {whose.value}; --yes takes only unknown machines", hint="mesh job audit --all"
            )


def quota() -> tuple[list[Quota], tuple[str, ...]]:
    """Return the use of quotas in every zone, and zones without a complete answer. Raises UsageError, MeshError."""
    limits = read_quotas(config_directory(os.environ) / QUOTAS)
    seen = _look(_places(JobStore().jobs()), _ask)
    machines = [machine for one in seen.values() if one.complete for machine in one.machines]
    found = quotas(machines, limits.get)
    listed = {one.pool for one in found}
    unused = [Quota(pool=pool, limit=limits[pool]) for pool in limits if pool not in listed]
    return [*found, *unused], _silent(seen)


def _places(jobs: Sequence[Job]) -> list[Place]:
    """Return the projects and zones to ask: those of jobs, of cluster.yaml, and gcloud's."""
    from mesh.api.choosing import cluster_file
    from mesh.hosts.tpu.gcloud import zone_of

    names = [one.source for one in cluster_file("").clusters.values() if isinstance(one.source, TpuName)]
    found = places_of(jobs)
    for name in [*names, TpuName(name="any")]:
        try:
            zone = zone_of(name, os.environ)
        except UsageError:
            continue
        found.append((zone.project, zone.zone))
    if not found:
        raise UsageError("no zone to ask: no job has asked for machines", hint="gcloud config set compute/zone ZONE")
    return list(dict.fromkeys(found))


def _look(places: Sequence[Place], look: Look) -> Mapping[Place, Seen]:
    return {place: look(*place) for place in places}


def _silent(seen: Mapping[Place, Seen]) -> tuple[str, ...]:
    return tuple(
        f"{zone} of {project}: {one.why or 'no complete answer'}"
        for (project, zone), one in seen.items()
        if not one.complete
    )


def _ask(project: str, zone: str) -> Seen:
    from mesh.hosts.tpu import google
    from mesh.hosts.tpu.gcloud import zone_of

    return google.list_machines(zone_of(TpuName(name="any", project=project, zone=zone), os.environ), os.environ)


def _delete(one: Found) -> None:
    from mesh.hosts.tpu import google
    from mesh.hosts.tpu.gcloud import zone_of

    zone = zone_of(TpuName(name="any", project=one.project, zone=one.zone), os.environ)
    machine = Machine(
        name=one.name, state=one.state, is_request=one.kind == "request", zone=one.zone, project=one.project
    )
    google.delete_machine(machine, os.environ, zone.endpoint)
