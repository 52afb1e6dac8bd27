"""The cluster of a program: named by the launch, or found by the hosts that its nodes name."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from mesh.api.choosing import choose_cluster, cluster_file
from mesh.config.hosts import split
from mesh.config.selectors import HOST_LIST
from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError

SSH_CONFIG = "~/.ssh/config"


class Found(Struct, frozen=True, kw_only=True):
    """The hosts of a launch."""

    cluster: str  # a selector
    hosts: tuple[str, ...]
    names: Mapping[str, str]  # hosts as nodes name them: their names in the cluster


def find_hosts(selector: str, named: Sequence[str], options: Options) -> Found:
    """Return the hosts of a launch. selector: "" to find it by the hosts that nodes name

    Raises UsageError for a host that is not there, with the nearest name.
    """
    if selector:
        cluster = choose_cluster(selector, options, "")
        return Found(cluster=selector, hosts=_names(cluster), names=_checked(named, cluster))
    if not named:
        hint = 'lp.launch(program, cluster="pod"), node.to_host("host"), or MESH_CLUSTER'
        raise UsageError("neither a cluster nor a host is named", hint=hint)
    clusters = [one for one in cluster_file("").clusters.values() if one.hosts]
    best = max(clusters, key=lambda one: sum(_has(one, name) for name in named), default=None)
    if best is not None and any(_has(best, name) for name in named):
        return Found(cluster=best.name, hosts=_names(best), names=_checked(named, best))
    _check_aliases(named)
    written = {name: split(name)[1] for name in named}
    return Found(cluster=HOST_LIST + ",".join(named), hosts=tuple(dict.fromkeys(written.values())), names=written)


def _names(cluster: Cluster) -> tuple[str, ...]:
    return tuple(host.name for host in cluster.hosts)


def _has(cluster: Cluster, name: str) -> bool:
    return any(name in (host.name, host.address) for host in cluster.hosts)


def _checked(named: Sequence[str], cluster: Cluster) -> dict[str, str]:
    """Return the name of each host in a cluster. Raises UsageError for one that it does not have."""
    known = {host.address: host.name for host in cluster.hosts} | {host.name: host.name for host in cluster.hosts}
    for name in named:
        if name not in known:
            near = get_close_matches(name, known, 1)
            # In the message, because a program that is a file shows it by Python's own traceback.
            text = f"the nearest is {near[0]}" if near else f"it has {', '.join(_names(cluster)[:8])}"
            raise UsageError(f"no host {name!r} in {cluster.name}; {text}")
    return {name: known[name] for name in named}


def _check_aliases(named: Sequence[str]) -> None:
    """Raise UsageError for a host without an address whose name is nearly that of an alias of ssh_config."""
    aliases = _aliases()
    for name in named:
        host = split(name)[1]
        near = [] if host in aliases else get_close_matches(host, {*aliases, *named} - {name}, 1)
        if near and not _has_address(host):
            raise UsageError(f"no host {host!r}: it has no address; the nearest is {near[0]}")


def _aliases() -> set[str]:
    path = Path(os.path.expanduser(SSH_CONFIG))
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return set()
    words = [line.split() for line in lines]
    return {alias for found in words if found and found[0].lower() == "host" for alias in found[1:] if "*" not in alias}


def _has_address(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
