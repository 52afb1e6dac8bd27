"""Sockets of this machine at which programs reach a port of a host."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path

from msgspec import Struct

from mesh.core.cluster import Host
from mesh.core.errors import UsageError
from mesh.core.forwarding import Forwarded

LOOPBACK = "127.0.0.1"
WAITING_CONNECTIONS = 1024  # to be accepted
SOCKET_MODE = 0o600
PATH_BYTES_MAX = 107  # of a Unix socket, as in unix(7)


class Place(Struct, frozen=True, kw_only=True):
    """A socket that listens on this machine, and the port that it leads to."""

    node: int  # index of the host
    host: str  # its name
    port: int  # there
    listener: socket.socket
    path: str = ""  # of a Unix socket; "": it is a port of loopback
    instead: str = ""  # the port that was wanted, and why it cannot be had; "": it is this one

    @property
    def told(self) -> str:
        """The place in one line, for people."""
        if self.path:
            return f"{self.host}:{self.port}  {self.path}"
        note = f"  ({self.instead})" if self.instead else ""
        return f"{self.host}:{self.port}  http://{LOOPBACK}:{self.listener.getsockname()[1]}{note}"

    def close(self) -> None:
        """Stop listening; a Unix socket is removed."""
        self.listener.close()
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def listen(
    hosts: Sequence[Host], ports: Sequence[Forwarded], *, without: Container[int] = (), here: Container[int] = ()
) -> list[Place]:
    """Listen on loopback for each port of each host; one that cannot be had is replaced. Raises OSError.

    without: indexes of hosts that get none; here: those of hosts that have the loopback of this process
    """
    nodes = [node for node in range(len(hosts)) if node not in without]
    pairs = [(port, node) for port in dict.fromkeys(ports) for node in nodes]
    # At one of these, a connection would come back to us for ever.
    theirs = {port.remote for port, node in pairs if node in here}
    reasons: dict[tuple[Forwarded, int], str] = {}
    with contextlib.ExitStack() as opened:
        found: dict[tuple[Forwarded, int], socket.socket] = {}
        for port, node in pairs:  # before any replacement, which could be one of these
            if wanted := port.wanted(node):
                try:
                    found[port, node] = opened.enter_context(_wanted(wanted, theirs))
                except OSError as error:
                    reasons[port, node] = f"{wanted} {_reason(error)}"
        for pair in pairs:
            if pair not in found:
                found[pair] = opened.enter_context(_bound_beside(theirs))
        opened.pop_all()
    return [
        Place(
            node=node,
            host=hosts[node].name,
            port=port.remote,
            listener=found[port, node],
            instead=reasons.get((port, node), ""),
        )
        for port, node in pairs
    ]


class _OfHost(OSError):
    """A port that must be left to the host, because the host is this machine."""


def _wanted(port: int, theirs: Container[int]) -> socket.socket:
    """Return a socket that listens at a port. Raises OSError."""
    if port in theirs:
        raise _OfHost
    return _bound(port)


def _reason(error: OSError) -> str:
    """Return why a port cannot be had, behind its number.

    >>> _reason(PermissionError(errno.EACCES, ""))  # below 1024, for any user but root
    'cannot be had: Permission denied'
    """
    if isinstance(error, _OfHost):
        return "is the host's own port"
    return "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had: {os.strerror(error.errno or 0)}"


def _bound_beside(theirs: Container[int]) -> socket.socket:
    """Return a socket that listens on any port but some. Raises OSError."""
    with contextlib.ExitStack() as others:
        while (listener := _bound(0)).getsockname()[1] in theirs:
            others.callback(listener.close)  # not before another one is found
        return listener


def listen_at(path: str, host: Host, port: int) -> Place:
    """Listen at a Unix socket that only this user can open. Raises UsageError if there is something else."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        text = f"--socket {path}: no program connects to a path of more than {PATH_BYTES_MAX} bytes"
        raise UsageError(text, hint="--socket ~/forward.sock")
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
