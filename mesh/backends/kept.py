"""Agents that wait on hosts for the next command. The user's keeper (api/keeper.py) holds them, and their connections.

A socket of the keeper is asked for one host at a time. If an agent waits there, the socket itself becomes the way to
it: packets whose first byte is DATA, or END with how it ended. If not, or if there is no keeper, the host is reached as
ever.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mesh.core.cluster import Cluster, Host, HostKeys
from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Farewell

PACKET = 1 << 16  # bytes of one, with its first one; a socket takes several
MOST = 1 << 17  # bytes of a request
DATA, END = b"d", b"e"
ANSWER = 5.0  # seconds for the keeper to say whether it has an agent; it looks whether the host answers
# Of a host: they say nothing of how it is reached.
NO_ADDRESS = ("name", "hints", "remote_dir", "internal_ip", "worker")


class KeptChannel:
    """The way to an agent that was started before, through the keeper."""

    def __init__(self, way: socket.socket, address: str, ahead: bytes) -> None:
        """ahead: what the agent was sent already."""
        self.address = address
        self._way, self._ahead = way, ahead
        self._farewell = Farewell(status=None, stderr=b"")

    def send(self, data: bytes) -> None:
        if self._ahead:
            assert data.startswith(self._ahead), "an agent is sent something else first"
            data, self._ahead = data[len(self._ahead) :], b""
        try:
            for place in range(0, len(data), PACKET - 1):
                self._way.send(DATA + data[place : place + PACKET - 1])
        except OSError as error:
            raise ChannelClosed("the keeper is gone, or has lost the host") from error

    def receive(self) -> bytes:
        try:
            packet = self._way.recv(PACKET)
        except OSError:
            return b""
        if packet[:1] == END:
            told = json.loads(packet[1:])
            self._farewell = Farewell(status=told["status"], stderr=base64.b64decode(told["stderr"]))
        return packet[1:] if packet[:1] == DATA else b""

    def farewell(self) -> Farewell:
        return self._farewell

    def let_go(self) -> None:
        pass  # nothing here waits for the other end

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._way.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
        self._way.close()


class Stock:
    """What the keeper may have."""

    def __init__(self, path: str, ahead: bytes) -> None:
        """path: the keeper's socket; ahead: what it sends to every agent before that waits."""
        self._path, self._ahead = path, ahead

    def take(self, cluster: Cluster, host: Host) -> KeptChannel | None:
        """The way to an agent on a host; None if none waits there."""
        try:
            way = ask(self._path, {"do": "take", "key": key_of(cluster, host)})
        except OSError:
            return None
        try:
            way.settimeout(ANSWER)
            if way.recv(PACKET) == DATA:
                way.settimeout(None)
                return KeptChannel(way, host.address, self._ahead)
        except OSError:
            pass
        way.close()
        return None


def ask(path: str, request: Mapping[str, Any]) -> socket.socket:
    """Ask the keeper behind a socket; its answers come through what is returned. Raises OSError if nobody is there."""
    way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        way.connect(path)
        way.send(json.dumps(request).encode())
    except OSError:
        way.close()
        raise
    return way


def key_of(cluster: Cluster, host: Host) -> str:
    """Differs for hosts that are reached in another way, or whose agents are other ones."""
    way = {name: value for name, value in asdict(host).items() if name not in NO_ADDRESS}
    rest = [cluster.gateway, cluster.python, cluster.host_keys.value]
    return hashlib.blake2b(json.dumps([way, rest], sort_keys=True).encode(), digest_size=16).hexdigest()


def told(cluster: Cluster, hosts: tuple[Host, ...]) -> dict[str, Any]:
    """What the keeper must know of a cluster to reach some of its hosts, for JSON."""
    listed = [{**asdict(host), "hints": {}} for host in hosts]
    rest = {"gateway": cluster.gateway, "python": cluster.python, "host_keys": cluster.host_keys.value}
    return {"name": cluster.name, "hosts": listed, **rest}


def read(given: Mapping[str, Any]) -> Cluster:
    """The inverse of ``told``."""
    hosts = tuple(Host(**host) for host in given["hosts"])
    return Cluster(**{**given, "hosts": hosts, "host_keys": HostKeys(given["host_keys"])})


def is_private(directory: str) -> bool:
    """Whether a directory is ours, and for nobody else."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()
