"""Requests for hosts of a job: the sources of cluster.yaml that make pods or an allocation, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from mesh.config.podspec import MadePods
from mesh.config.slurm import MadeAllocation
from mesh.core.cluster import Cluster, Source
from mesh.core.errors import UsageError
from mesh.core.job import CarrierSpec

JOB_HOLD_S = 86400.0  # that hosts of a job wait for mesh serve, which may be away, before they end themselves
KINDS: Mapping[str, type[MadePods] | type[MadeAllocation]] = {"kubernetes": MadePods, "slurm": MadeAllocation}
SOURCES: Mapping[type[Source], str] = {MadePods: "kubernetes", MadeAllocation: "slurm"}  # names of makers


def carrier_spec(cluster: Cluster) -> CarrierSpec:
    """Return the request for the hosts of a cluster that mesh makes."""
    source = cluster.source
    assert isinstance(source, MadePods | MadeAllocation)
    fields = msgspec.to_builtins(source)
    return CarrierSpec(
        cluster=replace(cluster, source=None, note=""),
        source=fields,
        nodes=source.nodes,
        start_timeout=source.start_timeout,
        asked=asked_for(source),
    )


def asked_for(source: MadePods | MadeAllocation) -> str:
    """Return what is asked for, for people."""
    if isinstance(source, MadePods):
        return f"{source.nodes} pods of {source.images}"
    count = f"{source.nodes} nodes" if source.nodes else source.request.get("nodelist", "nodes")
    more = [f"{key} {value}" for key, value in source.request.items() if key in ("partition", "gres", "time")]
    return ", ".join([f"{count} of Slurm", *more])


def with_source(maker: str, spec: CarrierSpec) -> Cluster:
    """Return the cluster of a request with its source, as a job wants it: its hosts wait long for mesh serve.

    Raises UsageError if another version of mesh has written it.
    """
    try:
        source = msgspec.convert(spec.source, KINDS[maker])
    except msgspec.ValidationError as error:
        raise UsageError(f"{spec.cluster.name}: its description is of another version of mesh ({error})") from error
    hold = max(source.hold, JOB_HOLD_S)
    if isinstance(source, MadePods):  # pods that run wait for those that do not
        return replace(spec.cluster, source=replace(source, hold=hold, start_timeout=max(hold, source.start_timeout)))
    return replace(spec.cluster, source=replace(source, hold=hold))
