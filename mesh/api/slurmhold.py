"""`mesh up` and `mesh down` of allocations of Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from mesh.api.holding import check_idle
from mesh.api.slurmattempts import forget_attempts, forget_files
from mesh.backends.slurm.records import AllocationRecords
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.statusline import StatusLine
from mesh.hosts.slurm.made import maker_of, with_nodes
from mesh.hosts.slurm.making import NotOurs

Notify = Callable[[str], None]


def up_allocation(cluster: Cluster, notify: Notify, seconds: float) -> Cluster:
    """Ask for the allocation of a cluster, which stays for a time; return it with its nodes. Raises MeshError.

    notify: a StatusLine shows the state of the job in one line
    """
    if seconds <= 0:
        raise UsageError("--for: expected a time of more than 0 s", hint=f"mesh up --for 8h {cluster.name}")
    line = notify if isinstance(notify, StatusLine) else StatusLine(notify)
    until = time.time() + seconds
    login, maker = maker_of(cluster, line, until)
    try:
        job, record = maker.ensure()
    finally:
        login.close()
    if record.until < time.time():
        raise NotOurs(
            f"{cluster.name}: job {job.job} is there, and ends after {record.hold:g} s without a run",
            hint=f"mesh down {cluster.name} && mesh up {cluster.name}",
        )
    told = time.strftime("%b %d %H:%M", time.localtime(record.until))
    limit = time.strftime("%b %d %H:%M", time.localtime(job.end))
    by_slurm = f"; Slurm ends it at {limit}" if job.end else ""
    line(f"{cluster.name}: job {job.job} stays until {told}, and then until idle for {record.hold:g} s{by_slurm}")
    return with_nodes(cluster, job, record)


def down_allocation(cluster: Cluster, notify: Notify, *, is_forced: bool = False) -> None:
    """Cancel the allocation that mesh has asked for, and wait until it is gone.

    is_forced: even while a run is on, or if its nodes do not answer
    Raises InUse if a run is on, NotOurs for a job that mesh has not asked for, and MeshError.
    """
    login, maker = maker_of(cluster, StatusLine(notify))
    try:
        job = maker.job()
        if job is None:
            forget_files(cluster)
            records = AllocationRecords(os.environ)
            for record in records.read():
                if record.cluster == cluster.name and record.is_ours:
                    records.remove(record.name)
            notify(f"{cluster.name} has no allocation: nothing to cancel")
            return
        maker.check_ours(job)
        if not is_forced and job.is_living and job.address:
            check_idle(with_nodes(cluster, job, maker.record(job)))
        forget_attempts(cluster)
        maker.cancel_and_wait(job.job)
        forget_files(cluster)
    finally:
        login.close()
    notify(f"{cluster.name}: job {job.job} is cancelled")
