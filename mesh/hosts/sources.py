"""Table of the sources of hosts, one entry each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mesh.config.jobname import JobId
from mesh.config.kubernetes import Pods
from mesh.config.podspec import MadePods
from mesh.config.slurm import Allocation, MadeAllocation
from mesh.config.tpu import TpuName
from mesh.config.tpusource import TpuMade
from mesh.core.cluster import Cluster, Source
from mesh.core.events import CONNECTING
from mesh.core.outcome import Outcome
from mesh.hosts.file import FileSource
from mesh.hosts.interfaces import HostSource

CHECK = "check"  # the step of connecting at which a host contradicts its source


def _tpu() -> HostSource:
    from mesh.hosts.tpu.discovery import TpuSource

    return TpuSource()


def _job() -> HostSource:
    from mesh.hosts.job import JobSource

    return JobSource()


def _made() -> HostSource:
    from mesh.hosts.made import MadeSource

    return MadeSource()


def _pods() -> HostSource:
    from mesh.hosts.kubernetes.source import PodSource

    return PodSource()


def _made_pods() -> HostSource:
    from mesh.hosts.kubernetes.made import MadePodSource

    return MadePodSource()


def _allocation() -> HostSource:
    from mesh.hosts.slurm.there import AllocationSource

    return AllocationSource()


def _made_allocation() -> HostSource:
    from mesh.hosts.slurm.made import MadeAllocationSource

    return MadeAllocationSource()


SOURCES: Mapping[type[Source | None], Callable[[], HostSource]] = {
    type(None): FileSource,
    TpuName: _tpu,
    TpuMade: _made,
    JobId: _job,
    Pods: _pods,
    MadePods: _made_pods,
    Allocation: _allocation,
    MadeAllocation: _made_allocation,
}


def source_of(cluster: Cluster) -> HostSource:
    """Return the source of a cluster's hosts."""
    return SOURCES[type(cluster.source)]()


def forget_wrong_hosts(cluster: Cluster, outcome: Outcome) -> None:
    """Have sources look for hosts anew the next time, if a host could not be reached or contradicts its source."""
    failed = [cluster.hosts[one.node] for one in outcome.failures if one.step in (*CONNECTING, CHECK)]
    for part in cluster.parts or (cluster,):
        if any(host in part.hosts for host in failed):
            source_of(part).forget(part)
