"""Machines of jobs that a scheduler gives: clusters of cluster.yaml whose hosts mesh makes."""

from __future__ import annotations

from msgspec.structs import replace

from mesh.api.choosing import named_clusters
from mesh.app.jobhosts import host_maker
from mesh.config.carried import SOURCES, carrier_spec
from mesh.config.podspec import MadePods
from mesh.config.slurm import MadeAllocation
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.job import MachinesSpec

SCHEDULED = {"pods": "set of pods", "slurm": "allocation"}  # by backend: the hosts of a scheduler


def carried(machines: MachinesSpec, clusters_file: str, place: str) -> MachinesSpec | None:
    """Return machines that are made by the source of their cluster; None for hosts that are there.

    place: of the key, for messages. Raises UsageError.
    """
    named = named_clusters(machines.cluster, clusters_file)
    scheduled = [one for one in named if one.backend in SCHEDULED]
    if not scheduled:
        return None
    cluster = scheduled[0]
    if not isinstance(cluster.source, MadePods | MadeAllocation):
        raise UsageError(
            f"{place}: {cluster.name}: jobs make their own hosts, and use no existing {SCHEDULED[cluster.backend]}",
            hint=f"mesh run -d {machines.cluster} COMMAND",
        )
    if machines.cluster != cluster.name:
        raise UsageError(
            f"{place}: {machines.cluster}: a job gets all hosts of {cluster.name}, and no others",
            hint=f"machines: {{cluster: {cluster.name}, hosts: 2}} takes fewer of them",
        )
    if machines.login or machines.login_key:
        raise UsageError(f"{place}: {cluster.name}: ssh: has no meaning there", hint="leave ssh: out")
    cluster = _sized(cluster, machines.hosts, place)
    maker = SOURCES[type(cluster.source)] if cluster.source is not None else ""
    spec = carrier_spec(host_maker(maker).fixed(cluster))
    return replace(
        machines, hosts=0, maker=maker, pool=f"{maker}/{cluster.name}", units=max(1, spec.nodes), carrier=spec
    )


def _sized(cluster: Cluster, hosts: int, place: str) -> Cluster:
    """Return a cluster with so many hosts; 0: all. Raises UsageError."""
    source = cluster.source
    assert isinstance(source, MadePods | MadeAllocation)
    if not hosts:
        return cluster
    if isinstance(source, MadePods) and source.groups:
        raise UsageError(f"{place}: hosts: {cluster.name} has groups, and a job gets all of them")
    if hosts > source.nodes > 0:
        raise UsageError(f"{place}: hosts: {cluster.name} has {source.nodes}, and not {hosts}")
    if isinstance(source, MadePods):
        return replace(cluster, source=replace(source, nodes=hosts))
    return replace(cluster, source=replace(source, request={**source.request, "nodes": str(hosts)}))
