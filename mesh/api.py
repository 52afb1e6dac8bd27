"""What mesh does, as functions: picks backend and sinks. Concrete classes meet here, and only here."""

from __future__ import annotations

import dataclasses
import getpass
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.config.clusters import clusters_path, find_cluster, load_clusters
from mesh.config.project import check_workspace, load_project
from mesh.config.settings import RunFlags, run_spec, select_hosts
from mesh.core.cluster import Cluster, Placement
from mesh.core.run import RunSpec

if TYPE_CHECKING:
    from mesh.core.interfaces import Backend, Sink

LEASE_ON_A_TERMINAL = 900.0  # seconds: a laptop may be closed for a while
LEASE_OFF_IT = 60.0  # seconds: a script that is gone is gone


@dataclass(frozen=True, kw_only=True)
class ClusterLine:
    """One line of ``mesh clusters``."""

    name: str
    hosts: int  # 0 if the cluster cannot be used
    problem: str  # why it cannot; "" if it can


def run(
    words: list[str],
    *,
    cluster: str,
    flags: RunFlags,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    json: bool = False,
    dry_run: bool = False,
) -> int:
    """Run a command on every rank of a cluster and return the exit status that the README's table names.

    words: the command as it was typed after the cluster's name
    output: "all", "rank0" or "none"; label: "rank" or "host"
    json: events as JSON lines on stdout; what is for people goes to stderr in any case
    dry_run: tell what would be done, and do nothing
    Raises UsageError for wrong flags or files; whatever goes wrong later is told, and is in the status.
    """
    home = Path.home()
    found = find_cluster(cluster, load_clusters(clusters_path(clusters_file, os.environ), required=False))
    found = select_hosts(found, flags)
    project = load_project(Path.cwd())
    check_workspace(project, home)
    spec = run_spec(project, flags, words, new_run_id(), os.environ, getpass.getuser(), socket.gethostname())
    lease = LEASE_ON_A_TERMINAL if sys.stderr.isatty() else LEASE_OFF_IT
    spec = dataclasses.replace(spec, lease=lease, lock=spec.lock and found.backend != "local")
    placement = Placement(hosts=found.hosts, nproc=spec.nproc)
    if dry_run:
        for line in _plan(spec, found, placement):
            print(line)
        return 0
    _raise_descriptor_limit()
    return _launch(spec, found, placement, output=output, label=label, json=json)


def _launch(spec: RunSpec, cluster: Cluster, placement: Placement, *, output: str, label: str, json: bool) -> int:
    from mesh.engine.launcher import Launcher, Local
    from mesh.sinks.jsonl import JsonSink
    from mesh.sinks.store import StoreSink
    from mesh.sinks.terminal import TerminalSink

    store = StoreSink(
        directory=runs_directory(os.environ) / spec.run, spec=spec, cluster_name=cluster.name, placement=placement
    )
    terminal = TerminalSink(
        placement=placement, mode="none" if json else output, label=label, stdout_fd=1, stderr_fd=2, environ=os.environ
    )
    sinks: list[Sink] = [store, terminal]
    if json:
        sinks.append(JsonSink(placement=placement, stdout_fd=1))
    with tempfile.TemporaryDirectory(prefix="mesh-") as scratch:
        local = Local(owner=_owner(spec, cluster) if spec.lock else None, pack=lambda: _pack(spec, Path(scratch)))
        outcome = Launcher(spec, cluster, placement, BACKENDS[cluster.backend](cluster), sinks, local).run()
    store.finish(outcome)
    terminal.conclude(outcome, store)
    return outcome.exit_code


def _pack(spec: RunSpec, scratch: Path) -> Path:
    from mesh.workspace.ignore import load_rules
    from mesh.workspace.listing import walk
    from mesh.workspace.pack import make

    path = scratch / "workspace.zip"
    make(walk(spec.workspace, load_rules(spec.workspace, spec.ignore)), spec.workspace, path)
    return path


def _owner(spec: RunSpec, cluster: Cluster) -> dict[str, object]:
    """What the lock on the hosts tells those who find it."""
    return {
        "run": spec.run,
        "cluster": cluster.name,
        "user": getpass.getuser(),
        "machine": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.time(),
        "command": shlex.join(spec.command)[:200],
    }


def _local_backend(cluster: Cluster) -> Backend:
    from mesh.backends.local import LocalBackend

    return LocalBackend()


def _ssh_backend(cluster: Cluster) -> Backend:
    from mesh.backends.ssh import SshBackend

    return SshBackend(cluster)


BACKENDS: Mapping[str, Callable[[Cluster], Backend]] = {"local": _local_backend, "ssh": _ssh_backend}
