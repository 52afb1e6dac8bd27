"""Deletion of pods that mesh has made, and of what commands that were killed have left."""

from __future__ import annotations

import calendar
import time
from collections.abc import Sequence

from mesh.backends.pods import state
from mesh.backends.pods.api import Api, only
from mesh.backends.pods.objects import Pod, Pods, Thing, Things
from mesh.hosts.kubernetes import render
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords, machine_here
from mesh.hosts.kubernetes.waiters import are_waited_for

ABANDONED_S = 120.0  # after which a root without pods has lost its maker, where locks do not show that


def owned(api: Api, uid: str) -> list[Pod]:
    """Return the pods that belong to a root; a label alone makes none its own. Raises MeshError."""
    found = api.get(api.pods, Pods, {"labelSelector": f"{render.ROOT}={uid}"}).items or ()
    return [pod for pod in found if any(owner.uid == uid for owner in pod.metadata.owner_references or ())]


def delete_pods(api: Api, pods: Sequence[Pod | Thing]) -> None:
    """Delete these pods, and none that has taken the name of one. Raises MeshError."""
    for pod in pods:
        api.delete(api.path("pods", pod.metadata.name), only(pod.metadata.uid))


def remove_ended(api: Api, user: str, records: PodsRecords) -> list[str]:
    """Delete roots that were made here and are of no use; return their names. Raises MeshError.

    All pods of such a root have ended, or wait for a machine or an image though no command waits for them.
    """
    removed = []
    roots = api.get(api.path("configmaps"), Things, {"labelSelector": f"{render.USER}={render.safe(user)}"}).items or ()
    for root in roots:
        uid = root.metadata.uid
        mark = (root.metadata.annotations or {}).get(render.MARK, "")
        record = records.get(uid) or (records.get(mark) if mark else None)
        if record is None:
            continue
        pods = owned(api, uid)
        if _is_of_no_use(root, pods, record, records):
            delete_pods(api, pods)
            api.delete(api.path("configmaps", root.metadata.name), only(uid))
            records.remove(record.uid)
            removed.append(root.metadata.name)
    return removed


def _is_of_no_use(root: Thing, pods: Sequence[Pod], record: PodsRecord, records: PodsRecords) -> bool:
    """Return True if no pod of a root runs, and no command waits until one does."""
    is_waited_for = are_waited_for(records, record.place) if record.machine == machine_here() else None
    limit = 2 * float((root.metadata.annotations or {}).get(render.START, "inf")) + ABANDONED_S
    if is_waited_for is False:
        limit = 0.0
    if not pods:
        return not is_waited_for and (is_waited_for is False or time.time() - record.since > ABANDONED_S)
    return all(state.has_ended(pod, render.CONTAINER) or pending(pod) > limit for pod in pods)


def pending(pod: Pod) -> float:
    """Return how many seconds a pod has waited for a machine or an image, at least one; 0.0 once it runs."""
    try:
        made = time.strptime(pod.metadata.creation_timestamp or "", "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return 0.0
    return max(1.0, time.time() - calendar.timegm(made)) if pod.status.phase == "Pending" else 0.0
