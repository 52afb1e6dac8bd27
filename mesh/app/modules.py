"""The modules of a project, made from their descriptions for one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from shlex import quote

from msgspec.structs import replace

from mesh.config.podspec import MadePods
from mesh.config.userspaces import pod_home
from mesh.core.cluster import Cluster
from mesh.core.module import (
    Conda,
    Description,
    Docker,
    Environment,
    Gcsfuse,
    Module,
    Preparation,
    Python,
    Ssh,
)
from mesh.core.run import Kind, PrerunEntry, RunSpec


def preparation_of(
    spec: RunSpec, cluster: Cluster, descriptions: Sequence[tuple[str, Description]], *, undo: bool = False
) -> tuple[RunSpec, Preparation]:
    """Return the spec of a run whose hosts modules prepare, and the modules themselves.

    descriptions: in order, each with the word that names it
    undo: undo what they have set up
    Raises UsageError for local files that cannot be read.
    """
    modules: list[Module] = []
    environment: Environment | None = None
    for _, description in descriptions:
        if type(description) in ENVIRONMENTS:
            environment = ENVIRONMENTS[type(description)](description, spec, cluster)
            modules.append(environment)
        else:
            modules.append(OTHERS[type(description)](description, spec, cluster))
    spec = replace(spec, modules=tuple(name for name, _ in descriptions), undo=undo)
    preparation = Preparation(modules=tuple(modules), environment=environment, undo=undo)
    if spec.kind is not Kind.RUN:
        return spec, preparation
    home = pod_home(os.environ) if isinstance(cluster.source, MadePods) else None
    first = [PrerunEntry(run=_script(home.setup), module=home.setup)] if home else []
    if environment is not None and environment.enter:
        first.append(PrerunEntry(run=environment.enter, module=environment.name))
    return replace(spec, prerun=(*first, *spec.prerun)), preparation


def _script(path: str) -> str:
    """Return shell text that runs a script in its own directory and shell, if it is there."""
    directory, _, name = path.rpartition("/")
    return f"[ ! -e {quote(path)} ] || (cd {quote(directory)} && exec bash {quote(name)})"


def _docker(description: Docker, spec: RunSpec, cluster: Cluster) -> Environment:
    from mesh.modules.docker import DockerEnvironment

    return DockerEnvironment(description)


def _python(description: Python, spec: RunSpec, cluster: Cluster) -> Environment:
    from mesh.app.localuv import local_uv
    from mesh.modules.python import PythonEnvironment
    from mesh.modules.uv import NO_UV

    uv = local_uv(spec.workspace) if description.tool == "uv" else NO_UV
    return PythonEnvironment(description, uv, cluster.remote_dir)


def _conda(description: Conda, spec: RunSpec, cluster: Cluster) -> Environment:
    from mesh.modules.conda import CondaEnvironment

    return CondaEnvironment(description)


def _gcsfuse(description: Gcsfuse, spec: RunSpec, cluster: Cluster) -> Module:
    from mesh.modules.gcsfuse import GcsfuseModule

    return GcsfuseModule(description)


def _ssh(description: Ssh, spec: RunSpec, cluster: Cluster) -> Module:
    from mesh.app.keys import ssh_module

    return ssh_module(description, cluster)


ENVIRONMENTS: Mapping[type[Description], Callable[..., Environment]] = {
    Docker: _docker,
    Python: _python,
    Conda: _conda,
}
OTHERS: Mapping[type[Description], Callable[..., Module]] = {Gcsfuse: _gcsfuse, Ssh: _ssh}
