"""Events about pods, as the scheduler and the nodes write them."""

from __future__ import annotations

from mesh.backends.pods.api import Api
from mesh.backends.pods.objects import Pod, PodEvent, PodEvents
from mesh.core.errors import MeshError

EVENTS_TIMEOUT_S = 5.0
EVENTS_MAX = 100  # of one pod; the API keeps them for an hour


def events_of(api: Api, pod: Pod) -> tuple[PodEvent, ...]:
    """Return the events about a pod, the oldest first; () where they cannot be had, as without the right."""
    query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid}", "limit": str(EVENTS_MAX)}
    try:
        found = api.get(api.path("events"), PodEvents, query, EVENTS_TIMEOUT_S).items or ()
    except MeshError:
        return ()
    return tuple(sorted(found, key=lambda one: one.time))
