"""A connection to a node of a run that another process has started, through a channel of its own to the host."""

from __future__ import annotations

import json
import os
import socket

from mesh.app.carriers import Means, carrier_of
from mesh.backends.ssh.passwords import Passwords
from mesh.core.cluster import Cluster
from mesh.core.errors import HostUnreachable
from mesh.core.text import one_line
from mesh.protocol.first import Reach
from mesh.remote.blob import start_command
from mesh.remote.greeting import new_marker
from mesh.remote.pipe import as_socket, begin

LINE_BYTES = 1 << 16  # of the answer


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
        request = Reach(
            marker=new_marker(),
            run=run,
            node=node,
            remote_dir=host.remote_dir or cluster.remote_dir,
            rank=rank,
            wants=wants,
        )
        channel = opened.result
        ahead = begin(channel, request, host.name)
    except BaseException:
        backend.close()
        raise

    def close() -> None:
        channel.close()
        backend.close()

    return as_socket(channel, ahead, close)


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
