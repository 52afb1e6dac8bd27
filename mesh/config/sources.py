"""Each value of the configuration as text, with the place that it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from msgspec import Struct, to_builtins
from msgspec.structs import asdict
from yaml.nodes import MappingNode, Node, SequenceNode

from mesh.config import clusters, yamlfile
from mesh.config.clusters import ClusterFile, find_cluster
from mesh.config.modules import SECTIONS
from mesh.config.places import clusters_place
from mesh.config.programpart import NodePlace
from mesh.config.project import FILE, Project
from mesh.config.settings import (
    DEFAULT,
    KEEP_VARIABLE,
    Client,
    Options,
    chosen_default,
    connect_time,
    times,
)
from mesh.config.variables import is_secret, passed_variables
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError
from mesh.core.notify import Moment, Notification

BUILT_IN = "built-in"  # the place of values of clusters that are in no file
FROM_SSH = "as ssh has it"
CONNECT_TIMES = "10 s to log in, 20 s to start the agent"
NOT_SHOWN = "(not shown)"  # the value of a variable that may be a secret


class Setting(Struct, frozen=True, kw_only=True):
    """A value of the configuration."""

    name: str
    value: str
    place: str  # as "--grace", "MESH_GRACE", "mesh.yaml:12", "cluster.yaml:3" or "default"


def file_setting(flag: str, environ: Mapping[str, str]) -> Setting:
    """Return the file that clusters come from. flag: the value of --clusters"""
    path, place = clusters_place(flag, environ)
    return Setting(name="clusters", value=str(path), place=place or DEFAULT)


def _section(project: Project, name: str) -> str:
    """Return the keys of a module's section in one line; "" where there is none."""
    described = dict(project.modules.descriptions).get(name)
    if described is None:
        return ""
    values = {key: value for key, value in to_builtins(described).items() if value}
    return json.dumps(values)[1:-1] or "by default"


Shown: TypeAlias = Callable[[Project], str]
# Keys with rows of their own are not here: env, default, grace and hang_watch.
PROJECT_VALUES: Mapping[str, Shown] = {
    "commands": lambda project: _joined(one.run for one in project.commands),
    "ignore": lambda project: _joined(project.ignore),
    "include_git": lambda project: _flag(project.include_git),
    "keep_tree": lambda project: _flag(project.keep_tree),
    "prerun": lambda project: _joined(one.run for one in project.prerun),
    "pass": lambda project: _joined(project.passed),
    "secret": lambda project: _joined(project.secret),
    "workspace": lambda project: str(project.workspace),
    "spool": lambda project: _bytes(project.spool),
    "logs": lambda project: _bytes(project.logs),
    "modules": lambda project: ", ".join(name for name, _ in project.modules.descriptions),
    **{name: partial(_section, name=name) for name in SECTIONS},
    "notify": lambda project: _joined(map(_notification, project.notify)),
    "program": lambda project: _joined(map(_nodes, project.program.items())),
    "gpu_share": lambda project: _joined(f"{key}: {name}" for key, name in asdict(project.gpu_share).items() if name),
}


def project_settings(project: Project, environ: Mapping[str, str]) -> list[Setting]:
    """Return the values of mesh.yaml, and the variables that ranks get."""
    default = chosen_default(project, environ)
    found = [Setting(name="default", value=default.text, place=default.place)]
    for key, shown in PROJECT_VALUES.items():
        found.append(Setting(name=key, value=shown(project), place=_place(project, key)))
    for name in passed_variables(project, environ):
        if name not in project.env:
            place = f"environment, by {project.place('secret' if is_secret(project, name) else 'pass')}"
            found.append(Setting(name=f"env.{name}", value=NOT_SHOWN, place=place))
    for name, text in project.env.items():
        value = NOT_SHOWN if is_secret(project, name) else text
        found.append(Setting(name=f"env.{name}", value=value, place=project.place(f"env.{name}")))
    return found


def _notification(one: Notification) -> str:
    """Return a notification in one line.

    >>> _notification(Notification(url_env="HOOK", on=(Moment.DONE, Moment.FAILED)))
    'done, failed: $HOOK'
    """
    how = one.short.value or (f"${one.url_env}" if one.url_env else " ".join(one.command))
    return how if one.on == (Moment.END,) else f"{', '.join(moment.value for moment in one.on)}: {how}"


