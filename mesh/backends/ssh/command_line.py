"""Command lines of the system's ssh, for a terminal on a host and for messages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.core.findings import Finding, warning


def shell_argv(cluster: Cluster, host: Host, words: Sequence[str]) -> list[str]:
    """Return the argv of a login on a host. words: a command for it, as ssh takes it; none for a shell"""
    checking = "yes" if cluster.host_keys is HostKeys.STRICT else "accept-new"
    argv = ["ssh", "-o", f"StrictHostKeyChecking={checking}", *_options(cluster, host)]
    argv += ["-l", host.user] if host.user else []
    return [*argv, host.address, *words]


def ssh_command(cluster: Cluster, host: Host) -> str:
    """Return the line by which the user may try a host."""
    return shlex.join(["ssh", *_options(cluster, host), _login(host), "true"])


def described(host: Host) -> str:
    """Return how a host is reached, for people."""
    return _login(host) + (f":{host.port}" if host.port else "")


def _login(host: Host) -> str:
    return f"{host.user}@{host.address}" if host.user else host.address


def _options(cluster: Cluster, host: Host) -> list[str]:
    argv: list[str] = []
    for flag, value in (
        ("-p", str(host.port) if host.port else ""),
        ("-i", host.identity_file),
        ("-J", cluster.gateway),
        ("-o", f"ProxyCommand={host.proxy_command}" if host.proxy_command else ""),
        ("-o", f"HostKeyAlias={host.key_alias}" if host.key_alias else ""),
    ):
        argv += [flag, value] if value else []
    return argv


def key_file(host: Host) -> list[Finding]:
    """Return a warning where others can read the private key of a host: ssh refuses such a key, mesh does not."""
    try:
        mode = os.stat(host.identity_file).st_mode if host.identity_file else 0
    except OSError:  # the login shows it
        return []
    if not mode & 0o077:
        return []
    told = f"{host.identity_file} can be read by others, so that ssh does not use it"
    return [warning("login", told, f"chmod 600 {shlex.quote(host.identity_file)}")]
