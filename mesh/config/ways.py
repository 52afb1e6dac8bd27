"""``backend:`` and ``command:`` of a cluster: how its hosts are reached."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from yaml.nodes import Node

from mesh.config import kubernetes, slurm, yamlfile
from mesh.config.yamlfile import Problems
from mesh.core.cluster import Host
from mesh.core.prefix import PLACEHOLDERS, placeholders

SSH, COMMAND = "ssh", "command"
EXPECTED = "ssh or command"
SSH_KEYS = ("user", "port", "identity_file", "gateway", "password_env", "host_keys", "keep", "tpu")  # nothing else's


class Way(Struct, frozen=True, kw_only=True):
    """How the hosts of one cluster are reached, as it stands in the file."""

    backend: str = SSH
    command: tuple[str, ...] = ()

    def allows(self, key: str) -> bool:
        """Return True for a key that means something beside this backend."""
        return self.backend == SSH or key not in SSH_KEYS or key in placeholders(self.command)


def read(keys: Mapping[str, tuple[Node, Node]], name: str, problems: Problems) -> Way:
    """Read both keys of a cluster, and refuse the keys that they leave without a meaning."""
    if kubernetes.KEY in keys:  # whose reader refuses what has no meaning beside it
        return Way(backend=kubernetes.BACKEND)
    if slurm.KEY in keys:
        return Way(backend=slurm.BACKEND)
    backend = yamlfile.text(keys["backend"][1], f"{name}.backend", problems, EXPECTED) if "backend" in keys else SSH
    if backend not in (SSH, COMMAND):
        if backend:
            problems.unexpected(keys["backend"][1], f"{name}.backend", EXPECTED)
        return Way()
    command: tuple[str, ...] = ()
    if "command" in keys:
        node, where = keys["command"][1], f"{name}.command"
        command = yamlfile.texts(node, where, problems, 'a list of words, as [docker, exec, -i, "{name}"]')
        for placeholder in placeholders(command):
            if placeholder not in PLACEHOLDERS:
                known = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
                problems.add(node, where, f"unknown placeholder {{{placeholder}}}; there are {known}")
        if backend != COMMAND:
            problems.add(keys["command"][0], where, "needs backend: command beside it")
        elif not command and not problems.lines:
            problems.add(node, where, "is empty")
    elif backend == COMMAND:
        problems.add(keys["backend"][1], f"{name}.backend", 'needs command: beside it, as [docker, exec, -i, "{name}"]')
    way = Way(backend=backend, command=command)
    for key in keys:
        if not way.allows(key):
            problems.add(keys[key][0], f"{name}.{key}", _refused(key))
    return way


def check_host(way: Way, host: Host, defaults: Host, place: tuple[Node, str], problems: Problems) -> None:
    """Refuse keys of a host that have no meaning, and a host that lacks what ``command:`` needs.

    defaults: the cluster's own values, which were checked; place: of the host in the file
    """
    for key in ("user", "port", "identity_file"):
        value = getattr(host, key)
        if value != getattr(defaults, key) and not way.allows(key):
            problems.add(*place, f"{key}: {_refused(key)}")
        elif not value and key in placeholders(way.command):
            problems.add(*place, f"has no {key}, and command: holds {{{key}}}")


def _refused(key: str) -> str:
    used = f", unless command: holds {{{key}}}" if key in PLACEHOLDERS else ""
    return f"has no meaning beside backend: command{used}"
