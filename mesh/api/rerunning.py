"""A run of this machine once more, with the files, hosts and options that it had: ``mesh replay``."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import DEFAULTS, choose_cluster
from mesh.api.detached import with_hosts
from mesh.api.records import find_record
from mesh.api.running import Beside, run_on
from mesh.app.assemble import new_run_id
from mesh.app.modules import preparation_of
from mesh.app.screen import Showing
from mesh.config.project import FILE, Project, load_project
from mesh.config.variables import rank_variables
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.masking import MASK
from mesh.core.naming import LAST
from mesh.core.paths import cache_directory, kept_trees_directory
from mesh.core.ranks import counted
from mesh.core.run import RunSpec
from mesh.rundir.layout import DIFF, MANIFEST
from mesh.rundir.records import Record
from mesh.rundir.results import RunResult
from mesh.workspace.gitfiles import of_commit
from mesh.workspace.manifest import Manifest, read_manifest
from mesh.workspace.rebuilding import of_directory, rebuild

REPLAYED = "replay-"  # begins the tag with the id of the run that was replayed
NAMED_FILES = 20  # that are missing, in one message
GIVEN_ANEW = ("MESH_ATTEMPT", "SLURM_JOB_ID", "SLURM_JOBID")  # variables that mesh sets by itself


class Replayable(Struct, frozen=True, kw_only=True):
    """A run that can be repeated with the files that it had."""

    record: Record
    manifest: Manifest

    @property
    def commit(self) -> str:
        """The git commit of its workspace; "": it had none."""
        git = self.record.about.get("git")
        return str(git.get("commit", "")) if isinstance(git, dict) else ""


def replay(
    run: str = LAST,
    *,
    env: Mapping[str, str] | None = None,
    clusters_file: str = "",
    showing: Showing = Showing(),  # noqa: B008
    report: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Run a run again with its own files, command, options and hosts, and return how that ended.

    run: an id, a name or tag, or "last"
    env: values of variables, also of those that the run had by --env, which are in no file
    showing: how it is shown; report: called with a line about the files
    Raises UsageError for a run that cannot be replayed, and MeshError with the files that are missing.
    """
    found = replayable(run)
    directory = restored(found)
    files = sum(entry.kind == "f" for entry in found.manifest.entries)
    report(f"{counted(files, 'file')} as run {found.record.run} had them (tree {found.manifest.tree[:12]})")
    spec, project = spec_with(found, directory, env or {})
    cluster = hosts_of(found.record, clusters_file)
    spec, preparation = preparation_of(spec, cluster, project.modules.descriptions)
    return run_on(cluster, spec, showing, beside=Beside(notify=project.notify, preparation=preparation))


def replayable(run: str) -> Replayable:
    """Return a run that can be replayed, or the one that it is a replay of. Raises UsageError."""
    record = find_record(run)
    if record is None:
        raise UsageError(f"replay: this machine has started no run {run!r}", hint="mesh runs --all")
    for tag in record.spec.tags:
        if tag.startswith(REPLAYED) and (first := find_record(tag.removeprefix(REPLAYED), is_exact=True)):
            return replayable(first.run)
    if record.verb != "run":
        told = f"mesh {record.verb}" if record.verb else "started by an older mesh"
        raise UsageError(f"replay: run {record.run} was {told}, and no mesh run", hint="mesh again")
    try:
        RunSpec.from_json({**record.about["spec"], "run": record.run})
    except (ValueError, TypeError, KeyError):
        text = f"replay: run {record.run} was written by another version of mesh, or its run.json is damaged"
        raise UsageError(text, hint="mesh again") from None
    if record.spec.is_program:
        raise UsageError(f"replay: run {record.run} is a program, which only its own code starts")
    if record.spec.secrets and any(MASK in word for group in record.spec.groups for word in group.command):
        raise UsageError(f"replay: the command of run {record.run} held a secret, which no file has")
    try:
        manifest = read_manifest(zlib.decompress((record.directory / MANIFEST).read_bytes()))
    except (OSError, zlib.error):
        text = f"replay: run {record.run} has no manifest (its sync was not over, or an older mesh ran it)"
        raise UsageError(text, hint="mesh again") from None
    return Replayable(record=record, manifest=manifest)


