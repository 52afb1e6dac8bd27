"""The way from a job file to the jobs that are submitted: file, hosts, snapshot, array."""

from __future__ import annotations

import getpass
import itertools
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from mesh.api.asked import about_login, about_made_machines, in_zone
from mesh.api.attempts import has_project, with_login
from mesh.api.carried import carried
from mesh.api.choosing import choose_cluster, project_here
from mesh.api.costing import limit_notices
from mesh.api.regions import about_buckets
from mesh.app.owner import user_name
from mesh.config import jobman
from mesh.config.hosts import NoHost, numbers
from mesh.config.jobfile import JobFile, read_job_file
from mesh.config.jobman import JobmanKeys
from mesh.config.places import clusters_path
from mesh.config.project import Project, check_workspace, load_project
from mesh.config.settings import Options
from mesh.config.tasksfile import read_tasks
from mesh.config.tpuspec import machines_of
from mesh.config.variables import passed_variables
from mesh.config.yamlfile import quoted
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.job import ArraySpec, Candidate, JobSpec, Keep, MachinesSpec, WorkspaceSpec
from mesh.core.module import Described
from mesh.core.paths import cache_directory, jobs_directory
from mesh.core.tpu import TpuSpec
from mesh.hosts.interfaces import Purpose
from mesh.jobs.reading import FINAL
from mesh.jobs.tasking import matches
from mesh.workspace.snapshot import TREES

ARRAY_MEMBERS_MAX = 100_000
SSH_PORT = 22
SUBMIT_USAGE = "mesh job submit FILE, or mesh job submit --cluster POD -- COMMAND"
_ARRAY = re.compile(r"([0-9,-]+)(?:%([0-9]+))?")


class Wanted(Struct, frozen=True, kw_only=True):
    """A job as the user asks for it."""

    file: str = ""  # "": command and overrides make the job
    command: tuple[str, ...] = ()  # the words for execve, which win over those of the file
    cluster: str = ""  # wins over ``machines:`` of the file
    overrides: tuple[str, ...] = ()  # KEY=VALUE
    array: str = ""  # as "0-31%4"; "": one job
    clusters_file: str = ""  # "": the usual one


class Ready(Struct, frozen=True, kw_only=True):
    """Jobs that can be submitted."""

    specs: tuple[JobSpec, ...]
    notices: tuple[str, ...] = ()
    jobman: JobmanKeys = JobmanKeys()


def read_wanted(wanted: Wanted) -> JobFile:
    """Return the job of a file and its overrides. Raises UsageError with all problems."""
    if not wanted.file and not wanted.command:
        raise UsageError("expected a job file", hint=SUBMIT_USAGE)
    path = Path(wanted.file) if wanted.file else None
    if path is not None and not path.exists():
        raise UsageError(f"{path}: there is no such file", hint="docs/jobs.md shows a job file")
    overrides = (*([f"machines.cluster={quoted(wanted.cluster)}"] if wanted.cluster else []), *wanted.overrides)
    return read_job_file(path, overrides, wanted.command, time.time(), project_here().workspace)


def ready_to_submit(wanted: Wanted) -> Ready:
    """Return the jobs that a file asks for, with their hosts and a snapshot of the workspace.

    Raises UsageError, and MeshError for a workspace that cannot be copied.
    """
    found = read_wanted(wanted)
    spec, _ = resolved(found, wanted)
    spec = replace(spec, name=name_of(found))
    indexes, limit = array_of(wanted.array)
    notices = (*found.notices, *about_made_machines(spec, project_here()), *limit_notices(spec), *about_tasks(spec))
    if spec.workspace.keep is Keep.GIT:
        workspace, variables, more = _git_snapshot(spec.workspace)
    elif spec.workspace.keep is Keep.SNAPSHOT or found.files:
        only = () if spec.workspace.keep is Keep.SNAPSHOT else found.files
        workspace, variables, more = snapshot_of(project_here(), only, has_modules=bool(spec.modules))
    else:
        workspace, variables, more = spec.workspace, {}, ()
    spec = replace(spec, workspace=workspace, env={**variables, **spec.env})
    spec = replace(spec, project_modules=() if spec.modules else modules_of_project(workspace))
    notices = (*notices, *more, *about_login(spec, os.environ), *about_buckets(spec, os.environ))
    spec = completed(spec)
    if indexes:
        members = (replace(spec, array=ArraySpec(index=index, limit=limit)) for index in indexes)
        return Ready(specs=tuple(members), notices=notices, jobman=found.jobman)
    return Ready(specs=(spec,), notices=notices, jobman=found.jobman)


