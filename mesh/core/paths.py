"""Directories of this user on this machine, by the XDG Base Directory Specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mesh.core.errors import MeshError


def runs_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that holds the run directories, below XDG_STATE_HOME."""
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "mesh" / "runs"


def kept_trees_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that holds the contents of workspaces of runs, below XDG_STATE_HOME."""
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "mesh" / "kept"


def jobs_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that holds jobs, their store and their snapshots: MESH_STORE, else below XDG_STATE_HOME."""
    if environ.get("MESH_STORE", "").startswith("/"):
        return Path(environ["MESH_STORE"])
    return _base(environ, "XDG_STATE_HOME", ".local/state") / "mesh" / "jobs"


def job_directory(environ: Mapping[str, str], job: int) -> Path:
    """Return the directory of one job."""
    return jobs_directory(environ) / str(job)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for files that mesh can make again, below XDG_CACHE_HOME."""
    return _base(environ, "XDG_CACHE_HOME", ".cache") / "mesh"


def open_lock(path: Path) -> int:
    """Return the descriptor of a file for flock(2), in a directory of this user alone. Raises MeshError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MeshError(f"cannot write {path}: {error.strerror}") from error


def _base(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the directory that a variable names; a relative one is ignored, by the specification."""
    named = environ.get(variable, "")
    return Path(named) if named.startswith("/") else Path.home() / default
