"""The way from a job file to the jobs that are submitted: file, hosts, snapshot, array."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from mesh.api.attempts import has_project
from mesh.api.choosing import choose_cluster, project_here
from mesh.app.owner import user_name
from mesh.config.hosts import NoHost, numbers
from mesh.config.jobfile import JobFile, read_job_file
from mesh.config.places import clusters_path
from mesh.config.project import Project, check_workspace
from mesh.config.settings import Options
from mesh.config.variables import passed_variables
from mesh.config.yamlfile import quoted
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.job import ArraySpec, Candidate, JobSpec, Keep, MachinesSpec, RestartOn, WorkspaceSpec
from mesh.core.paths import cache_directory, jobs_directory
from mesh.core.run import AUTO
from mesh.hosts.interfaces import Purpose

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


def read_wanted(wanted: Wanted) -> JobFile:
    """Return the job of a file and its overrides. Raises UsageError with all problems."""
    if not wanted.file and not wanted.command:
        raise UsageError("expected a job file", hint=SUBMIT_USAGE)
    path = Path(wanted.file) if wanted.file else None
    if path is not None and not path.exists():
        raise UsageError(f"{path}: there is no such file", hint="docs/jobs.md shows a job file")
    overrides = (*([f"machines.cluster={quoted(wanted.cluster)}"] if wanted.cluster else []), *wanted.overrides)
    return read_job_file(path, overrides, wanted.command, time.time())


def ready_to_submit(wanted: Wanted) -> Ready:
    """Return the jobs that a file asks for, with their hosts and a snapshot of the workspace.

    Raises UsageError, and MeshError for a workspace that cannot be copied.
    """
    spec, _ = resolved_job(wanted)
    indexes, limit = array_of(wanted.array)
    project = project_here()
    notices: tuple[str, ...] = ()
    if spec.workspace.keep is Keep.SNAPSHOT:
        workspace, variables, notices = _snapshot(project)
        spec = replace(spec, workspace=workspace, env={**variables, **spec.env})
    elif spec.workspace.keep is Keep.GIT:
        workspace, variables, notices = _git_snapshot(spec.workspace)
        spec = replace(spec, workspace=workspace, env={**variables, **spec.env})
    spec = replace(spec, config=_config(spec))
    if indexes:
        members = (replace(spec, array=ArraySpec(index=index, limit=limit)) for index in indexes)
        return Ready(specs=tuple(members), notices=notices)
    return Ready(specs=(spec,), notices=notices)


def resolved_job(wanted: Wanted) -> tuple[JobSpec, Cluster]:
    """Return the job of a file with the hosts that it may have, and these hosts. Raises UsageError."""
    found = read_wanted(wanted)
    project = project_here()
    spec = _of_project(found.spec, project)
    cluster = _cluster(found, wanted.clusters_file)
    machines = replace(
        spec.machines,
        clusters_file=_clusters_file(wanted.clusters_file),
        candidates=tuple(Candidate(name=host.name, key=_key(cluster, host)) for host in cluster.hosts),
    )
    _check_count(machines, spec, found)
    return replace(spec, machines=machines, user=spec.user or user_name()), cluster


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
    wrong = [worker for worker in spec.command.workers if worker >= machines.count]
    if wrong:
        raise UsageError(f"{_place(found, 'command')}: workers: no host {wrong[0]}: the job has {machines.count}")


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


def _snapshot(project: Project) -> tuple[WorkspaceSpec, Mapping[str, str], tuple[str, ...]]:
    """Copy the workspace; return it, the variables of its git commit, and notices. Raises MeshError."""
    from mesh.workspace.git import asked_git
    from mesh.workspace.snapshot import take

    check_workspace(project, Path.home())
    place, cache = jobs_directory(os.environ), cache_directory(os.environ)
    with asked_git(project.workspace) as variables:
        snapshot = take(project.workspace, project.ignore, place, cache, include_git=project.include_git)
        found = variables()
    notices = (*(f"not copied: {skipped}" for skipped in snapshot.skipped), *snapshot.notices)
    if project.modules.descriptions and not has_project(snapshot.directory, is_snapshot=True):
        notices = (*notices, f"modules: of {project.path} do not hold, as the workspace does not have that file")
    return WorkspaceSpec(directory=project.workspace, tree=snapshot.tree), found, notices


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


def plan_lines(wanted: Wanted) -> Iterator[str]:
    """Yield what would be submitted, a fact a line. Raises UsageError."""
    from mesh.workspace import listing
    from mesh.workspace.checkout import shown

    spec, cluster = resolved_job(wanted)
    indexes, limit = array_of(wanted.array)
    project = project_here()
    machines, command = spec.machines, spec.command
    yield f"job        {spec.name}"
    if indexes:
        at_once = f", {limit} at a time" if limit else ""
        yield f"array      {len(indexes)} jobs, MESH_ARRAY_INDEX {wanted.array.partition('%')[0]}{at_once}"
    count = f"{machines.count} of {len(machines.candidates)} hosts" if machines.hosts else f"{machines.count} hosts"
    yield f"machines   {machines.cluster} ({cluster.backend}): {count}"
    yield f"hosts      {', '.join(host.name for host in cluster.hosts)}"
    if command.workers:
        yield f"workers    {', '.join(map(str, command.workers))}"
    yield f"nproc      {'as many as each host has GPUs' if command.nproc == AUTO else command.nproc}"
    if command.launcher.value:
        yield f"launcher   {command.launcher.value}"
    yield f"command    {shlex.join(command.words)}"
    if spec.workspace.keep is Keep.SNAPSHOT:
        check_workspace(project, Path.home())
        found = listing.list_workspace(project.workspace, project.ignore, include_git=project.include_git)
        files = [entry for entry in found.entries if entry.kind != listing.DIRECTORY]
        size = sum(entry.size for entry in files)
        yield f"workspace  a snapshot of {project.workspace}: {len(files)} file(s), {size} bytes"
    elif spec.workspace.keep is Keep.GIT:
        yield f"workspace  git {shown(spec.workspace.url)} at {spec.workspace.ref or 'its default branch'}"
    else:
        yield "workspace  none"
    yield from _rule_lines(spec)


def _rule_lines(spec: JobSpec) -> Iterator[str]:
    """Yield when a job starts, what it gets, and what restarts it."""
    for entry in spec.prerun:
        yield f"prerun     {entry.run}"
    if spec.env:
        yield f"env        {', '.join(sorted(spec.env))}"
    if spec.passed or spec.secret:
        yield f"pass       {', '.join((*spec.passed, *spec.secret))}"
    if spec.depends_on:
        yield f"depends_on {', '.join(map(str, spec.depends_on))}"
    if spec.after:
        yield f"after      {time.strftime('%Y-%m-%d %H:%M', time.localtime(spec.after))}"
    if spec.priority:
        yield f"priority   {spec.priority}"
    command = spec.command
    yield f"timeout    {f'{command.timeout:g} s' if command.timeout else 'none'}, grace {command.grace:g} s"
    rules = spec.restart
    if rules.on is RestartOn.NEVER:
        yield "restart    never"
    else:
        more = [f"up to {rules.failures} failures"] if rules.on in (RestartOn.FAILURE, RestartOn.ALWAYS) else []
        more += [f"again after {', '.join(map(str, rules.again))}"] if rules.again else []
        more += [f"never after {', '.join(map(str, rules.never))}"] if rules.never else []
        yield f"restart    {', '.join([rules.on.value, *more])}"
    if spec.results:
        yield f"results    {', '.join(spec.results)}"
