"""What clusters there are, how to log in there, and the beginning of a project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from mesh.api.choosing import (
    NOT_NAMED,
    cluster_file,
    here,
    hosted,
    named_cluster,
)
from mesh.app.carriers import carrier_of
from mesh.config.clusters import LOCAL, find_cluster
from mesh.config.project import FILE as PROJECT_FILE
from mesh.config.project import TEMPLATE
from mesh.core.errors import MeshError, UsageError


class ClusterLine(Struct, frozen=True, kw_only=True):
    """One line of ``mesh clusters``."""

    name: str
    hosts: tuple[str, ...]  # their names; none if the cluster cannot be used
    problem: str  # why it cannot; "" if it can
    slices: tuple[int, ...] = ()  # how many of the hosts each slice has; (): there are no slices
    note: str = ""  # how its hosts were found, for people; "": they stand in the file


def list_clusters(clusters_file: str = "", *, refresh: bool = False) -> list[ClusterLine]:
    """What cluster.yaml holds, in its order, and the built-in cluster. Raises UsageError if it cannot be read.

    refresh: ask the TPU API for the hosts of all that are TPUs, whatever it has told lately
    """
    file = cluster_file(clusters_file)
    listed = []
    for name, lines in ((LOCAL, ()), *((name, file.problems.get(name, ())) for name in file.names)):
        try:
            if lines:
                raise UsageError("\n".join(lines))
            found = hosted(find_cluster(name, file), refresh=refresh)
        except MeshError as error:
            problem = f"{error}\n{error.hint}".strip()
            listed.append(ClusterLine(name=name, hosts=(), problem=problem))
        else:
            hosts = tuple(host.name for host in found.hosts)
            listed.append(ClusterLine(name=name, hosts=hosts, problem="", slices=found.slices, note=found.note))
    return listed


def cluster_names(clusters_file: str = "") -> list[str]:
    """The clusters that can be named, without a look at their hosts. Raises UsageError."""
    return [LOCAL, *cluster_file(clusters_file).clusters]


def ssh_argv(target: str, words: Sequence[str], clusters_file: str = "") -> list[str]:
    """Return the command line of a shell on a host: ``pod:3``, or ``pod`` for its first one. Raises UsageError.

    words: a command to run there instead, as ssh or the cluster's ``command:`` takes it
    """
    name, colon, number = target.rpartition(":")
    if not colon or not number.isdecimal():
        name, number = target, "0"
    if not name:
        raise NOT_NAMED
    cluster = hosted(named_cluster(name, clusters_file), all_ready=False)
    if int(number) >= len(cluster.hosts):
        raise UsageError(f"no host {number} in {name}: its hosts are 0-{len(cluster.hosts) - 1}")
    host = cluster.hosts[int(number)]
    argv = carrier_of(cluster).shell(cluster, host, words)
    if argv is None:
        raise UsageError(f"{name} is this machine", hint="mesh exec runs a command on every host of it")
    return argv


def init() -> Path:
    """Write a commented mesh.yaml into the working directory and return its path. Raises UsageError if there is one."""
    path = here() / PROJECT_FILE
    try:
        with path.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise UsageError(f"there is a {path} already", hint="edit that one, or remove it first") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path
