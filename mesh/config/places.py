"""The places of the user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CLUSTERS_FILE = "cluster.yaml"


def clusters_path(flag: str, environ: Mapping[str, str]) -> Path:
    """Return the path of the clusters: --clusters, MESH_CLUSTERS, or in the user's configuration directory."""
    return clusters_place(flag, environ)[0]


def clusters_place(flag: str, environ: Mapping[str, str]) -> tuple[Path, str]:
    """Return the path of the clusters, and the place that names it; "" if it is the usual one."""
    variable = environ.get("MESH_CLUSTERS", "")
    named = flag or variable
    if not named:
        return config_directory(environ) / CLUSTERS_FILE, ""
    return Path(named).expanduser(), "--clusters" if flag else "MESH_CLUSTERS"


def config_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's own files for mesh."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification has relative paths ignored.
    directory = Path(base) if base.startswith("/") else Path.home() / ".config"
    return directory / "mesh"
