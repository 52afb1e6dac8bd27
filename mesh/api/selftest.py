"""A trial of the real API with the smallest machine: make it, kill the steward twice, delete it, and audit."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from mesh.api.asked import in_zone
from mesh.api.jobs import submit_specs, wait
from mesh.api.jobstore import JobRow, JobStore
from mesh.api.machines import audit_machines, cost
from mesh.api.serving import ensure_steward
from mesh.api.submitting import completed
from mesh.app.owner import user_name
from mesh.config.tpuspec import machines_of
from mesh.core.errors import MeshError
from mesh.core.job import CommandSpec, JobSpec, Keep, RestartOn, RestartSpec, WorkspaceSpec
from mesh.core.tpu import Pricing, Provision, TpuSpec
from mesh.jobs.audit import Whose
from mesh.jobs.reading import FINAL, Selection

ACCELERATOR, RUNTIME = "v5litepod-1", "v2-alpha-tpuv5-lite"
MADE_LIMIT_S = 1800.0  # for the machine to be there
ENDED_LIMIT_S = 1800.0  # for it to be gone
POLL_S = 0.5
SLEEP_S = 120  # of the job's command, in which the steward is killed for the second time
Notify = Callable[[str], None]


def selftest(project: str, zone: str, accelerator: str, version: str, notify: Notify) -> None:
    """Make a spot machine, kill the steward while it is made and while a command runs, and see that all is deleted.

    notify: gets a line for each step. Raises MeshError with the first thing that went wrong.
    It costs money: one machine for some minutes.
    """
    tpu = TpuSpec(
        accelerator=accelerator or ACCELERATOR,
        runtime=version or RUNTIME,
        zones=(zone,) if zone else (),
        project=project,
        provision=Provision.TPU_VM,
        pricing=Pricing.SPOT,
        prefix="mesh-selftest",
    )
    spec = JobSpec(
        name="selftest",
        user=user_name(),
        machines=machines_of(in_zone(tpu, os.environ)),
        command=CommandSpec(words=("sleep", str(SLEEP_S))),
        workspace=WorkspaceSpec(keep=Keep.NONE),
        restart=RestartSpec(on=RestartOn.NEVER),
    )
    submitted = submit_specs([completed(spec)], ())
    job = submitted[0].id
    notify(f"job {job} asks for {spec.machines.pool}")
    try:
        _until(job, ("requesting", "preparing", "running"), MADE_LIMIT_S)
        _kill_steward(notify, "while the machine is made")
        _until(job, ("running",), MADE_LIMIT_S)
        _kill_steward(notify, "while the command runs")
        _until(job, FINAL, SLEEP_S + ENDED_LIMIT_S)
    finally:
        from mesh.api import jobs

        jobs.stop([job])
        wait([job], ENDED_LIMIT_S)
    _check(job, notify)


def _until(job: int, states: tuple[str, ...], within: float) -> JobRow:
    """Wait until a job is in one of some states. Raises MeshError if it ends or is held before, or takes too long."""
    deadline = time.monotonic() + within
    while True:
        (row,) = JobStore().rows(Selection(ids=(job,), deleted=True))
        if row.state in states:
            return row
        if row.state in (*FINAL, "held") or time.monotonic() > deadline:
            raise MeshError(f"job {job} is {row.state}: {row.reason}", hint=f"mesh job show {job} --events")
        time.sleep(POLL_S)


def _kill_steward(notify: Notify, when: str) -> None:
    """Kill the steward, and start another one. Raises MeshError."""
    place = JobStore().place
    pid = ensure_steward(place).pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    started = ensure_steward(place)
    notify(f"steward {pid} killed {when}; {started.pid} looks after the job now")


def _check(job: int, notify: Notify) -> None:
    """Raise MeshError unless the job's machine was made once, and is gone."""
    (one,) = [found for found in JobStore().jobs() if found.id == job]
    if len(one.attempts) != 1 or one.state.value != "succeeded":
        raise MeshError(
            f"job {job} is {one.state.value} after {len(one.attempts)} attempts", hint=f"mesh job show {job} --events"
        )
    seen = audit_machines()
    if seen.silent:
        raise MeshError("\n".join(seen.silent), hint="mesh job audit")
    left = [found.name for found in seen.found if found.job == job or found.whose in (Whose.ORPHAN, Whose.UNKNOWN)]
    if left:
        raise MeshError(f"machines are left: {', '.join(left)}", hint="mesh job audit")
    bill = cost([job])
    hours = sum(each.chip_hours for each in bill.costs)
    priced = sum(each.amount for each in bill.costs)
    notify(f"made once, deleted, nothing left: {hours:.2f} chip-hours, {priced:.2f} {bill.currency}".rstrip())