def _nodes(part: tuple[str, NodePlace]) -> str:
    """Return the place of the nodes of a label in one line. Their environment is left out: it may hold secrets.

    >>> _nodes(("actor", NodePlace(on=("tpu-[1-3]",), gpus=4)))
    'actor: on tpu-[1-3], gpus 4'
    """
    label, place = part
    shown = {"on": " ".join(place.on), "gpus": place.gpus, "python": place.python}
    given = ", ".join(f"{key} {value}" for key, value in shown.items() if value)
    return f"{label}: {given}" if given else label


def _place(project: Project, key: str) -> str:
    if key == "workspace" and key not in project.lines:
        return FILE if project.named else "working directory"
    return project.place(key) or DEFAULT


def time_settings(project: Project, options: Options, client: Client) -> list[Setting]:
    """Return the times of a run. Raises UsageError."""
    chosen = times(project, options, client)
    return [Setting(name=name, value=_seconds(one.value), place=one.place) for name, one in chosen.items()]


# Keys that a cluster may lack, with the value that it then has.
CLUSTER_DEFAULTS: Mapping[str, Callable[[Cluster], str]] = {
    "user": lambda cluster: FROM_SSH,
    "identity_file": lambda cluster: FROM_SSH,
    "port": lambda cluster: FROM_SSH,
    "python": lambda cluster: cluster.python,
    "remote_dir": lambda cluster: cluster.remote_dir,
    "workspace_links": lambda cluster: _flag(cluster.workspace_links),
    "host_keys": lambda cluster: cluster.host_keys.value,
    "devices": lambda cluster: _joined(cluster.devices),
    "keep": lambda cluster: _seconds(cluster.keep),
    "backend": lambda cluster: cluster.backend,
}


def cluster_settings(name: str, file: ClusterFile, options: Options, environ: Mapping[str, str]) -> list[Setting]:
    """Return the values of a cluster. Raises UsageError if there is none of this name, or if it has a fault."""
    cluster = find_cluster(name, file)
    written = _written(name, file)
    found = []
    for key in clusters.CLUSTER_KEYS:
        label, otherwise = f"{name}.{key}", CLUSTER_DEFAULTS.get(key)
        if key == "keep" and environ.get(KEEP_VARIABLE):
            found.append(Setting(name=label, value=environ[KEEP_VARIABLE], place=KEEP_VARIABLE))
        elif key in written:
            line, value = written[key]
            found.append(Setting(name=label, value=value, place=f"{file.path.name}:{line}"))
        elif otherwise and (cluster.backend == "ssh" or otherwise(cluster) != FROM_SSH):
            found.append(Setting(name=label, value=otherwise(cluster), place=DEFAULT if written else BUILT_IN))
    chosen = connect_time(cluster, options, environ)
    value = _seconds(chosen.value) if chosen.value else CONNECT_TIMES
    return [*found, Setting(name=f"{name}.connect-timeout", value=value, place=chosen.place)]


def _written(name: str, file: ClusterFile) -> dict[str, tuple[int, str]]:
    """Return the line and the value of each key of a cluster in the file; nothing for a built-in one."""
    if name not in file.names:
        return {}
    node, _ = yamlfile.load(file.path)
    for key, value in node.value if isinstance(node, MappingNode) else ():
        if key.value == name and isinstance(value, MappingNode):
            return {one.value: (one.start_mark.line + 1, _text(of)) for one, of in value.value}
    raise UsageError(f"{file.path}: no cluster {name!r}")


def _text(node: Node) -> str:
    """Return a value in one line."""
    if isinstance(node, SequenceNode):
        return f"[{_joined(map(_text, node.value))}]"
    if isinstance(node, MappingNode):
        return "{" + _joined(f"{_text(key)}: {_text(value)}" for key, value in node.value) + "}"
    return str(node.value)


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _flag(value: bool) -> str:
    return str(value).lower()


def _seconds(value: float) -> str:
    return f"{value:g} s"


def _bytes(value: int) -> str:
    from mesh.core.amounts import told_bytes

    return told_bytes(value)