def about_tasks(spec: JobSpec) -> tuple[str, ...]:
    """Return notices about the task file of a worker. Raises UsageError with all problems of it."""
    worker = spec.worker
    if worker is None:
        return ()
    found = read_tasks(worker.tasks)
    if any(matches(task, worker) for task in found.tasks):
        return found.notices
    where = " ".join(filter(None, (worker.accelerator, worker.zone)))
    return (*found.notices, f"{worker.tasks}: no task{f' for {where}' if where else ''} yet; the worker waits for one")


def resolved_job(wanted: Wanted) -> tuple[JobSpec, Cluster | None]:
    """Return the job of a file with the hosts that it may have, and these hosts; None if they will be made.

    Raises UsageError.
    """
    return resolved(read_wanted(wanted), wanted)


def name_of(found: JobFile) -> str:
    """Return the name of a job: with ``worker_num: auto``, the smallest number that no job of that name has."""
    name, number = found.spec.name, found.jobman.number
    if number != jobman.AUTO:
        return jobman.numbered(name, int(number)) if number else name
    from mesh.api.jobstore import JobStore

    taken = {row.name for row in JobStore().rows() if row.state not in FINAL}
    return next(free for free in (jobman.numbered(name, count) for count in itertools.count(1)) if free not in taken)


def resolved(found: JobFile, wanted: Wanted) -> tuple[JobSpec, Cluster | None]:
    """Return the job of a file that was read, as ``resolved_job`` does."""
    project = project_here()
    spec = _of_project(found.spec, project)
    spec = replace(spec, user=spec.user or user_name())
    machines = spec.machines
    if machines.tpu is not None:
        made = machines_of(in_zone(with_login_of(machines.tpu, machines), os.environ))
        return replace(spec, machines=replace(made, login=machines.login, login_key=machines.login_key)), None
    granted = carried(machines, wanted.clusters_file, _place(found, "machines"))
    if granted is not None:
        _check_workers(spec, granted.units, found)
        return replace(spec, machines=granted), None
    cluster = with_login(_cluster(found, wanted.clusters_file), machines)
    machines = replace(
        spec.machines,
        clusters_file=_clusters_file(wanted.clusters_file),
        candidates=tuple(Candidate(name=host.name, key=_key(cluster, host)) for host in cluster.hosts),
    )
    _check_count(machines, spec, found)
    return replace(spec, machines=machines), cluster


def with_login_of(tpu: TpuSpec, machines: MachinesSpec) -> TpuSpec:
    """Return a request whose machines have the login of JOBMAN's keys, where it names none by keys of its own."""
    key = os.path.expanduser(machines.login_key)
    return replace(
        tpu,
        user=tpu.user or machines.login,
        identity_file=tpu.identity_file or (key if os.path.isfile(key) else ""),  # else the usual keys are tried
    )


def _of_project(spec: JobSpec, project: Project) -> JobSpec:
    """Return the job with what mesh.yaml has for every run: variables, prerun, secrets."""
    patterns = "*?["
    here = passed_variables(project, os.environ)

    def due(names: Sequence[str]) -> tuple[str, ...]:
        """Return patterns, and the names that are set here: the job is not held for others."""
        return tuple(name for name in names if set(patterns) & set(name) or name in here)

    return replace(
        spec,
        env={**project.env, **spec.env},
        passed=tuple(dict.fromkeys((*spec.passed, *due(project.passed)))),
        secret=due(project.secret),
        prerun=project.prerun,
    )


def _cluster(found: JobFile, clusters_file: str) -> Cluster:
    selector = found.spec.machines.cluster
    try:
        return choose_cluster(selector, Options(), clusters_file, purpose=Purpose.LIST)
    except UsageError as error:
        place = f"{found.path}:{found.lines['machines']}: " if found.path and "machines" in found.lines else ""
        raise UsageError(f"{place}machines: {error}", hint=error.hint) from error


def _clusters_file(named: str) -> str:
    """Return the path of a cluster.yaml that is not the usual one; "" for that."""
    if named or os.environ.get("MESH_CLUSTERS"):
        return str(clusters_path(named, os.environ).absolute())
    return ""


def _check_count(machines: MachinesSpec, spec: JobSpec, found: JobFile) -> None:
    """Raise UsageError if the cluster has too few hosts for the job."""
    count = len(machines.candidates)
    if machines.hosts > count:
        raise UsageError(
            f"{_place(found, 'machines')}: hosts: {machines.cluster} has {count}, and not {machines.hosts}"
        )
    _check_workers(spec, machines.count, found)


def _check_workers(spec: JobSpec, count: int, found: JobFile) -> None:
    """Raise UsageError if the command is for a host that the job does not have. count: 0: it is not decided yet"""
    wrong = [worker for worker in spec.command.workers if worker >= count]
    if wrong and count:
        raise UsageError(f"{_place(found, 'command')}: workers: no host {wrong[0]}: the job has {count}")


def _place(found: JobFile, key: str) -> str:
    return f"{found.path}:{found.lines[key]}: {key}" if found.path and key in found.lines else key


