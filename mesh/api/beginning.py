"""Files of the user that mesh begins: a project, a cluster in cluster.yaml, and the schemas for editors."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from mesh.api.choosing import here
from mesh.config import schema
from mesh.config.clusters import ClusterFile, cluster_text, load_clusters
from mesh.config.places import CLUSTERS_FILE, clusters_path, config_directory
from mesh.config.project import FILE as PROJECT_FILE
from mesh.config.templates import COMMENTED, TEMPLATES
from mesh.config.yamlfile import did_you_mean
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError

MODELINE = "# yaml-language-server: $schema={}\n"  # by which editors find the schema of a YAML file
NEW_FILE_MODE = 0o644


def init(template: str = "") -> Path:
    """Write a mesh.yaml into the working directory, and the other files of a template beside it; return its path.

    template: "" for a commented mesh.yaml, else one of "jax-tpu", "torch-ddp", "maxtext" and "uv"
    Raises UsageError if one of the files is there already; then none is written.
    """
    if template and template not in TEMPLATES:
        raise UsageError(f"--template: no template {template!r}{did_you_mean(template, list(TEMPLATES))}")
    directory = here()
    texts = {directory / name: text for name, text in (TEMPLATES[template] if template else COMMENTED).items()}
    for path in texts:
        if path.is_symlink() or path.exists():
            raise UsageError(f"there is a {path} already", hint="edit that one, or remove it first")
    for path, text in texts.items():
        try:
            with path.open("x") as file:
                file.write(_modeline(PROJECT_FILE, path) + text if path.name == PROJECT_FILE else text)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return directory / PROJECT_FILE


def add_cluster(name: str, hosts: Sequence[str], clusters_file: str = "") -> Cluster:
    """Append a cluster to cluster.yaml, whose own text stays as it is; return the cluster.

    hosts: as they stand in the file, such as "me@tpu-[0-3]:22"
    Raises UsageError if the reader finds a fault, or if the file cannot be written; it is then as before.
    """
    if not hosts:
        raise UsageError(f"--add {name}: expected its hosts", hint=f"mesh clusters --add {name} HOST ...")
    named = clusters_path(clusters_file, os.environ)
    path = named.resolve()  # a link to the file stays a link
    file = load_clusters(path, required=False)
    if name in file.names:
        raise UsageError(f"there is a cluster {name!r} in {named} already", hint=f"edit {named}")
    added = cluster_text(name, hosts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else _modeline(CLUSTERS_FILE, path).encode()
        gap = b"" if not before or before.endswith(b"\n") else b"\n"
        with _beside(path) as new:
            new.write_bytes(before + gap + (b"\n" if file.names else b"") + added.encode())
            cluster = _checked(name, file, new, added)
            new.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return cluster


def _checked(name: str, before: ClusterFile, new: Path, added: str) -> Cluster:
    """Return the new cluster, if all others are as before. Raises UsageError."""
    try:
        file = load_clusters(new, required=True)
        has_others = name in file.names and {**file.clusters, name: None} == {**before.clusters, name: None}
    except UsageError:
        has_others = False
    if not has_others:
        hint = "add it yourself:\n" + added.rstrip()
        raise UsageError(f"{before.path}: a cluster cannot be appended to what stands there", hint=hint)
    if name in file.problems:
        lines = [line.partition(": ")[2] for line in file.problems[name]]
        raise UsageError("\n".join(lines))
    return file.clusters[name]


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield a new file in the same directory, with the mode of a file; remove it if it is still there afterwards."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    new = Path(name)
    try:
        os.fchmod(descriptor, path.stat().st_mode & 0o7777 if path.exists() else NEW_FILE_MODE)
        os.close(descriptor)
        yield new
    finally:
        new.unlink(missing_ok=True)


def _modeline(name: str, path: Path) -> str:
    """Return the first line of a YAML file for editors, "" if its schema cannot be written. name: as in SCHEMAS"""
    directory = config_directory(os.environ)
    target = directory / f"{name.partition('.')[0]}.schema.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text() != schema.text(name):
            with _beside(target) as new:
                new.write_text(schema.text(name))
                new.replace(target)
    except OSError:
        return ""
    return MODELINE.format(target.name if path.parent == directory.resolve() else target)
