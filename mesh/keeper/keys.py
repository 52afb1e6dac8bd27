"""Keys of hosts: a command asks the keeper for an agent by all that decides how its host is reached.

So a name that means another machine now has another key. The key holds the text of ssh_config and not its
meaning for the host, because only Fabric and paramiko can work that out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mesh.backends.ssh.files import FILES, keyword_of, lines_of
from mesh.core.cluster import Cluster

LOGIN_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # variables by which Python finds the local user's name
KEY_BYTES = 16


def keys_of(
    cluster: Cluster, argv: Sequence[str], environ: Mapping[str, str], ways: Callable[[], Sequence[str]]
) -> dict[int, str]:
    """Return the keys of a cluster's hosts by node, without those whose connections cannot be kept.

    argv: starts the agent
    ways: works out how each host is reached; called only where the text of ssh_config does not decide it. ``""``: by
    a ProxyCommand, which may be unable to log in again
    Raises OSError if ssh_config cannot be read.
    """
    lines = [line for path in FILES for line in ("\0", *lines_of(Path(os.path.expanduser(path))))]
    shared = [list(argv), cluster.gateway, cluster.host_keys.value, [environ.get(name) for name in LOGIN_NAMES], lines]
    beginning = hashlib.blake2b(json.dumps(shared).encode(), digest_size=KEY_BYTES)
    resolved = ways() if any(map(_asks_elsewhere, lines)) else None
    keys = {}
    for node, host in enumerate(cluster.hosts):
        if host.proxy_command or (resolved and not resolved[node]):
            continue
        way = [host.address, host.port, host.user, host.identity_file, host.key_alias, resolved and resolved[node]]
        digest = beginning.copy()
        digest.update(json.dumps(way).encode())
        keys[node] = digest.hexdigest()
    return keys


def _asks_elsewhere(line: str) -> bool:
    """True for a line of ssh_config whose meaning depends on a program or on DNS."""
    keyword, value = keyword_of(line)
    return keyword == "canonicalizehostname" or (keyword == "match" and "exec" in value.lower())
