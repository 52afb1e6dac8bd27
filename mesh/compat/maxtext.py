"""Command line of MaxText's multihost_runner.py, on mesh."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from mesh.api.choosing import cluster_file, make_spec
from mesh.api.held import find_hosts
from mesh.api.running import run_on
from mesh.app.screen import Showing
from mesh.config import tpu
from mesh.config.clusters import find_cluster
from mesh.config.project import FILE, Project, check_workspace, load_project
from mesh.config.settings import Options
from mesh.config.tpu import TpuName
from mesh.config.tpusource import TpuMade
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.run import SHELL
from mesh.hosts.interfaces import Purpose
from mesh.rundir.results import RunResult

SCP_TIMEOUT_SECS = 600  # as there
LEFT_OUT = "tmp"  # the directory that it does not copy
_RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def multihost(
    command: str,
    *,
    tpu_prefix: str,
    script_dir: str = "",
    run_name: str = "",
    use_existing_folder: bool = False,
    internal_ip: bool | None = None,
    project: str = "",
    zone: str = "",
    scp_timeout_secs: float = SCP_TIMEOUT_SECS,
    clusters_file: str = "",
    output: str = "all",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run shell text on every worker of the TPU of that name, or of PREFIX-0, PREFIX-1, ..., in a copy of a directory.

    script_dir: what every host gets a copy of; "": the working directory
    run_name: the copy's name on the hosts; "": mesh's own for the directory, always the same
    use_existing_folder: take the copy that is there, and send nothing
    internal_ip: whether this machine is in the TPUs' network; None: as can be seen
    project, zone: where the TPUs are; "": as gcloud is set
    scp_timeout_secs: in which the directory must be on all hosts; 0: whatever it takes
    clusters_file, output, json, quiet: as with run; a cluster that has the TPU's name, and is it, has its settings here
    stdout and stderr of a rank are one stream, as they are there. Raises UsageError and MeshError.
    """
    if not command or "\0" in command:
        raise UsageError("expected a command as text for bash, without zero bytes")
    if run_name and not _RUN_NAME.fullmatch(run_name):
        raise UsageError(f"--RUN_NAME: expected letters, digits and any of ._- , found {run_name!r}")
    here = named_project(script_dir)
    named = _cluster(tpu_prefix, project, zone, internal_ip, clusters_file)
    found = find_hosts(named, Purpose.RUN)
    if internal_ip and isinstance(named.source, TpuMade):
        found = replace(
            found, hosts=tuple(replace(host, address=host.internal_ip or host.address) for host in found.hosts)
        )
    # The runner writes both to one file, and to the terminal's stdout.
    spec = make_spec(here, Options(evict=True), (*SHELL, f"exec 2>&1\n{command}"))
    spec = replace(
        spec,
        project=run_name or spec.project,
        sync=not use_existing_folder,
        existing=use_existing_folder,
        sync_timeout=scp_timeout_secs,
        claim=True,
    )
    return run_on(found, spec, Showing(output=output, json=json, quiet=quiet))


def named_project(script_dir: str) -> Project:
    """Return the directory that was named, with its own mesh.yaml if it has one."""
    directory = Path(script_dir or ".").expanduser()
    if not directory.is_dir():
        raise UsageError(f"--SCRIPT_DIR: there is no directory {directory}")
    directory = directory.resolve()
    named = (directory / FILE).exists()
    found = load_project(directory) if named else Project(workspace=directory, named=bool(script_dir))
    check_workspace(found, Path.home())
    return replace(found, ignore=(LEFT_OUT, *found.ignore))


def _cluster(name: str, project: str, zone: str, internal_ip: bool | None, clusters_file: str) -> Cluster:
    """Return the TPU, with the settings of a cluster that is the same one. Raises UsageError."""
    given = tpu.prefix(name, project, zone, ("--TPU_PREFIX", "--PROJECT", "--ZONE"))
    file = cluster_file(clusters_file)
    cluster = file.clusters.get(name)
    if cluster is not None and isinstance(cluster.source, TpuMade):  # by `mesh up`
        return cluster
    from mesh.hosts.tpu.discovery import zone_here

    if cluster is None or not isinstance(cluster.source, TpuName) or not _is_same(cluster.source, given):
        # The name holds project and zone, so that commands find the run later, whatever gcloud is set to then.
        there = zone_here(given)
        cluster = find_cluster(f"{tpu.BUILT_IN}{there.project}/{there.zone}/{name}", file)
    if internal_ip is None:
        return cluster
    assert isinstance(cluster.source, TpuName)
    return replace(cluster, source=replace(cluster.source, internal_ip=str(internal_ip).lower()))


def _is_same(tpu: TpuName, given: TpuName) -> bool:
    """True if the cluster's TPU, with gcloud's settings, has the name, project and zone that were given."""
    from mesh.hosts.tpu.discovery import zone_here

    pairs = ((given.project, tpu.project), (given.zone, tpu.zone))
    if given.name != tpu.name or any(ours and theirs and ours != theirs for ours, theirs in pairs):
        return False
    if all(theirs or not ours for ours, theirs in pairs):
        return True
    try:
        there = zone_here(tpu)
    except MeshError:
        return False
    return (given.project or there.project, given.zone or there.zone) == (there.project, there.zone)
