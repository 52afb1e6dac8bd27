"""Attempts of a job: the run that an attempt is, the hosts that it has, and the job's directory."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.api.choosing import choose_cluster
from mesh.api.taskparts import command_of, part_of, variables_of
from mesh.app.carriers import carrier_of
from mesh.app.jobhosts import hosts_of_made
from mesh.app.modules import preparation_of
from mesh.config.modules import ENVIRONMENTS
from mesh.config.project import FILE, VARIABLE, load_project
from mesh.config.selectors import Part, pick
from mesh.config.settings import Options
from mesh.config.variables import PATTERN_CHARACTERS
from mesh.core.cluster import Cluster
from mesh.core.job import JobSpec, Keep, MachinesSpec
from mesh.core.module import NO_PREPARATION, Preparation
from mesh.core.naming import is_name
from mesh.core.paths import job_directory, jobs_directory
from mesh.core.run import Group, Kind, Launch, Rules, RunSpec
from mesh.hosts.interfaces import Purpose
from mesh.hosts.job import read_machines, write_machines
from mesh.jobs.values import Job
from mesh.workspace.snapshot import TREES

DEFAULTS = Options()


def run_of_attempt(job: Job, run: str, attempt: int, environ: Mapping[str, str], *, starts: bool = False) -> RunSpec:
    """Return the run that an attempt of a job is. environ: the steward's, for the variables of ``pass:``

    starts: it is about to start, so that the commit of a task's repository is looked up
    """
    spec = job.spec
    names = passed_names(spec, environ)
    env = (
        {name: environ[name] for name in names} | dict(spec.env) | variables_of(job, run) | job_variables(job, attempt)
    )
    command = command_of(job, run, starts=starts)
    kept = spec.workspace.keep is not Keep.NONE
    return RunSpec(
        run=run,
        project=workspace_name(job),
        workspace=jobs_directory(environ) / TREES / spec.workspace.tree if kept else Path("/"),
        groups=(Group(command=command.words, env=env, nproc=command.nproc),),
        rules=Rules(grace=command.grace, timeout=command.timeout),
        prerun=spec.prerun,
        launcher=command.launcher,
        sync=kept,
        as_is=kept,
        detach=True,
        secrets=tuple(sorted(name for name in env if _matches(name, spec.secret))),
        name=spec.name if is_name(spec.name) else "",
        tags=tags_of(job, run),
    )


def tags_of(job: Job, run: str) -> tuple[str, ...]:
    """Return the tags of a run: its job, and its task or step."""
    part = part_of(job, run)
    return (f"job-{job.id}", part.name) if part and is_name(part.name) else (f"job-{job.id}",)


def job_variables(job: Job, attempt: int) -> dict[str, str]:
    """Return the variables by which ranks find their job."""
    spec = job.spec
    variables = {
        "MESH_JOB_ID": str(job.id),
        "MESH_JOB_NAME": spec.name,
        "MESH_ATTEMPT": str(attempt),
        "MESH_PREEMPTIONS": str(job.preemptions),
    }
    if spec.array is not None:
        variables["MESH_ARRAY_INDEX"] = str(spec.array.index)
    if spec.checkpoint_dir:
        variables["MESH_CHECKPOINT_DIR"] = spec.checkpoint_dir
    return variables


def workspace_name(job: Job) -> str:
    """Return the name of the job's directory on hosts. Members of an array share one."""
    array = job.spec.array
    return f"job-{job.store}-{array.first if array else job.id}"


