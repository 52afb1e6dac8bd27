"""What a command works on: the cluster that was named, and the project that we are in."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from mesh.app.assemble import new_run_id
from mesh.app.owner import user_name
from mesh.config.clusters import ClusterFile, clusters_path, find_cluster, load_clusters
from mesh.config.project import Project, load_project
from mesh.config.settings import Options, kept, patient, run_spec, select_hosts
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.run import DEFAULT_LEASE, RunSpec

NOT_NAMED = UsageError("no cluster was named", hint="`mesh clusters` lists them")
LEASE_ON_A_TERMINAL = 900.0  # seconds: a laptop may be closed for a while


def choose_cluster(name: str, options: Options, clusters_file: str, *, all_ready: bool = True) -> Cluster:
    """The cluster less the hosts that were not picked. Raises UsageError, and MeshError if its hosts cannot be known.

    all_ready: refuse a TPU that is not READY; else take its hosts as far as it has any
    """
    found = select_hosts(hosted(named_cluster(name, clusters_file), all_ready=all_ready), options)
    return patient(found, options, os.environ)


def named_cluster(name: str, clusters_file: str) -> Cluster:
    """The cluster as it is written; a TPU has no hosts yet. Raises UsageError."""
    if not name:
        raise NOT_NAMED
    return kept(find_cluster(name, cluster_file(clusters_file)), os.environ)


def hosted(cluster: Cluster, *, all_ready: bool = True, refresh: bool = False) -> Cluster:
    """The cluster with its hosts; all_ready: as above; refresh: ask anew what is known. Raises MeshError."""
    if cluster.tpu is None:
        return cluster
    from mesh.hosts.tpu.discovery import with_hosts

    return with_hosts(cluster, all_ready=all_ready, refresh=refresh)


def cluster_file(named: str) -> ClusterFile:
    """The clusters of a file; one that was named must be there."""
    required = bool(named or os.environ.get("MESH_CLUSTERS"))
    return load_clusters(clusters_path(named, os.environ), required=required)


def project_here() -> Project:
    """The project of the working directory."""
    return load_project(here())


def make_spec(project: Project, options: Options, command: Sequence[str]) -> RunSpec:
    """A new run, as it would be for ``mesh run``."""
    # Off a terminal, a script that is gone is gone.
    # It may be None, or what a program has put in its place.
    is_terminal = getattr(sys.stderr, "isatty", bool)()
    lease = LEASE_ON_A_TERMINAL if is_terminal else DEFAULT_LEASE
    return run_spec(project, options, command, new_run_id(), os.environ, user_name(), _place(), lease)


def _place() -> str:
    """Where this user works, for the name of the workspace on hosts.

    GitHub makes a machine for each job: of what these leave on hosts that stay there is to be one copy, and not one
    for each job.
    """
    repository = os.environ.get("GITHUB_REPOSITORY", "") if os.environ.get("GITHUB_ACTIONS") == "true" else ""
    return f"github.com/{repository}" if repository else socket.gethostname()


def here() -> Path:
    """The working directory. Raises UsageError if it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", hint="cd into a directory that exists") from None
