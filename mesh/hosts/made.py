"""Source of hosts that `mesh up` makes. The store of jobs has them, which is asked above this room."""

from __future__ import annotations

from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError
from mesh.hosts.interfaces import Purpose


class MadeSource:
    """Hosts that are made and held by a job without a command."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        raise MeshError(f"{cluster.name} is not up", hint=f"mesh up {cluster.name}")

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are made by `mesh up` and deleted by `mesh down`"
