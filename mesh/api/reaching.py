"""A connection to a node of a run that another process has started, through a channel of its own to the host."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading

from mesh.app.carriers import Means, carrier_of
from mesh.backends.ssh.passwords import Passwords
from mesh.core.cluster import Cluster
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.interfaces import Backend, Channel
from mesh.core.text import one_line
from mesh.protocol.first import Program, Reach
from mesh.protocol.messages import encode
from mesh.remote.blob import blob, lacking, opening, start_command
from mesh.remote.greeting import MAX_BANNER_BYTES, new_marker

LINE_BYTES = 1 << 16  # of the answer
SEND_BYTES = 1 << 16


def reach(cluster: Cluster, run: str, node: int, rank: int, *, wants: str) -> socket.socket:
    """Return a stream socket: to a node (wants="calls"), or one to read its result from (wants="result").

    With wants="plan" the run's plan can be read from it, of any rank.
    node: index of its host in the cluster. Call ``answer_of`` before the first byte. The caller closes the socket.
    Raises HostUnreachable and MeshError.
    """
    carrier = carrier_of(cluster)
    means = Means(environ=os.environ, passwords=Passwords(cluster.password_env, os.environ))
    backend = carrier.open(cluster, means)
    backend.listen(lambda event: None)
    host = cluster.hosts[node]
    try:
        (opened,) = backend.open((host,), start_command(cluster.python))
        if isinstance(opened.result, HostUnreachable):
            raise opened.result
        marker = new_marker()
        request = Reach(
            marker=marker,
            run=run,
            node=node,
            remote_dir=host.remote_dir or cluster.remote_dir,
            rank=rank,
            wants=wants,
        )
        opened.result.send(opening() + encode(request))
        ahead = _greeted(opened.result, marker)
        if ahead is None:
            farewell = opened.result.farewell()
            reason = one_line(farewell.stderr.decode("utf-8", "replace"))[-200:]
            raise MeshError(f"{host.name}: its Python does not start ({reason or 'the connection ended'})")
    except BaseException:
        backend.close()
        raise
    own, theirs = socket.socketpair()
    for work in (_receive, _send):
        arguments = (backend, opened.result, own, ahead)
        threading.Thread(target=work, args=arguments, name="mesh-reach", daemon=True).start()
    return theirs


def answer_of(connection: socket.socket) -> str:
    """Read the answer of a host: "" for success, else the reason. Raises OSError; the connection's timeout counts."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES:
        piece = connection.recv(1)  # the bytes behind the line are the node's
        if not piece:
            return "the connection to its host has ended"
        line += piece
    try:
        return one_line(str(json.loads(line)["why"]))
    except (ValueError, KeyError, TypeError):
        return "its host does not speak our protocol"


def _greeted(channel: Channel, marker: str) -> bytes | None:
    """Read up to the greeting of our program; return the bytes behind it, None if it does not come."""
    banner, has_all = b"", False
    while chunk := channel.receive():
        banner += chunk
        if not has_all and lacking() in banner:
            has_all = True
            channel.send(encode(Program(), blob()))
        _, found, rest = banner.partition(b"\n%s\n" % marker.encode())
        if found:
            return rest
        if len(banner) > MAX_BANNER_BYTES:
            break
    return None


def _receive(backend: Backend, channel: Channel, own: socket.socket, ahead: bytes) -> None:
    """Pass on what comes from the host, until either end leaves."""
    with contextlib.suppress(OSError, MeshError):
        data = ahead or channel.receive()
        while data:
            own.sendall(data)
            data = channel.receive()
    with contextlib.suppress(OSError):
        own.shutdown(socket.SHUT_RDWR)  # wakes the other thread


def _send(backend: Backend, channel: Channel, own: socket.socket, ahead: bytes) -> None:
    """Pass on what the caller sends; then end the channel."""
    with contextlib.suppress(OSError, MeshError):
        while data := own.recv(SEND_BYTES):
            channel.send(data)
    channel.close()
    backend.close()
    own.close()
