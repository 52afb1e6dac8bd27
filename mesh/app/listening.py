"""Sockets of this machine at which programs reach a port of a host."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from mesh.core.cluster import Cluster, Host
from mesh.core.errors import UsageError
from mesh.core.forwarding import Forwarded

LOOPBACK = "127.0.0.1"
WAITING_CONNECTIONS = 1024  # to be accepted
SOCKET_MODE = 0o600


class Place(Struct, frozen=True, kw_only=True):
    """A socket that listens on this machine, and the port that it leads to."""

    node: int  # index of the host
    host: str  # its name
    port: int  # there
    listener: socket.socket
    path: str = ""  # of a Unix socket; "": it is a port of loopback
    taken: int = 0  # the port that was wanted, and is another program's; 0: none

    @property
    def told(self) -> str:
        """The place in one line, for people."""
        if self.path:
            return f"{self.host}:{self.port}  {self.path}"
        note = f"  ({self.taken} is taken)" if self.taken else ""
        return f"{self.host}:{self.port}  http://{LOOPBACK}:{self.listener.getsockname()[1]}{note}"

    def close(self) -> None:
        """Stop listening; a Unix socket is removed."""
        self.listener.close()
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def listen(cluster: Cluster, ports: Sequence[Forwarded]) -> list[Place]:
    """Listen on loopback for each port of each host; one that is taken is replaced. Raises OSError."""
    hosts = cluster.hosts
    pairs = [(port, node) for port in dict.fromkeys(ports) for node in range(len(hosts))]
    # A host that is this machine has its ports here: a connection would come back to us for ever.
    theirs = {port.remote for port in ports} if cluster.backend == "local" else set()
    found: dict[tuple[Forwarded, int], tuple[socket.socket, int]] = {}
    try:
        # Those that were asked for come first, so that no replacement has one of them.
        for pair in sorted(pairs, key=lambda pair: not pair[0].wanted(pair[1])):
            wanted = pair[0].wanted(pair[1])
            if wanted not in theirs:
                with contextlib.suppress(OSError):
                    found[pair] = _bound(wanted), 0
        for port, node in pairs:
            if (port, node) not in found:
                found[port, node] = _bound(0), port.wanted(node)
    except BaseException:
        for listener, _ in found.values():
            listener.close()
        raise
    return [
        Place(node=node, host=hosts[node].name, port=port.remote, listener=listener, taken=taken)
        for (port, node) in pairs
        for listener, taken in [found[port, node]]
    ]


def listen_at(path: str, host: Host, port: int) -> Place:
    """Listen at a Unix socket that only this user can open. Raises UsageError if there is something else."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _make_way(path)
        # Bound where no other user can connect, and moved once its mode is right.
        with tempfile.TemporaryDirectory(prefix=".mesh-", dir=Path(path).parent) as private:
            own = os.path.join(private, "s")
            listener.bind(own)
            os.chmod(own, SOCKET_MODE)
            listener.listen(WAITING_CONNECTIONS)
            os.rename(own, path)
    except OSError as error:
        listener.close()
        raise UsageError(f"--socket {path}: {error.strerror or error}", hint="--socket ~/forward.sock") from error
    except UsageError:
        listener.close()
        raise
    return Place(node=0, host=host.name, port=port, listener=listener, path=path)


def _bound(port: int) -> socket.socket:
    """Return a socket that listens on a port of loopback; 0: any. Raises OSError."""
    listener = socket.socket(socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(WAITING_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def _make_way(path: str) -> None:
    """Remove a socket that a killed process has left. Raises UsageError for anything else, and OSError."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)
                return
    raise UsageError(f"--socket {path}: it exists already", hint="name a path where nothing is")
