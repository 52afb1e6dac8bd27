"""Source of hosts that `mesh up` makes. The store of jobs has them, which is asked above this room."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.cluster import Cluster
from mesh.core.errors import NoHosts
from mesh.core.findings import Finding
from mesh.hosts.interfaces import Purpose


class MadeSource:
    """Hosts that are made and held by a job without a command."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        raise NoHosts(f"{cluster.name} is not up", hint=f"mesh up {cluster.name}")

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        return ()

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are made by `mesh up` and deleted by `mesh down`"
