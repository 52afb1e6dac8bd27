"""The plan of a job for people: what would be submitted, a fact a line."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from mesh.api.asked import tpu_lines
from mesh.api.choosing import project_here
from mesh.api.costing import limit_lines
from mesh.api.submitting import Wanted, array_of, name_of, read_wanted, resolved
from mesh.config.jobman import FAILURES_OF_LOOP
from mesh.config.project import check_workspace
from mesh.config.tasksfile import read_tasks
from mesh.core.job import JobSpec, Keep, RestartOn, RestartSpec
from mesh.core.module import Conda, Description, Docker, Gcsfuse, Python, Ssh
from mesh.core.run import AUTO


def plan_lines(wanted: Wanted) -> Iterator[str]:
    """Yield what would be submitted, a fact a line. Raises UsageError."""
    from mesh.workspace import listing
    from mesh.workspace.checkout import shown

    found = read_wanted(wanted)
    spec, cluster = resolved(found, wanted)
    indexes, limit = array_of(wanted.array)
    project = project_here()
    machines, command = spec.machines, spec.command
    yield f"job        {name_of(found)}"
    if indexes:
        at_once = f", {limit} at a time" if limit else ""
        yield f"array      {len(indexes)} jobs, MESH_ARRAY_INDEX {wanted.array.partition('%')[0]}{at_once}"
    if machines.tpu is not None:
        yield from tpu_lines(machines.tpu)
        yield from limit_lines(spec)
    if machines.carrier is not None:
        yield f"machines   {machines.cluster}: {machines.carrier.asked}"
    if cluster is not None:
        count = f"{machines.count} of {len(machines.candidates)} hosts" if machines.hosts else f"{machines.count} hosts"
        yield f"machines   {machines.cluster} ({cluster.backend}): {count}"
        yield f"hosts      {', '.join(host.name for host in cluster.hosts)}"
    if command.workers:
        yield f"workers    {', '.join(map(str, command.workers))}"
    yield f"nproc      {'as many as each host has GPUs' if command.nproc == AUTO else command.nproc}"
    if command.launcher.value:
        yield f"launcher   {command.launcher.value}"
    if spec.worker is not None:
        yield f"tasks      {spec.worker.tasks}: {len(read_tasks(spec.worker.tasks).tasks)} task(s)"
        yield from (f"prefix     {step.name}: {step.run.strip()}" for step in spec.worker.prefix)
    else:
        yield f"command    {shlex.join(command.words)}"
    if spec.workspace.keep is Keep.SNAPSHOT:
        check_workspace(project, Path.home())
        listed = listing.list_workspace(project.workspace, project.ignore, include_git=project.include_git)
        files = [entry for entry in listed.entries if entry.kind != listing.DIRECTORY]
        size = sum(entry.size for entry in files)
        yield f"workspace  a snapshot of {project.workspace}: {len(files)} file(s), {size} bytes"
    elif spec.workspace.keep is Keep.GIT:
        yield f"workspace  git {shown(spec.workspace.url)} at {spec.workspace.ref or 'its default branch'}"
    elif found.files:
        yield f"workspace  a snapshot of {', '.join(found.files)}"
    else:
        yield "workspace  none"
    yield from _rule_lines(spec)
    for notice in found.notices:
        yield f"notice     {notice}"


def _rule_lines(spec: JobSpec) -> Iterator[str]:
    """Yield when a job starts, what it gets, and what restarts it."""
    for name, module in spec.modules:
        yield f"module     {name}{_told(module)}"
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
        more = [_failures(rules)] if rules.on in (RestartOn.FAILURE, RestartOn.ALWAYS) else []
        more += [f"again after {', '.join(map(str, rules.again))}"] if rules.again else []
        more += [f"never after {', '.join(map(str, rules.never))}"] if rules.never else []
        yield f"restart    {', '.join([rules.on.value, *more])}"
    if spec.results:
        yield f"results    {', '.join(spec.results)}"


def _failures(rules: RestartSpec) -> str:
    if rules.failures >= FAILURES_OF_LOOP:
        return "after any number of failures"
    return f"up to {rules.failures} failures"


def _told(module: Description) -> str:
    """Return a module for people, behind its name."""
    match module:
        case Docker(image=image):
            return f": {image}"
        case Python(path=path) | Conda(name=path):
            return f": {path}"
        case Gcsfuse(buckets=buckets):
            return f": {', '.join(f'{bucket.name} at {bucket.path}' for bucket in buckets)}"
        case Ssh(identities=identities):
            keys = ", ".join(one.private_key for one in identities)
            return f": your private key {keys} goes to every host" if keys else ": keys between the hosts"
