"""List of clusters, logins to their hosts, and hosts that are made and deleted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mesh.api.beginning import add_cluster as add_cluster
from mesh.api.beginning import init as init
from mesh.api.choosing import NOT_NAMED, cluster_file, selected
from mesh.api.configuration import config as config
from mesh.api.configuration import schema_text as schema_text
from mesh.app.carriers import carrier_of
from mesh.config.clusters import LOCAL, find_cluster
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.interfaces import HostMaker, Purpose
from mesh.hosts.sources import source_of


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
            found = source_of(cluster).find(cluster, purpose)
        except MeshError as error:
            problem = f"{error}\n{error.hint}".strip()
            listed.append(ClusterLine(name=name, hosts=(), problem=problem))
        else:
            hosts = tuple(host.name for host in found.hosts)
            listed.append(ClusterLine(name=name, hosts=hosts, problem="", slices=found.slices, note=found.note))
    return listed


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


def up(cluster: str, clusters_file: str = "") -> Cluster:
    """Make the hosts of a cluster and hold them. Raises UsageError if its source cannot make hosts, and MeshError."""
    named, source = _maker(cluster, clusters_file)
    return source.make(named)


def down(cluster: str, clusters_file: str = "") -> None:
    """Delete the hosts that ``up`` has made. Raises UsageError if its source cannot make hosts, and MeshError."""
    named, source = _maker(cluster, clusters_file)
    source.delete(named)


def _maker(name: str, clusters_file: str) -> tuple[Cluster, HostMaker]:
    if not name:
        raise NOT_NAMED
    cluster = find_cluster(name, cluster_file(clusters_file))
    source = source_of(cluster)
    if not isinstance(source, HostMaker):
        raise UsageError(f"{name}: mesh neither makes nor deletes its hosts: they {source.origin(cluster)}")
    return cluster, source
