"""``mesh job setup``: the modules of a job, set up or undone by hand."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path

from mesh.api.attempts import hosts_of_attempt
from mesh.api.joblogs import COMMAND_NAMES, LOGS
from mesh.api.jobs import show
from mesh.api.jobstore import JobStore
from mesh.api.setups import SHOWS_NOTHING, Wish, carry_out
from mesh.app.owner import user_name
from mesh.app.screen import Showing
from mesh.core.errors import MeshError, UsageError
from mesh.core.paths import job_directory
from mesh.hosts.job import read_machines
from mesh.jobs.cleaning import removed_modules
from mesh.jobs.events import UndoneByHand
from mesh.jobs.fold import fold
from mesh.jobs.values import Job
from mesh.rundir.results import RunResult


def job_of(number: int) -> Job:
    """Return a job, built from its events in the store. Raises MeshError."""
    found = functools.reduce(fold, JobStore().events(number), None)
    if found is None:
        raise MeshError(f"job {number} has no record", hint="mesh job list --all")
    return found


def module_lines(job: int | str, module: str) -> list[str]:
    """Return the output of the last set-up of a module on each host of a job, each line with the host's number.

    Raises UsageError for a module without logs, and MeshError.
    """
    row = show(job)
    logs: dict[str, dict[int, Path]] = {}
    for path in (Path(row.directory) / LOGS).glob("*_worker_*.log"):
        name, _, worker = path.stem.rpartition("_worker_")
        if worker.isdigit() and name not in COMMAND_NAMES:
            logs.setdefault(name, {})[int(worker)] = path
    if module not in logs:
        there = f"; there are those of {', '.join(sorted(logs))}" if logs else ""
        raise UsageError(f"job {row.id} has no log of a module {module!r}{there}", hint=f"mesh job show {row.id}")
    found = []
    for number, path in sorted(logs[module].items()):
        try:
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            raise MeshError(f"cannot read {path}: {error.strerror}", hint="mesh runs") from error
        found += [f"[{number}] {line}" for line in text.splitlines()]
    return found


def job_setup(
    job: int | str,
    modules: Sequence[str] = (),
    *,
    force: bool = False,
    undo: bool = False,
    showing: Showing = SHOWS_NOTHING,
) -> RunResult:
    """Set up modules of a job on the hosts that it has, or had last; return how that run ended.

    modules: their names; (): all of the job. force: also those that are in place; undo: remove what they have made
    Raises UsageError for a job without modules or hosts, and MeshError.
    """
    row = show(job)
    found = job_of(row.id)
    names = [name for name, _ in found.spec.modules or found.spec.project_modules]
    if not names:
        raise UsageError(f"job {row.id} {row.name} has no modules", hint="docs/jobs.md shows `setup: {modules: [...]}`")
    for name in modules:
        if name not in names:
            hint = f"mesh job setup {row.id} {names[0]}"
            raise UsageError(f"job {row.id} has no module {name!r}; it has {', '.join(names)}", hint=hint)
    directory = job_directory(os.environ, row.id)
    cluster = read_machines(directory)
    if cluster is not None and undo and row.left_on:
        cluster = hosts_of_attempt(found, tuple(dict.fromkeys((*(one.name for one in cluster.hosts), *row.left_on))))
    if cluster is None:
        raise UsageError(f"job {row.id} {row.name} has had no hosts yet: {row.state}", hint=f"mesh job show {row.id}")
    # The job's own attempt holds the locks while it runs.
    wish = Wish(only=tuple(modules), force=force, undo=undo, locks=row.state != "running")
    try:
        result = carry_out(found, directory, cluster, wish, showing)[2]
    except OSError as error:
        raise MeshError(f"cannot write {error.filename}: {error.strerror}") from error
    if undo and result.ok and row.left_on and set(removed_modules(found.spec)) <= set(modules or names):
        hosts = tuple(host.name for host in cluster.hosts)
        JobStore().record([row.id], UndoneByHand(time=time.time(), hosts=hosts, by=user_name()))
    return result
