"""Hosts of clusters. Those that `mesh up` has made are held by a job without a command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mesh.app.owner import user_name
from mesh.config.tpusource import TpuMade
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, NoHosts
from mesh.core.paths import jobs_directory
from mesh.hosts.interfaces import Purpose, Reporter
from mesh.hosts.sources import source_of

if TYPE_CHECKING:
    from mesh.jobs.values import Job, Row


def find_hosts(cluster: Cluster, purpose: Purpose, *, is_quiet: bool = False) -> Cluster:
    """Return a cluster with its hosts. is_quiet: show no progress. Raises MeshError if they cannot be found."""
    if not isinstance(cluster.source, TpuMade):
        source = source_of(cluster)
        if isinstance(source, Reporter):
            source.is_quiet = is_quiet
        return source.find(cluster, purpose)
    job = held_job(cluster.name, user_name())
    if job is None:
        raise NoHosts(f"{cluster.name} is not up", hint=f"mesh up {cluster.name}")
    found = hosts_held(job)
    if found is None:
        raise MeshError(
            f"{cluster.name} is not up yet: {job.reason or job.state.value}", hint=f"mesh up {cluster.name}"
        )
    note = f"made by `mesh up`, held by job {job.id}"
    return replace(cluster, hosts=found.hosts, slices=found.slices, source=None, note=note)


def kept_rows(user: str) -> list[Row]:
    """Return the jobs that keep machines of a user for the next job. Raises MeshError."""
    if not (os.environ.get("MESH_STORE") or jobs_directory(os.environ).exists()):
        return []  # nothing of jobs is imported where there are none
    from mesh.jobs.place import store_place
    from mesh.jobs.reading import Selection, rows

    place, selection = store_place(os.environ), Selection(states=("running",), user=user)
    if not place.url:
        return [row for row in rows(place.file, selection) if row.kept_until]
    from mesh.jobs.store import open_store
    from mesh.jobs.values import row_of

    store = open_store(place)
    try:
        return [row_of(job) for job in store.jobs(active_only=True, user=user) if job.kept_until]
    finally:
        store.close()


def held_job(cluster: str, user: str) -> Job | None:
    """Return the job that holds the machines of a cluster; None without any. Raises MeshError."""
    from mesh.jobs.place import store_place
    from mesh.jobs.reading import read_jobs

    place = store_place(os.environ)
    if place.url:
        from mesh.jobs.store import open_store

        store = open_store(place)
        try:
            jobs = store.jobs()
        finally:
            store.close()
    else:
        jobs = read_jobs(place.file)

    found = [job for job in jobs if job.spec.holds == cluster and job.spec.user == user and not job.state.is_final]
    return found[-1] if found else None


def hosts_held(job: Job) -> Cluster | None:
    """Return the hosts of a job that holds machines; None while they are not all there. Raises MeshError."""
    from mesh.jobs.values import Phase, State

    generation = job.generation
    if job.state is not State.RUNNING or generation is None or generation.phase is not Phase.READY:
        return None
    from mesh.app.machines import hosts_of_generation

    return hosts_of_generation(job, generation.hosts)
