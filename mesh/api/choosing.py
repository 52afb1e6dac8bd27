"""Choice of the cluster that a command works on, and of the project of the working directory."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from mesh.api.held import find_hosts
from mesh.app.assemble import new_run_id
from mesh.app.owner import user_name
from mesh.config.clusters import ClusterFile, find_cluster, is_cluster, load_clusters
from mesh.config.envfile import read_env_file
from mesh.config.places import clusters_path
from mesh.config.podcode import CONFIG_MAP
from mesh.config.podspec import MadePods
from mesh.config.project import Project, check_workspace, load_project
from mesh.config.selectors import HOST_LIST, Part, join, listed, parse, pick, select_hosts
from mesh.config.settings import Client, Options, chosen_default, kept, patient, run_spec
from mesh.config.slurm import overridden
from mesh.config.variables import secret_names
from mesh.core.cluster import Cluster, allocation_mark
from mesh.core.errors import UnknownCluster, UsageError
from mesh.core.masking import Secrets
from mesh.core.run import DEFAULT_LEASE, HANG_WATCH_ON_A_TERMINAL_S, RunSpec
from mesh.hosts.interfaces import Purpose

NOT_NAMED = UsageError(
    "no cluster was named", hint="`mesh clusters` lists them; `default: NAME` in mesh.yaml or MESH_CLUSTER names one"
)
DEFAULTS = Options()
MAKING = (Purpose.RUN, Purpose.PLAN)  # for which hosts are made, or shown as they would be
CLUSTERS_NAMED = 3  # in one message
LEASE_ON_A_TERMINAL_S = 900.0  # a laptop may be closed for a while


def choose_cluster(
    selector: str, options: Options, clusters_file: str, *, purpose: Purpose = Purpose.RUN, is_quiet: bool = False
) -> Cluster:
    """Return the hosts that a selector names, without those that options leave out, as one cluster.

    is_quiet: show no progress of hosts that are made
    Raises UsageError, and MeshError if the hosts of a cluster cannot be found.
    """
    chosen = selected(selector, clusters_file, purpose, options, is_quiet=is_quiet)
    return select_hosts(patient(chosen, options, os.environ), options)


def selected(
    selector: str, clusters_file: str, purpose: Purpose, options: Options = DEFAULTS, *, is_quiet: bool = False
) -> Cluster:
    """Return the hosts that a selector names as one cluster; "" is the default one. Raises as ``choose_cluster``."""
    place = ""
    if not selector:
        selector, place = default_cluster()
    file = cluster_file(clusters_file)
    try:
        find = partial(_found, purpose, options, is_quiet=is_quiet)
        return join(selector, [_hosts_of(part, selector, file, find) for part in _parts(selector, file)])
    except UnknownCluster as error:
        if place:
            raise UnknownCluster(f"{place}: {error}", hint=error.hint) from error
        with contextlib.suppress(UsageError):
            error.hint += f"\nthe default cluster is {default_cluster()[0]}: mesh run -- COMMAND"
        raise


def named_clusters(selector: str, clusters_file: str) -> list[Cluster]:
    """Return the clusters of a selector without hosts that a source finds; "" is the default one. Raises UsageError."""
    file, text = cluster_file(clusters_file), selector or default_cluster()[0]
    names = dict.fromkeys(part.cluster for part in _parts(text, file) if part.cluster)
    return [find_cluster(name, file) for name in names if is_cluster(name, file)]


def default_cluster() -> tuple[str, str]:
    """Return the selector for commands that name no cluster, and its place. Raises UsageError if there is none."""
    found = chosen_default(project_here(), os.environ)
    if not found.text:
        raise NOT_NAMED
    return found.text, found.place


def check_name(name: str, clusters_file: str) -> None:
    """Raise UsageError if the name of a run is that of a cluster, for which commands would take it."""
    if name and clusters_named(name, cluster_file(clusters_file)):
        raise UsageError(f"--name: {name!r} is a cluster", hint=f"choose another one, as {name}-1")


def clusters_named(text: str, file: ClusterFile) -> tuple[str, ...]:
    """Return the clusters of a selector, or nothing if a word of it is neither a cluster nor a list of hosts."""
    try:
        names = [part.cluster or listed(part.hosts).name for part in _parts(text, file)]
    except UsageError:
        return ()
    known = all(name.startswith(HOST_LIST) or is_cluster(name, file) for name in names)
    return tuple(dict.fromkeys(names)) if known else ()


def _parts(selector: str, file: ClusterFile) -> tuple[Part, ...]:
    return parse(selector, lambda name: is_cluster(name, file))


def _found(purpose: Purpose, options: Options, cluster: Cluster, *, is_quiet: bool) -> Cluster:
    """Return a cluster with its hosts, by the request that options change."""
    asked = overridden(cluster, options.nodes, options.slurm)
    return find_hosts(with_archive(asked) if purpose in MAKING else asked, purpose, is_quiet=is_quiet)


def with_archive(cluster: Cluster) -> Cluster:
    """Return a cluster with this directory's workspace, if its pods get that from a ConfigMap. Raises MeshError."""
    source = cluster.source
    if not isinstance(source, MadePods) or source.template.source is None or source.template.source.kind != CONFIG_MAP:
        return cluster
    from mesh.workspace.archive import archive_of

    project = project_here()
    check_workspace(project, Path.home())
    archive = archive_of(project.workspace, project.ignore, include_git=project.include_git)
    return replace(cluster, source=replace(source, archive=archive))


