"""List of clusters, logins to their hosts, and hosts that are made and deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from mesh.api.beginning import add_cluster as add_cluster
from mesh.api.beginning import init as init
from mesh.api.choosing import NOT_NAMED, cluster_file, selected, with_archive
from mesh.api.configuration import config as config
from mesh.api.configuration import schema_text as schema_text
from mesh.api.held import find_hosts, kept_rows
from mesh.app.carriers import carrier_of
from mesh.app.owner import user_name
from mesh.config.clusters import LOCAL, find_cluster
from mesh.config.jobname import BUILT_IN, built_in
from mesh.config.podspec import MadePods
from mesh.config.slurm import MadeAllocation
from mesh.config.tpusource import TpuMade
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.interfaces import Purpose
from mesh.hosts.sources import source_of

Notify = Callable[[str], None]
UP_S = 8 * 3600.0  # that pods and allocations stay by default


class ClusterLine(Struct, frozen=True, kw_only=True):
    """Line of ``mesh clusters``."""

    name: str
    hosts: tuple[str, ...]  # their names; none if the cluster cannot be used
    problem: str  # why it cannot; "" if it can
    slices: tuple[int, ...] = ()  # how many of the hosts each slice has; (): there are no slices
    note: str = ""  # how its hosts were found, for people; "": they stand in the file


def list_clusters(clusters_file: str = "", *, refresh: bool = False) -> list[ClusterLine]:
    """Return the built-in cluster and those of cluster.yaml, in its order. Raises UsageError if it cannot be read.

    refresh: look for all hosts anew, without anything that their sources have remembered
    """
    file, purpose = cluster_file(clusters_file), Purpose.REFRESH if refresh else Purpose.LIST
    listed = []
    for name, lines in ((LOCAL, ()), *((name, file.problems.get(name, ())) for name in file.names)):
        try:
            if lines:
                raise UsageError("\n".join(lines))
            cluster = find_cluster(name, file)
            found = find_hosts(cluster, purpose)
        except MeshError as error:
            problem = f"{error}\n{error.hint}".strip()
            listed.append(ClusterLine(name=name, hosts=(), problem=problem))
        else:
            hosts = tuple(host.name for host in found.hosts)
            listed.append(ClusterLine(name=name, hosts=hosts, problem="", slices=found.slices, note=found.note))
    return [*listed, *_kept_lines()]


def _kept_lines() -> list[ClusterLine]:
    """Return a line for each set of machines that is kept after the end of a job."""
    try:
        rows = kept_rows(user_name())
    except MeshError as error:  # clusters can be used without the store of jobs
        return [ClusterLine(name=f"{BUILT_IN}ID", hosts=(), problem=f"{error}\n{error.hint}".strip())]
    lines = []
    for row in rows:
        until = time.strftime("%H:%M", time.localtime(row.kept_until))
        note = f"kept after job {row.kept_from} until {until}; `mesh down job:{row.id}` deletes them"
        lines.append(ClusterLine(name=f"{BUILT_IN}{row.id}", hosts=row.machines, problem="", note=note))
    return lines


def cluster_names(clusters_file: str = "") -> list[str]:
    """Return the clusters that can be named, without a look for their hosts. Raises UsageError."""
    return [LOCAL, *cluster_file(clusters_file).clusters]


def host_names(cluster: str = "", clusters_file: str = "") -> list[str]:
    """Return the hosts of a cluster, or of all (""), as cluster.yaml lists them. Raises UsageError.

    No source is asked for hosts that the file does not list.
    """
    found = cluster_file(clusters_file).clusters
    chosen = [one for name, one in found.items() if cluster in ("", name)]
    return list(dict.fromkeys(host.name for one in chosen for host in one.hosts))


def ssh_argv(target: str, words: Sequence[str], clusters_file: str = "") -> list[str]:
    """Return the command line of a shell on the first host of a selector: ``pod:3``, ``pod``. Raises UsageError.

    words: a command to run there instead, as ssh or the cluster's ``command:`` takes it
    """
    cluster = selected(target, clusters_file, Purpose.ASK)
    argv = carrier_of(cluster).shell(cluster, cluster.hosts[0], words)
    if argv is None:
        raise UsageError(f"{target} is this machine", hint="mesh exec runs a command on every host of it")
    return argv


def up(
    cluster: str,
    clusters_file: str = "",
    *,
    notify: Notify = lambda text: None,
    seconds: float | None = None,
    adopts: bool = False,
) -> Cluster:
    """Make the hosts of a cluster by ``tpu:`` with ``accelerator:``, ``kubernetes:`` with ``image:``, or ``slurm:``.

    Return it with them. They stay until ``down``, also after this process.

    notify: gets a line for each change of their state
    seconds: that pods or an allocation stay (8 h); adopts: take over pods that this user has made on another machine
    Raises UsageError if mesh does not make the hosts of the cluster, and MeshError.
    """
    found = _made(cluster, clusters_file)
    if isinstance(found.source, MadePods):
        from mesh.api.podhold import up_pods

        return up_pods(with_archive(found), notify, UP_S if seconds is None else seconds, adopts=adopts)
    if isinstance(found.source, MadeAllocation):
        from mesh.api.slurmhold import up_allocation

        return up_allocation(found, notify, UP_S if seconds is None else seconds)
    from mesh.api.holding import hold_up

    return hold_up(found, notify)


def down(cluster: str, clusters_file: str = "", *, is_forced: bool = False, notify: Notify = lambda text: None) -> None:
    """Delete the hosts that ``up`` has made, or that are kept for the next job, and wait until they are gone.

    cluster: for kept ones job:ID, with the job that keeps them, or the one that has ended
    is_forced: also while a run is on, or hosts do not answer
    Raises UsageError if mesh does not make the hosts of the cluster, and MeshError, with status 75 if a run is on.
    """
    if cluster.startswith(BUILT_IN):
        from mesh.api.holding import kept_down

        named = find_cluster(cluster, cluster_file(clusters_file))
        return kept_down(named, built_in(cluster).job, notify, is_forced=is_forced)
    found = _made(cluster, clusters_file)
    if isinstance(found.source, MadePods):
        from mesh.api.podhold import down_pods

        return down_pods(found, notify, is_forced=is_forced)
    if isinstance(found.source, MadeAllocation):
        from mesh.api.slurmhold import down_allocation

        return down_allocation(found, notify, is_forced=is_forced)
    from mesh.api.holding import hold_down

    return hold_down(found, notify, is_forced=is_forced)


def _made(name: str, clusters_file: str) -> Cluster:
    if not name:
        raise NOT_NAMED
    cluster = find_cluster(name, cluster_file(clusters_file))
    if not isinstance(cluster.source, TpuMade | MadePods | MadeAllocation):
        origin = source_of(cluster).origin(cluster)
        raise UsageError(f"{name}: mesh neither makes nor deletes its hosts: they {origin}")
    return cluster
