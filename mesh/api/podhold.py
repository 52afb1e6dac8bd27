"""`mesh up` and `mesh down` of pods."""

from __future__ import annotations

import time
from collections.abc import Callable

from mesh.api.holding import check_idle
from mesh.core.cluster import Cluster
from mesh.hosts.interfaces import Purpose
from mesh.hosts.kubernetes.made import MadePodSource, make, maker_of

Notify = Callable[[str], None]


def up_pods(cluster: Cluster, notify: Notify, seconds: float, *, adopts: bool = False) -> Cluster:
    """Make the pods of a cluster, which stay for a time; return it with them. Raises MeshError."""
    found, record = make(cluster, notify, time.time() + seconds, adopts=adopts)
    if record.until:
        until = time.strftime("%b %d %H:%M", time.localtime(record.until))
        notify(f"{cluster.name}: its pods stay until {until}, and then until idle for {record.hold:g} s")
    return found


def down_pods(cluster: Cluster, notify: Notify, *, is_forced: bool = False) -> None:
    """Delete the pods of a cluster that were made here, and wait until they are gone.

    is_forced: even while a run is on, or if pods do not answer
    Raises InUse if a run is on, NotOurs for pods that were made elsewhere, and MeshError.
    """
    _, maker = maker_of(cluster, notify)
    root = maker.root()
    if root is None:
        notify(f"{cluster.name} has no pods: nothing to delete")
        return
    if not is_forced and any(pod.status.phase == "Running" for pod in maker.pods(root.metadata.uid)):
        check_idle(MadePodSource().find(cluster, Purpose.ASK))
    maker.delete(root)
    notify(f"{cluster.name}: its pods are deleted")
