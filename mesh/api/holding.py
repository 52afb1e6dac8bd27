"""`mesh up` and `mesh down`: machines that are made, held and given back by hand.

A job without a command holds them. So the steward looks after them, and the store, the audit and the rules of deletion
are those of jobs. `mesh up` and `mesh down` may be killed at any time: the job goes on, and either may be repeated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from mesh.api.asked import in_zone
from mesh.api.costing import prices_for_lists, rate_of
from mesh.api.held import find_hosts, held_job, hosts_held
from mesh.api.jobstore import JobRow, JobStore
from mesh.app.owner import user_name
from mesh.config.tpusource import TpuMade
from mesh.config.tpuspec import machines_of
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.job import CommandSpec, JobSpec, Keep, WorkspaceSpec
from mesh.core.outcome import EXIT_BUSY
from mesh.core.paths import jobs_directory, open_lock
from mesh.core.tpu import TpuSpec
from mesh.hosts.interfaces import Purpose
from mesh.jobs.events import Wished
from mesh.jobs.reading import FINAL, Selection
from mesh.jobs.values import Job, State, Wanted

POLL_S = 0.25  # between two looks at the job
REPEAT_S = 60.0  # after which the same state is shown again, with the time that it has lasted
QUEUED_BY_GOOGLE = "WAITING_FOR_RESOURCES"
Notify = Callable[[str], None]


class InUse(MeshError):
    """Machines that something still runs on."""

    exit_code = EXIT_BUSY


def hold_up(cluster: Cluster, notify: Notify) -> Cluster:
    """Make the machines of a cluster, or wait for those that are being made; return it with its hosts.

    notify: gets a line for each change of state, and one a minute
    Raises UsageError if other machines are up under the name, and MeshError if they cannot be made.
    """
    assert isinstance(cluster.source, TpuMade)
    spec = in_zone(cluster.source.spec, os.environ)
    with _alone():
        job = held_job(cluster.name, user_name())
        if job is None:
            number = _submit(cluster, replace(spec, prefix=spec.prefix or cluster.name), notify)
        else:
            number = job.id
            made = job.spec.machines.tpu
            if made is not None and replace(made, prefix="") != replace(spec, prefix=""):
                raise UsageError(
                    f"{cluster.name}: job {job.id} holds other machines under this name ({made.accelerator}, "
                    f"{made.pricing.value}, {made.slices} slices)",
                    hint=f"mesh down {cluster.name}",
                )
    try:
        row = _wait(number, cluster.name, notify, lambda row: row.state in (State.RUNNING.value, State.HELD.value))
    except KeyboardInterrupt:
        notify(f"{cluster.name}: it goes on; `mesh up {cluster.name}` waits, `mesh down {cluster.name}` gives it back")
        raise
    if row.state != State.RUNNING.value:
        hint = f"{row.hint}\nmesh job resume {row.id}, or mesh down {cluster.name}".strip()
        raise MeshError(f"{cluster.name}: {row.reason or row.state}", hint=hint)
    return find_hosts(cluster, Purpose.RUN)


def _submit(cluster: Cluster, spec: TpuSpec, notify: Notify) -> int:
    """Submit the job that holds machines, and return its id. Raises MeshError."""
    wanted = JobSpec(
        name=f"up-{cluster.name}"[:64],
        user=user_name(),
        machines=replace(machines_of(spec), cluster=cluster.name),
        command=CommandSpec(words=()),
        workspace=WorkspaceSpec(keep=Keep.NONE),
        holds=cluster.name,
    )
    rows, serving = JobStore().submit([wanted])
    notify(f"{cluster.name}: job {rows[0].id} asks for {spec.slices} x {spec.accelerator}, {spec.pricing.value}")
    notify(f"{cluster.name}: price {rate_of(spec, prices_for_lists())}")
    if not serving.pid:
        raise MeshError(f"{cluster.name}: no steward looks after it, as MESH_SERVE is 0", hint="mesh serve")
    return rows[0].id


def hold_down(cluster: Cluster, notify: Notify, *, is_forced: bool = False) -> None:
    """Delete the machines that `hold_up` has made, and wait until they are proved gone.

    is_forced: even while a run is on, or if hosts do not answer
    Raises InUse if a run is on, and MeshError.
    """
    job = held_job(cluster.name, user_name())
    if job is None:
        notify(f"{cluster.name} is not up: nothing to delete")
        return
    _give_back(job, cluster, notify, is_forced=is_forced)


def kept_down(cluster: Cluster, job: int, notify: Notify, *, is_forced: bool = False) -> None:
    """Delete the machines that are kept after the end of a job, and wait until they are proved gone.

    cluster: named job:ID; job: that has ended, or that keeps its machines
    is_forced: even while a run is on, or if hosts do not answer
    Raises InUse if a run is on, and MeshError.
    """
    kept = [one for one in JobStore().jobs() if one.kept_until and job in (one.id, one.kept_from)]
    keeper = next((one for one in kept if not one.state.is_final), None)
    if keeper is None:
        notify(f"no machines of {cluster.name} are kept: nothing to delete")
        return
    _give_back(keeper, cluster, notify, is_forced=is_forced)


def _give_back(job: Job, cluster: Cluster, notify: Notify, *, is_forced: bool) -> None:
    """Have a job delete the machines that it holds, and wait for that. Raises InUse, MeshError."""
    if not is_forced and job.state is not State.ENDING:
        hosts = hosts_held(job)
        if hosts is not None:
            check_idle(replace(cluster, hosts=hosts.hosts, slices=hosts.slices, source=None))
    JobStore().record([job.id], Wished(time=time.time(), wanted=Wanted.STOP, by=user_name()))
    try:
        row = _wait(job.id, cluster.name, notify, lambda row: row.state in FINAL)
    except KeyboardInterrupt:
        notify(f"{cluster.name}: its deletion goes on; `mesh down {cluster.name}` waits for it")
        raise
    is_taken = row.state == State.SUCCEEDED.value and not row.overdue_since and job.kept_until
    notify(f"{cluster.name}: {row.reason}" if is_taken else f"{cluster.name}: its machines are deleted")


def check_idle(cluster: Cluster) -> None:
    """Raise InUse if a run goes on, if hosts have output that is nowhere else, or if a host does not answer.

    cluster: with its hosts
    """
    from mesh.api.inquiries import runs_on

    answers = runs_on(cluster)
    force = f"mesh down --force {cluster.name}"
    for run in answers.runs:
        if run.state == "ended":
            raise InUse(
                f"{cluster.name}: the output of run {run.run} is on its hosts alone",
                hint=f"mesh attach {run.run}\nor {force}",
            )
        raise InUse(f"{cluster.name}: run {run.run} is {run.state} there", hint=f"mesh stop {run.run}\nor {force}")
    if answers.failures:
        raise InUse("\n".join((f"{cluster.name}: a run may be on", *answers.failures)), hint=force)


def _wait(number: int, name: str, notify: Notify, is_over: Callable[[JobRow], bool]) -> JobRow:
    """Wait until ``is_over`` is true for a job, and report its state; return its row.

    Raises MeshError if the job ends before.
    """
    store, shown, shown_at = JobStore(), "", 0.0
    while True:
        rows = store.rows(Selection(ids=(number,), deleted=True))
        if not rows:
            raise MeshError(f"there is no job {number}", hint="mesh job list --all")
        (row,) = rows
        if is_over(row):
            return row
        if row.state in FINAL:
            raise MeshError(f"{name}: {row.reason or row.state}", hint=f"mesh job show {row.id} --events")
        line = row.reason or row.state
        if line != shown or time.monotonic() >= shown_at + REPEAT_S:
            notify(progress_line(name, line, time.time() - (row.since or time.time())))
            shown, shown_at = line, time.monotonic()
        time.sleep(POLL_S)


def progress_line(name: str, text: str, seconds: float) -> str:
    """Return a line about the state of machines, for people.

    >>> progress_line("pod", "WAITING_FOR_RESOURCES", 750.0)
    'pod: WAITING_FOR_RESOURCES, 12 min; position unknown'
    >>> progress_line("pod", "pod-0 is CREATING", 3.0)
    'pod: pod-0 is CREATING'
    """
    lasted = f", {seconds // 60:.0f} min" if seconds >= 60 else ""
    place = "; position unknown" if QUEUED_BY_GOOGLE in text else ""
    return f"{name}: {text}{lasted}{place}"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of `mesh up`, so that two of them never submit two jobs. Raises MeshError."""
    descriptor = open_lock(jobs_directory(os.environ) / "up.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
