"""The hosts of a list of pods, in their order. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mesh.backends.pods import state
from mesh.backends.pods.objects import Meta as Meta
from mesh.backends.pods.objects import Pod, PodEvent
from mesh.config.podspec import PodGroup
from mesh.core.cluster import Host, PodPlace
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.kubernetes.render import GROUP, HOST
from mesh.hosts.kubernetes.render import INDEX as POD_INDEX

INDEX = "batch.kubernetes.io/job-completion-index"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
DEFAULT_CONTAINER = ("kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container")
SHOWN_PODS = 4  # in one message
_NUMBER = re.compile(r"(\d+)")


def in_order(pods: Sequence[Pod], order: str) -> list[Pod]:
    """Return pods by completion index, else by name with numbers as numbers. order: "name" for names always

    Pods that mesh has made have an index as well.

    >>> [one.name for one in in_order([Pod(metadata=Meta(name=f"w-{n}")) for n in (10, 9, 1)], "")]
    ['w-1', 'w-9', 'w-10']
    """
    indices = [_indices(pod) for pod in pods]
    if order != "name" and pods and all(own is not None for own in indices) and len({*indices}) == len(pods):
        return [pod for _, pod in sorted(zip(indices, pods, strict=True), key=lambda one: one[0] or (0, 0))]
    return sorted(pods, key=lambda pod: _natural(pod.name))


def _indices(pod: Pod) -> tuple[int, int] | None:
    own = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
    found, job = own.get(INDEX) or own.get(POD_INDEX, ""), own.get(JOB_INDEX, "0")
    return (int(job), int(found)) if found.isdecimal() and job.isdecimal() else None


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(name) if part]


def container_of(pods: Sequence[Pod], named: str, place: str = "") -> str:
    """Return the container of all pods that is meant. place: of their selector in a file; "": in none

    Raises UsageError if that is not clear.
    """
    lead = f"{place}: " if place else ""
    for pod in pods:
        names = [one.name for one in pod.spec.containers]
        if named and named not in names:
            hint = f"write `container: {names[0]}` beside selector: in cluster.yaml" if names else ""
            raise UsageError(f"{lead}pod {pod.name} has no container {named!r}: it has {', '.join(names)}", hint=hint)
        if not named and len(names) > 1 and not _default(pod):
            raise UsageError(
                f"{lead}pod {pod.name} has several containers ({', '.join(names)})",
                hint=f"name one: `container: {names[0]}` beside selector: in cluster.yaml",
            )
    return named or next((found for pod in pods if (found := _default(pod))), "")


def _default(pod: Pod) -> str:
    annotations = pod.metadata.annotations or {}
    return next((annotations[key] for key in DEFAULT_CONTAINER if annotations.get(key)), "")


def hosts_of(
    pods: Sequence[Pod], place: PodPlace, *, all_run: bool, events: Callable[[Pod], Sequence[PodEvent]] = lambda pod: ()
) -> tuple[Host, ...]:
    """Return the pods as hosts. all_run: raise MeshError unless all of them run; else those that run

    events: returns the events about a pod, for the reasons in the message
    """
    container = place.container
    waiting = [pod for pod in pods if not state.runs(pod, container)]
    if all_run and waiting:
        shown = "; ".join(f"{pod.name} {_not_running(pod, events(pod), container)}" for pod in waiting[:SHOWN_PODS])
        more = f"; and {len(waiting) - SHOWN_PODS} more" if len(waiting) > SHOWN_PODS else ""
        raise MeshError(
            f"{len(waiting)} of {len(pods)} pods do not run: {shown}{more}",
            hint=f"{place.kubectl('describe pod')} {waiting[0].name}",
        )
    return all_hosts([pod for pod in pods if state.runs(pod, container)])


def all_hosts(pods: Sequence[Pod]) -> tuple[Host, ...]:
    """Return all pods as hosts, also those that do not run."""
    return tuple(Host(name=pod.name, address=pod.status.pod_ip) for pod in pods)


def in_groups(pods: Sequence[Pod], hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return hosts with the names that pods of groups have in their cluster. pods: among them those of the hosts

    Pods of several clusters, whose names are not all different, keep their own.

    >>> pods = [Pod(metadata=Meta(name="mesh-gpus-ana-0a1b2-actor-3", labels={"mesh/host": "actor-3"}))]
    >>> [(host.name, host.pod) for host in in_groups(pods, all_hosts(pods))]
    [('actor-3', 'mesh-gpus-ana-0a1b2-actor-3')]
    """
    names = {pod.name: name for pod in pods if (name := (pod.metadata.labels or {}).get(HOST))}
    if len({*names.values()}) < len(names):
        return tuple(hosts)
    return tuple(replace(one, name=names[one.name], pod=one.name) if one.name in names else one for one in hosts)


def counted_groups(groups: Sequence[PodGroup], running: Sequence[Pod]) -> str:
    """Return how many pods of each group run, for people; "" where there are no groups.

    >>> groups = [PodGroup(name=name, nodes=nodes, template=None) for name, nodes in (("actor", 8), ("learner", 1))]
    >>> counted_groups(groups, [Pod(metadata=Meta(labels={"mesh/group": "actor"}))])
    'actor 1 of 8, learner 0 of 1'
    """
    names = [(pod.metadata.labels or {}).get(GROUP, "") for pod in running]
    return ", ".join(f"{one.name} {names.count(one.name)} of {one.nodes}" for one in groups if one.name)


def _not_running(pod: Pod, events: Sequence[PodEvent], container: str) -> str:
    return f"is {pod.status.phase} ({state.waits_for(pod, events, container)[0]})"
