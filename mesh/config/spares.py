"""``spares:`` of a cluster: hosts at the end of its list that have no ranks until one moves there."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace
from yaml.nodes import Node

from mesh.config import yamlfile
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Cluster, Host
from mesh.core.run import RunSpec

KEY = "spares"
TIED = "it has spare hosts, and only its client can move a rank there"


def read(keys: Mapping[str, tuple[Node, Node]], where: str, hosts: int, problems: Problems) -> int:
    """Return the number of spare hosts. hosts: how many the list has; 0: there is no list, or no valid one"""
    if KEY not in keys:
        return 0
    node, place = keys[KEY][1], f"{where}.{KEY}"
    if "hosts" not in keys:
        problems.add(node, place, "counts hosts of a list, and there is no hosts: beside it")
        return 0
    expected = f"a number of hosts below {hosts}"
    found = yamlfile.number(node, place, problems, expected)
    if found is None or not hosts:
        return 0
    if found != int(found) or not 0 <= found < hosts:
        problems.unexpected(node, place, expected)
        return 0
    return int(found)


def divide(cluster: Cluster) -> tuple[Cluster, tuple[Host, ...]]:
    """Return the cluster without its spare hosts, and these.

    >>> hosts = tuple(Host(name=name, address=name) for name in "abc")
    >>> cluster, spare = divide(Cluster(name="pod", hosts=hosts, spares=1))
    >>> [host.name for host in cluster.hosts], [host.name for host in spare], cluster.spares
    (['a', 'b'], ['c'], 0)
    """
    count = len(cluster.hosts) - cluster.spares
    return replace(cluster, hosts=cluster.hosts[:count], spares=0), cluster.hosts[count:]


def add(spec: RunSpec, cluster: Cluster, spare: tuple[Host, ...]) -> tuple[RunSpec, Cluster]:
    """Return a run with spare hosts. A detached run has none, because its client moves the ranks."""
    if spec.detach or not spare:
        return spec, cluster
    hosts = (*cluster.hosts, *spare)
    return replace(spec, spares=len(spare), tied=spec.tied or TIED), replace(cluster, hosts=hosts, spares=len(spare))
