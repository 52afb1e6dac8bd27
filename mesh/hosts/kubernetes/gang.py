"""Gangs: pods that a scheduler of batches binds to nodes all at once, or none of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.config.podspec import VOLCANO

Object = Mapping[str, object]
GROUP, VERSION, KIND, RESOURCE = "scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"
GROUP_NAME = "scheduling.k8s.io/group-name"  # an annotation of pods
SCHEDULER = "volcano"
GANG_APIS = {VOLCANO: f"{GROUP}/{VERSION}"}  # the API that a gang needs


def pod_group_object(meta: Object, members: int, queue: str) -> Object:
    """Return the PodGroup of a cluster's pods, none of which is bound before all can be.

    meta: its name, labels and owner; queue: Volcano's; "": the default one
    """
    spec: dict[str, object] = {"minMember": members}
    if queue:
        spec["queue"] = queue
    return {"apiVersion": GANG_APIS[VOLCANO], "kind": KIND, "metadata": meta, "spec": spec}


def annotations_of(gang: str, name: str) -> Mapping[str, str]:
    """Return the annotations that make a pod a member of a gang. name: of its PodGroup

    >>> annotations_of("volcano", "mesh-x"), annotations_of("", "mesh-x")
    ({'scheduling.k8s.io/group-name': 'mesh-x'}, {})
    """
    return {GROUP_NAME: name} if gang == VOLCANO else {}


def fields_of(gang: str) -> Object:
    """Return the fields of a pod spec that a gang needs."""
    return {"schedulerName": SCHEDULER} if gang == VOLCANO else {}


def rules_of(gang: str) -> list[Object]:
    """Return the rows of a Role that a gang needs beside those for pods."""
    rule = {"apiGroups": [GROUP], "resources": [RESOURCE], "verbs": ["create"]}
    return [rule] if gang == VOLCANO else []