def passed_names(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that ``pass:`` and ``secret:`` hand on."""
    patterns = (*spec.passed, *spec.secret)
    return [name for name in environ if VARIABLE.fullmatch(name) and _matches(name, patterns)]


def missing_variables(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that ``pass:`` names and that are not set; a pattern may match none."""
    named = [name for name in (*spec.passed, *spec.secret) if not set(PATTERN_CHARACTERS) & set(name)]
    return [name for name in named if name not in environ]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def hosts_of_attempt(job: Job, hosts: Sequence[str], *, starts: bool = False) -> Cluster:
    """Return the hosts of an attempt as one cluster, by the name ``job:ID``.

    hosts: their names in the job's cluster; starts: look them up in cluster.yaml, where they may have another address
    Raises UsageError if the cluster has them no more, and MeshError if they cannot be found; NoAnswer without the API.
    """
    if job.spec.machines.tpu is not None or job.spec.machines.carrier is not None:
        return replace(hosts_of_made(job, hosts), name=f"job:{job.id}", workspace=workspace_name(job))
    directory = job_directory(os.environ, job.id)
    found = None if starts else read_machines(directory)
    if found is None or not set(hosts) <= {host.name for host in found.hosts}:
        machines = job.spec.machines
        purpose = Purpose.RUN if starts else Purpose.ASK
        found = choose_cluster(machines.cluster, DEFAULTS, machines.clusters_file, purpose=purpose)
    if tuple(host.name for host in found.hosts) != tuple(hosts):
        found = pick(found, Part(cluster=found.name, picks=tuple(hosts)), machines_told(job))
    found = with_login(found, job.spec.machines)
    return replace(found, name=f"job:{job.id}", workspace=workspace_name(job))


def with_login(cluster: Cluster, machines: MachinesSpec) -> Cluster:
    """Return hosts with the login of a job where their cluster has none of its own."""
    if not machines.login and not machines.login_key:
        return cluster
    key = os.path.expanduser(machines.login_key)
    key = key if os.path.isfile(key) else ""  # as with JOBMAN, the usual keys of ssh are tried then
    hosts = [
        replace(
            host,
            user=host.user or machines.login,
            identity_file=host.identity_file or key,
        )
        for host in cluster.hosts
    ]
    return replace(cluster, hosts=tuple(hosts))


def machines_told(job: Job) -> str:
    """Return the machines of a job for messages."""
    machines = job.spec.machines
    return f"machines: {machines.cluster}" if machines.tpu is None else f"tpu: {machines.tpu.accelerator}"


def with_workers(job: Job, cluster: Cluster, run: str) -> Cluster:
    """Return the hosts that run the command of a run: all, or those of its ``workers:``. Raises UsageError."""
    workers = command_of(job, run).workers
    if not workers:
        return cluster
    picks = tuple(str(worker) for worker in workers)
    return pick(cluster, Part(cluster=cluster.name, picks=picks), "command.workers")


def with_locks(spec: RunSpec, cluster: Cluster) -> RunSpec:
    """Return a run that takes the locks of its hosts, where they are shared with others."""
    locks = carrier_of(cluster).locks
    return replace(spec, lock=locks, claim=locks)


def with_modules(job: Job, spec: RunSpec, cluster: Cluster) -> tuple[RunSpec, Preparation]:
    """Return the run of an attempt with its modules. Raises UsageError.

    The job's own modules have prepared all hosts before, so that the run needs no more than the environment of the
    command. A job without any has those of the mesh.yaml in its snapshot.
    """
    if job.spec.modules:
        return preparation_of(spec, cluster, [one for one in job.spec.modules if one[0] in ENVIRONMENTS])
    if not has_project(spec.workspace, is_snapshot=spec.as_is):
        return spec, NO_PREPARATION
    return preparation_of(spec, cluster, load_project(spec.workspace).modules.descriptions)


def setup_of_attempt(
    job: Job, run: str, cluster: Cluster, *, only: Sequence[str] = (), undo: bool = False
) -> tuple[RunSpec, Preparation]:
    """Return the run that sets up the modules of a job on all of its hosts. Raises UsageError.

    only: names of modules; (): all of them; undo: undo them, the last one first
    """
    spec = run_of_attempt(job, run, job.attempt, os.environ)
    group = replace(spec.groups[0], command=(), nproc=1)
    spec = replace(
        spec,
        kind=Kind.MODULES,
        groups=(group,),
        rules=Rules(grace=spec.rules.grace),
        prerun=(),
        launcher=Launch.NONE,
        detach=False,
        sync=spec.sync and not undo,
        name="",
    )
    modules = job.spec.modules or job.spec.project_modules
    chosen = [one for one in modules if not only or one[0] in only]
    return preparation_of(with_locks(spec, cluster), cluster, chosen, undo=undo)


def has_project(workspace: Path, *, is_snapshot: bool) -> bool:
    """Return True if a snapshot has the mesh.yaml whose modules hold for its job."""
    return is_snapshot and (workspace / FILE).is_file()


def write_directory(job: Job, directory: Path, cluster: Cluster) -> None:
    """Write what the directory of a job has once it has hosts. Raises OSError."""
    write_files(job.spec, directory)
    if job.spec.workspace.tree:
        link(directory / "workspace", jobs_directory(os.environ) / TREES / job.spec.workspace.tree)
    write_machines(directory, cluster)


def write_files(spec: JobSpec, directory: Path) -> None:
    """Write the file of a job and its resolved copy into the job's directory. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, text in (("job.yaml", spec.file), ("config.yaml", spec.config)):
        path = directory / name
        if text and not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text)


def link(path: Path, target: Path) -> None:
    """Make a relative link, also in place of another one."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    path.symlink_to(os.path.relpath(target, path.parent))
