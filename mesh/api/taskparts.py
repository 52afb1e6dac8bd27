"""The attempts of workers: the command that one runs, and its output under JOBMAN's names."""

from __future__ import annotations

import os
import time
from pathlib import Path

import yaml
from msgspec.structs import replace

from mesh.api.taskshell import commit_of, words_of
from mesh.core.cluster import Cluster
from mesh.core.events import Stream
from mesh.core.job import CommandSpec
from mesh.core.paths import runs_directory
from mesh.core.run import SHELL, Launch, RunSpec
from mesh.jobs.turns import Part
from mesh.jobs.values import Job
from mesh.rundir.layout import LOGS, log_name

TASKS, HIDDEN = "tasks", "hide"  # directories of the store: of tasks, and of those with `hide:`


def part_of(job: Job, run: str) -> Part | None:
    """Return what a run of a worker is for; None for other jobs."""
    return next((one.part for one in job.attempts if one.run == run), None)


def command_of(job: Job, run: str, *, starts: bool = False) -> CommandSpec:
    """Return the command of a run: the job's own, a step, or a task. starts: look up the commit of its repository"""
    part, command, worker = part_of(job, run), job.spec.command, job.spec.worker
    if part is None or worker is None:
        return command
    if part.step >= 0:
        step = worker.prefix[part.step]
        return replace(command, words=(*SHELL, step.run), workers=step.workers, nproc=1, launcher=Launch.NONE)
    if part.task is None:
        return command
    words = words_of(part.task, commit_of(part.task) if starts else "")
    return replace(command, words=words, workers=part.task.workers)


def variables_of(job: Job, run: str) -> dict[str, str]:
    """Return the variables of a task, and those by which its ranks find it."""
    part = part_of(job, run)
    if part is None:
        return {}
    if part.step >= 0:
        return {"MESH_PREFIX": part.name}
    own = dict(part.task.variables) if part.task else {}
    return {**own, "MESH_TASK_ID": part.name, "MESH_TASK_RUN": str(part.number)}


def missing_worker(job: Job, run: str, hosts: int) -> str:
    """Return the problem with the hosts that a task names; "" without one. hosts: that the worker has"""
    part = part_of(job, run)
    if part is None or part.task is None:
        return ""
    wrong = [index for index in part.task.workers if index >= hosts]
    return f"workers: no host {wrong[0]}: the worker has {hosts}" if wrong else ""


def directory_of(directory: Path, part: Part) -> Path:
    """Return the directory of a task, shared by all workers. directory: of a worker"""
    place = directory.parent / TASKS
    is_hidden = part.task is not None and part.task.is_hidden
    return place / HIDDEN / part.name if is_hidden else place / part.name


def link_part(job: Job, directory: Path, spec: RunSpec, cluster: Cluster) -> None:
    """Link the logs of a task as ``run_001_job000045_worker_0.log``, with a ``..._meta.yaml``. Raises OSError."""
    part = part_of(job, spec.run)
    if part is None or part.step >= 0:
        return
    place = directory_of(directory, part)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    begin = f"run_{part.number:03d}_job{job.id:06d}"
    logs = runs_directory(os.environ) / spec.run / LOGS
    placement = spec.placed(cluster.hosts, cluster.slices)
    workers = command_of(job, spec.run).workers or range(len(cluster.hosts))
    for node, worker in enumerate(workers):
        for stream, suffix in ((Stream.STDOUT, "log"), (Stream.STDERR, "err")):
            path = place / f"{begin}_worker_{worker}.{suffix}"
            path.unlink(missing_ok=True)
            path.symlink_to(logs / log_name(placement, placement.first(node), stream))
    facts = {
        "task": part.name,
        "job": job.id,
        "run": spec.run,
        "number": part.number,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "hosts": [host.name for host in cluster.hosts],
        "command": part.task.run if part.task else "",
    }
    (place / f"{begin}_meta.yaml").write_text(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True))


def results_directory(job: Job, run: str, directory: Path) -> Path:
    """Return the directory for the results of a run: the job's own, or one for each turn of a task."""
    part = part_of(job, run)
    if part is None or part.step >= 0:
        return directory / "results"
    return directory_of(directory, part) / f"run_{part.number:03d}_results"