def _key(cluster: Cluster, host: Host) -> str:
    """Return the machine behind a host, equal for two names of one machine."""
    if cluster.backend == "local":
        return f"local:{host.remote_dir}"
    if cluster.backend != "ssh":
        return f"{cluster.backend}:{shlex.join(cluster.command)}:{host.name}"
    user = host.user or getpass.getuser()
    return f"{user}@{host.address}:{host.port or SSH_PORT}"


def snapshot_of(
    project: Project, only: Sequence[str] = (), *, has_modules: bool = False
) -> tuple[WorkspaceSpec, Mapping[str, str], tuple[str, ...]]:
    """Copy the workspace; return it, the variables of its git commit, and notices. Raises MeshError.

    only: the files that modules of a job without a workspace need; (): all of it
    has_modules: the job has modules of its own, in place of those of the project
    """
    from mesh.workspace.git import asked_git
    from mesh.workspace.snapshot import take

    if not only:
        check_workspace(project, Path.home())
    ignore = ignoring_others(only) if only else project.ignore
    place, cache = jobs_directory(os.environ), cache_directory(os.environ)
    with asked_git(project.workspace) as state:
        snapshot = take(project.workspace, ignore, place, cache, include_git=project.include_git and not only)
        found = state().variables
    notices = (*(f"not copied: {skipped}" for skipped in snapshot.skipped), *snapshot.notices)
    is_lost = project.modules.descriptions and not has_project(snapshot.directory, is_snapshot=True)
    if is_lost and not has_modules:
        notices = (*notices, f"modules: of {project.path} do not hold, as the workspace does not have that file")
    return WorkspaceSpec(directory=project.workspace, tree=snapshot.tree), found, notices


def modules_of_project(workspace: WorkspaceSpec) -> Described:
    """Return the modules of the mesh.yaml in a snapshot. Raises UsageError."""
    directory = jobs_directory(os.environ) / TREES / workspace.tree
    if not workspace.tree or not has_project(directory, is_snapshot=True):
        return ()
    return load_project(directory).modules.descriptions


def ignoring_others(files: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that leave out everything but some files.

    >>> ignoring_others(["a/b.txt"])
    ('/*', '!/a/', '/a/*', '!/a/b.txt')
    """
    patterns = ["/*"]
    for file in files:
        *parents, name = file.split("/")
        for depth in range(len(parents)):
            above = "/".join(parents[: depth + 1])
            patterns += [f"!/{above}/", f"/{above}/*"]
        patterns.append(f"!/{'/'.join((*parents, name))}")
    return tuple(dict.fromkeys(patterns))


def completed(spec: JobSpec) -> JobSpec:
    """Return a job with its text for people."""
    return replace(spec, config=_config(spec))


def _git_snapshot(wanted: WorkspaceSpec) -> tuple[WorkspaceSpec, Mapping[str, str], tuple[str, ...]]:
    """Copy the files of a commit; return them, variables and notices. Raises UsageError, and MeshError."""
    from mesh.workspace.checkout import checked_out
    from mesh.workspace.snapshot import take

    place, cache = jobs_directory(os.environ), cache_directory(os.environ)
    with checked_out(wanted.url, wanted.ref, cache) as found:
        snapshot = take(found.directory, (), place, cache, as_is=True)
    notices = (f"workspace: commit {found.commit}", *(f"not copied: {skipped}" for skipped in snapshot.skipped))
    variables = {"MESH_GIT_COMMIT": found.commit, "MESH_GIT_DIRTY": "0"}
    return replace(wanted, tree=snapshot.tree, ref=found.commit), variables, notices


def _config(spec: JobSpec) -> str:
    """Return a job as YAML for people, with everything that its file leaves to defaults."""
    machines = replace(spec.machines, candidates=())
    shown = replace(spec, file="", config="", machines=machines)
    fields: dict[str, object] = msgspec.to_builtins(shown, enc_hook=str)
    for name in ("file", "config"):
        fields.pop(name, None)
    return str(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True))


def array_of(text: str) -> tuple[tuple[int, ...], int]:
    """Return the indexes of an array, and how many members may run at a time. Raises UsageError.

    >>> array_of("0-2,7%2"), array_of("")
    (((0, 1, 2, 7), 2), ((), 0))
    """
    if not text:
        return (), 0
    found = _ARRAY.fullmatch(text)
    try:
        indexes = tuple(dict.fromkeys(map(int, numbers(found.group(1))))) if found else ()
    except NoHost:
        indexes = ()
    if not found or not indexes or found.group(2) == "0" or len(indexes) > ARRAY_MEMBERS_MAX:
        raise UsageError(f"--array: expected indexes such as 0-31 or 0,4,8, or 0-31%4, found {text!r}")
    return indexes, int(found.group(2) or 0)
