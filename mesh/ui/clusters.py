"""The clusters that pages may ask, from cluster.yaml."""

from __future__ import annotations

import re

from mesh.api.clusters import cluster_names, list_clusters

_LOCAL = re.compile(r"local(:[1-9][0-9]{0,3})?")


def cluster_rows() -> list[dict[str, object]]:
    """Return all clusters with the names of their hosts. Raises UsageError for a wrong cluster.yaml."""
    return [
        {"name": one.name, "hosts": list(one.hosts), "problem": one.problem, "note": one.note}
        for one in list_clusters()
    ]


def known_cluster(name: str) -> bool:
    """Return True for the name of a cluster, or of this machine."""
    return bool(_LOCAL.fullmatch(name)) or name in cluster_names()
