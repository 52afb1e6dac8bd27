"""Each value of the configuration, and the place that it comes from."""

from __future__ import annotations

import os

from msgspec.structs import replace

from mesh.api.choosing import cluster_file, here, masked, new_client
from mesh.config import schema
from mesh.config.clusters import is_cluster
from mesh.config.project import load_project
from mesh.config.settings import Options
from mesh.config.sources import Setting, cluster_settings, file_setting, project_settings, time_settings
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import UsageError

DEFAULTS = Options()


def config(cluster: str = "", options: Options = DEFAULTS, clusters_file: str = "") -> list[Setting]:
    """Return each value that a run in the working directory would have, and the place that it comes from.

    cluster: the cluster whose values are listed as well; "": the default cluster, if there is one
    Raises UsageError if a file has a fault.
    """
    project = load_project(here())
    found = [file_setting(clusters_file, os.environ), *project_settings(project, os.environ)]
    found += time_settings(project, options, new_client())
    default = next(one.value for one in found if one.name == "default")
    file = cluster_file(clusters_file)
    if name := cluster or (default if is_cluster(default, file) else ""):
        found += cluster_settings(name, file, options, os.environ)
    return [replace(one, value=masked(one.value)) for one in found]


def schema_text(name: str) -> str:
    """Return the JSON Schema of "mesh.yaml" or "cluster.yaml". Raises UsageError."""
    if name not in schema.SCHEMAS:
        raise UsageError(f"--schema: no schema of {name!r}{did_you_mean(name, list(schema.SCHEMAS))}")
    return schema.text(name)