def restored(found: Replayable) -> Path:
    """Return a directory with the files of a run, whose tree hash is that of the run.

    They come from the trees that runs keep, else from the run's own directory, else from git.
    Raises MeshError with the files that none of these has any more.
    """
    record, place = found.record, kept_trees_directory(os.environ)
    workspace = record.spec.workspace
    with of_commit(workspace, found.commit, record.directory / DIFF) as of_git:
        sources = [of_directory(workspace), of_git]
        directory, missing = rebuild(found.manifest, place, sources, cache_directory(os.environ))
    if missing:
        shown = missing[:NAMED_FILES]
        more = [f"and {len(missing) - len(shown)} more"] if len(missing) > len(shown) else []
        head = f"replay: {len(missing)} files of run {record.run} are nowhere as they were, and nothing was started:"
        hint = "`keep_tree: true` in mesh.yaml keeps the files of later runs"
        raise MeshError("\n    ".join([head, *shown, *more]), hint=hint)
    return directory


def spec_with(found: Replayable, directory: Path, env: Mapping[str, str]) -> tuple[RunSpec, Project]:
    """Return a run with files in a directory, and their project. Raises UsageError for variables without a value.

    env: values that the user gives; others are those of mesh.yaml as it was, and of today's environment
    """
    record = found.record
    then = record.spec
    project = load_project(directory) if (directory / FILE).is_file() else Project(workspace=directory, named=False)
    files = [str(path) for path in then.env_files]
    values, secrets = rank_variables(project, files, env, os.environ)
    values = {**{name: os.environ[name] for name in then.secrets if name in os.environ}, **values}
    written = record.about["spec"]
    wanted = {name for group in written["groups"] for name in group.get("env", ())} - {*GIVEN_ANEW}
    if missing := sorted(wanted - values.keys()):
        given = " ".join(f"--env {name}=VALUE" for name in missing)
        text = f"replay: values of variables are in no file: {', '.join(missing)}"
        raise UsageError(text, hint=f"mesh replay {record.run} {given}")
    spec = RunSpec.from_json({**written, "run": new_run_id()}, values)
    git = {"MESH_GIT_COMMIT": found.commit, "MESH_GIT_DIRTY": "1" if (record.directory / DIFF).exists() else "0"}
    more = {**(git if found.commit else {}), **env}
    spec = replace(
        spec,
        workspace=directory,
        groups=tuple(replace(group, env={**more, **group.env}) for group in spec.groups),
        prerun=tuple(entry for entry in spec.prerun if not entry.module),
        ignore=(),
        include_git=False,
        as_is=True,
        keep_tree=True,
        detach=False,
        retries=0,
        rules=replace(spec.rules, pty=False, debug=False),
        tags=(*spec.tags, f"{REPLAYED}{record.run}"),
        secrets=tuple(sorted({*then.secrets, *secrets} & values.keys())),
    )
    return spec, project


def hosts_of(record: Record, clusters_file: str) -> Cluster:
    """Return the hosts of a run. Raises UsageError if its cluster has one of them no more."""
    cluster = choose_cluster(record.cluster, DEFAULTS, clusters_file)
    check_hosts(record, cluster)
    return with_hosts(cluster, record.hosts, record.about.get("slices") or ())


def check_hosts(record: Record, cluster: Cluster) -> None:
    """Raise UsageError if a cluster has a host of a run no more."""
    there = {host.name for host in cluster.hosts}
    if gone := [host for host in record.hosts if host not in there]:
        raise UsageError(f"run {record.run}: {cluster.name} has no host {', '.join(gone)} any more", hint="mesh again")
