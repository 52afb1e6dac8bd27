"""Source of the hosts of a job: each start writes them into the job's directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from mesh.config.jobname import JobId
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.findings import Finding
from mesh.core.paths import job_directory
from mesh.hosts.interfaces import Purpose

MACHINES = "machines.json"


class JobSource:
    """Hosts that a job has, or had last."""

    def find(self, cluster: Cluster, purpose: Purpose) -> Cluster:
        assert isinstance(cluster.source, JobId)
        job = cluster.source.job
        found = read_machines(job_directory(os.environ, job))
        if found is None:
            raise UsageError(f"job {job} has had no hosts yet, or is not of this machine", hint=f"mesh job show {job}")
        return replace(found, name=cluster.name, keep=cluster.keep)

    def check(self, cluster: Cluster) -> Sequence[Finding]:
        return ()

    def forget(self, cluster: Cluster) -> None: ...

    def origin(self, cluster: Cluster) -> str:
        return "are those of a job"


def write_machines(directory: Path, cluster: Cluster) -> None:
    """Write the hosts of a job into its directory, in one step. Raises OSError."""
    new = directory / f"{MACHINES}.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(replace(cluster, source=None, parts=(), note="")))
    new.replace(directory / MACHINES)


def read_machines(directory: Path) -> Cluster | None:
    """Return the hosts of a job; None if it was never started. Raises MeshError."""
    path = directory / MACHINES
    try:
        return msgspec.json.decode(path.read_bytes(), type=Cluster)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MeshError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise MeshError(f"{path}: {error}") from error
