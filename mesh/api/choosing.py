"""Choice of the cluster that a command works on, and of the project of the working directory."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from mesh.app.assemble import new_run_id
from mesh.app.owner import user_name
from mesh.config.clusters import ClusterFile, clusters_path, find_cluster, is_cluster, load_clusters
from mesh.config.project import Project, load_project
from mesh.config.selectors import HOST_LIST, Part, join, listed, parse, pick, select_hosts
from mesh.config.settings import Client, Options, kept, patient, run_spec
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import DEFAULT_LEASE, RunSpec
from mesh.hosts.interfaces import Purpose
from mesh.hosts.sources import source_of

NOT_NAMED = UsageError("no cluster was named", hint="`mesh clusters` lists them")
LEASE_ON_A_TERMINAL_S = 900.0  # a laptop may be closed for a while


def choose_cluster(selector: str, options: Options, clusters_file: str, *, purpose: Purpose = Purpose.RUN) -> Cluster:
    """Return the hosts that a selector names, without those that options leave out, as one cluster.

    Raises UsageError, and MeshError if the hosts of a cluster cannot be found.
    """
    found = patient(selected(selector, clusters_file, purpose), options, os.environ)
    return select_hosts(found, options)


def selected(selector: str, clusters_file: str, purpose: Purpose) -> Cluster:
    """Return the hosts that a selector names, as one cluster. Raises as ``choose_cluster``."""
    if not selector:
        raise NOT_NAMED
    file = cluster_file(clusters_file)
    parts = _parts(selector, file)
    return join(selector, [_hosts_of(part, selector, file, purpose) for part in parts])


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


def _hosts_of(part: Part, selector: str, file: ClusterFile, purpose: Purpose) -> Cluster:
    if not part.cluster:
        return kept(listed(part.hosts), os.environ)
    named = kept(find_cluster(part.cluster, file), os.environ)
    return pick(source_of(named).find(named, purpose), part, selector)


def cluster_file(named: str) -> ClusterFile:
    """Return the clusters of a file, the usual one for "". A file that was named must be there."""
    required = bool(named or os.environ.get("MESH_CLUSTERS"))
    return load_clusters(clusters_path(named, os.environ), required=required)


def project_here() -> Project:
    """Return the project of the working directory."""
    return load_project(here())


def make_spec(project: Project, options: Options, command: Sequence[str]) -> RunSpec:
    """Return a new run, with the rules of ``mesh run``."""
    # A program may have replaced stderr, also by None.
    is_terminal = getattr(sys.stderr, "isatty", bool)()
    lease = LEASE_ON_A_TERMINAL_S if is_terminal else DEFAULT_LEASE
    client = Client(user=user_name(), machine=_place(), environ=os.environ, lease=lease)
    return run_spec(project, options, command, new_run_id(), client)


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
