"""Source of hosts that are written down: in cluster.yaml, on the command line, or built in."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.cluster import Cluster
from mesh.core.findings import Finding
from mesh.hosts.interfaces import Purpose


class FileSource:
    """Clusters that are read with their hosts."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        return cluster

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        return ()

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are listed in cluster.yaml, on the command line, or built in"
