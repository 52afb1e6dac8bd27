"""The Role that pods need, and the objects that mesh makes, as YAML for people and `kubectl apply`."""

from __future__ import annotations

import json

import yaml

from mesh.api.choosing import NOT_NAMED, cluster_file
from mesh.config.clusters import find_cluster
from mesh.config.podspec import MadePods
from mesh.core.errors import UsageError
from mesh.hosts.kubernetes.render import Made, pod_object, role_object, root_object
from mesh.hosts.kubernetes.user import user_here

ROOT_UID = "UID-OF-THE-ROOT"  # in the place of what the API server gives


def role_text(*, is_existing: bool = False) -> str:
    """Return the Role that mesh needs. is_existing: for pods that are there; mesh makes none"""
    return _yaml([role_object(is_existing=is_existing)])


def objects_text(name: str, clusters_file: str = "") -> str:
    """Return the objects that mesh makes for a cluster. Raises UsageError if it makes no pods for it."""
    if not name:
        raise NOT_NAMED
    cluster = find_cluster(name, cluster_file(clusters_file))
    if not isinstance(cluster.source, MadePods):
        raise UsageError(f"{name}: mesh makes no pods for it", hint=f"mesh check {name}")
    made = Made(cluster=name, user=user_here(), source=cluster.source, python=cluster.python)
    pods = [pod_object(made, index, ROOT_UID) for index in range(cluster.source.nodes)]
    return _yaml([root_object(made), *pods])


def _yaml(objects: list[object]) -> str:
    plain = [json.loads(json.dumps(one)) for one in objects]  # equal parts are written out each time
    return yaml.safe_dump_all(plain, sort_keys=False, width=1000)
