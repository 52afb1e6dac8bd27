"""Source of hosts that are written down: in cluster.yaml, on the command line, or built in."""

from __future__ import annotations

from mesh.core.cluster import Cluster
from mesh.hosts.interfaces import Purpose


class FileSource:
    """Clusters that are read with their hosts."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        return cluster

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are listed in cluster.yaml, on the command line, or built in"