def with_fetched(cluster: Cluster, spec: RunSpec) -> RunSpec:
    """Return a spec without a sync, if the hosts have fetched their workspace by themselves. Raises UsageError."""
    if not cluster.fetched:
        return spec
    for name, is_given in (("share", spec.share), ("fresh", spec.fresh)):
        if is_given:
            raise UsageError(f"--{name}: the hosts of {cluster.name} fetch their workspace", hint="leave it out")
    return replace(spec, project=cluster.workspace, sync=False, existing=True, fetched=cluster.fetched)


def _hosts_of(part: Part, selector: str, file: ClusterFile, find: Callable[[Cluster], Cluster]) -> Cluster:
    if not part.cluster:
        return kept(listed(part.hosts), os.environ)
    try:
        named = kept(find_cluster(part.cluster, file), os.environ)
    except UnknownCluster as error:
        raise _host_meant(part.cluster, file) or error from None
    return pick(find(named), part, selector)


def _host_meant(name: str, file: ClusterFile) -> UnknownCluster | None:
    """Return the error for a name that is a host and no cluster, None if it is neither."""
    clusters = [one.name for one in file.clusters.values() if name in [host.name for host in one.hosts]]
    if clusters:
        words = " or ".join(f"{cluster}:{name}" for cluster in clusters[:CLUSTERS_NAMED])
        return UnknownCluster(f"no cluster {name!r}: it is a host of {', '.join(clusters)}", hint=f"write {words}")
    if "@" in name or name.count(".") > 1:
        return UnknownCluster(f"no cluster {name!r} in {file.path}", hint=f"a host that is in no file: @{name}")
    return None


def cluster_file(named: str) -> ClusterFile:
    """Return the clusters of a file, the usual one for "". A file that was named must be there."""
    required = bool(named or os.environ.get("MESH_CLUSTERS"))
    return load_clusters(clusters_path(named, os.environ), required=required)


def project_here() -> Project:
    """Return the project of the working directory."""
    return load_project(here())


def usable_project() -> Project:
    """Return the project of the working directory, an empty one where its mesh.yaml cannot be read."""
    try:
        return project_here()
    except UsageError:
        return Project(workspace=Path("/"), named=False)


def knowing_secrets(spec: RunSpec) -> RunSpec:
    """Return a spec with the names of this project's secrets too, for a client that did not start the run."""
    names = {*spec.secrets, *secret_names(usable_project(), os.environ)}
    return replace(spec, secrets=tuple(sorted(names)))


def masked(text: str, env_files: Sequence[str] = ()) -> str:
    """Return a text for people without the values of this project's secrets, and of files of --env-file."""
    values = [os.environ[name] for name in secret_names(usable_project(), os.environ)]
    for path in env_files:
        values += read_env_file("--env-file", Path(path)).values()
    return Secrets(values).text(text)


def make_spec(project: Project, options: Options, command: Sequence[str]) -> RunSpec:
    """Return a new run, with the rules of ``mesh run``."""
    return run_spec(project, options, command, new_run_id(), new_client())


def check_time(cluster: Cluster, spec: RunSpec) -> None:
    """Raise UsageError if the time limit of a run is behind the end of its allocation."""
    end, limit = cluster.allocation.end, spec.rules.timeout
    left = end - time.time()
    if end and limit > left:
        job, at = cluster.allocation.job, time.strftime("%b %d %H:%M", time.localtime(end))
        raise UsageError(
            f"--timeout: Slurm ends job {job} of {cluster.name} at {at}, in {max(0.0, left):.0f} s, before {limit:g} s",
            hint=f"mesh run --timeout {max(1.0, left - 60.0):.0f} ..., or a longer `time:` below slurm:",
        )


def with_slurm_job(cluster: Cluster, spec: RunSpec) -> RunSpec:
    """Return a spec whose ranks get the number of their job with Slurm's other variables. Raises UsageError."""
    job = cluster.allocation.job
    if mark := allocation_mark(cluster):
        spec = replace(spec, groups=tuple(replace(one, env={**mark, **one.env}) for one in spec.groups))
    if not spec.rules.slurm_env:
        return spec
    if not job:
        raise UsageError(f"--slurm-env: {cluster.name} is no allocation of Slurm", hint="leave it out")
    variables = {"SLURM_JOB_ID": job, "SLURM_JOBID": job}
    return replace(spec, groups=tuple(replace(one, env={**variables, **one.env}) for one in spec.groups))


def new_client() -> Client:
    """Return this process as the client of a run."""
    # A program may have replaced stderr, also by None.
    is_terminal = getattr(sys.stderr, "isatty", bool)()
    lease = LEASE_ON_A_TERMINAL_S if is_terminal else DEFAULT_LEASE
    watch = HANG_WATCH_ON_A_TERMINAL_S if is_terminal else 0.0
    return Client(user=user_name(), machine=_place(), environ=os.environ, lease=lease, hang_watch=watch)


def _place() -> str:
    """Return the name of this place for workspaces on hosts: the machine, or the repository in GitHub Actions.

    GitHub makes a machine for each job, and all jobs of a repository share one workspace on hosts that stay.
    """
    repository = os.environ.get("GITHUB_REPOSITORY", "") if os.environ.get("GITHUB_ACTIONS") == "true" else ""
    return f"github.com/{repository}" if repository else socket.gethostname()


def here() -> Path:
    """Return the working directory. Raises UsageError if it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", hint="cd into a directory that exists") from None
