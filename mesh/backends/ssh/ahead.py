"""TCP connections that are begun while paramiko is still being imported: the hosts' sshd starts meanwhile.

Only where a host's address is a number and no ssh_config can change it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from mesh.backends.ssh.files import FILES, keyword_of, lines_of
from mesh.core.cluster import Cluster

PARALLEL_CONNECTIONS = 32  # connections being opened at a time
SSH_PORT = 22
WHERE = frozenset(("hostname", "port", "proxyjump", "proxycommand"))  # what paramiko's or our own code connects by

Begun = dict[tuple[str, int], socket.socket]  # by address and port; whoever takes one takes it out


@contextlib.contextmanager
def begun(cluster: Cluster) -> Iterator[Begun]:
    """Begin to connect to the first hosts of a cluster; afterwards those that nobody took are closed."""
    found: Begun = {}
    try:
        if not cluster.gateway and not _is_decided_elsewhere():
            for host in cluster.hosts[:PARALLEL_CONNECTIONS]:
                if not host.proxy_command:
                    _begin(found, host.address, host.port or SSH_PORT)
        yield found
    finally:
        for sock in found.values():
            sock.close()


def _is_decided_elsewhere() -> bool:
    """Return True if ssh_config may set the address of a host."""
    try:
        return any(keyword_of(line)[0] in WHERE for path in FILES for line in lines_of(Path(os.path.expanduser(path))))
    except (OSError, ValueError):  # the backend reports the error
        return True


def _begin(found: Begun, address: str, port: int) -> None:
    """Begin one connection, unless it has a name, or is there already: an sshd may turn away who comes too often."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError, ValueError):
        socket.inet_pton(family, address)
        if (address, port) in found:
            return
        sock = socket.socket(family, socket.SOCK_STREAM)
        found[address, port] = sock
        sock.setblocking(False)
        sock.connect_ex((address, port))  # what becomes of it is seen when it is taken
