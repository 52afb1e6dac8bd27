"""Agents that wait on hosts for the next command. The user's keeper holds them, and their connections.

The keeper is asked for many hosts at once. Where an agent waits, it hands out a socket that is the way to it: packets
whose first byte is DATA, or END with how it ended. Where none does, or if there is no keeper, the host is reached as
ever.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Farewell

PACKET = 1 << 16  # bytes of one, with its first one; a socket takes several
DATA, END = b"d", b"e"
ANSWER = 5.0  # seconds for the keeper to say whether it has an agent; it looks whether the host answers
TOGETHER = 64  # hosts in one request


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
            send_all(self._way, data)
        except OSError as error:
            raise ChannelClosed("the keeper is gone, or has lost the host") from error

    def receive(self) -> bytes:
        packet = receive(self._way)
        if packet[:1] == END:
            told = json.loads(packet[1:])
            self._farewell = Farewell(status=told["status"], stderr=base64.b64decode(told["stderr"]))
        return packet[1:] if packet[:1] == DATA else b""

    def farewell(self) -> Farewell:
        return self._farewell

    def close(self, *, leave: bool = False) -> None:
        with contextlib.suppress(OSError):
            self._way.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
        self._way.close()


class Stock:
    """What the keeper may have for the hosts of one command."""

    def __init__(self, path: str, ahead: bytes) -> None:
        """path: the keeper's socket; ahead: what it sends to every agent before that waits."""
        self._path, self._ahead = path, ahead
        self._asked: socket.socket | None = None
        self._is_closed = False
        self.keys: dict[int, str] = {}  # of each node that was asked for

    def take(self, ways: Mapping[int, str], command: str) -> Iterator[tuple[int, KeptChannel]]:
        """The ways to agents, by node, of those hosts where one waits.

        ways: how each host is reached; "": in one that nobody may share; command: what starts the agent
        """
        self.keys = {node: key_of(way, command) for node, way in ways.items() if way}
        nodes = list(self.keys)
        with contextlib.suppress(OSError):
            for place in range(0, len(nodes), TOGETHER):
                yield from self._take(nodes[place : place + TOGETHER])

    def _take(self, nodes: list[int]) -> Iterator[tuple[int, KeptChannel]]:
        if self._is_closed:
            return
        with ask(self._path, {"do": "take", "keys": [self.keys[node] for node in nodes]}) as self._asked:
            if self._is_closed:  # before there was anything to shut down
                return
            for node in nodes:
                address, ways, _, _ = socket.recv_fds(self._asked, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
                for way in ways:
                    yield node, KeptChannel(socket.socket(fileno=way), address.decode(), self._ahead)
                if not address:
                    raise ConnectionResetError("the keeper is gone, or is not to be waited for")

    def close(self) -> None:
        """From another thread: ask for nothing more, and wait for no further answer."""
        self._is_closed = True
        if self._asked is not None:
            with contextlib.suppress(OSError):
                self._asked.shutdown(socket.SHUT_RDWR)


def key_of(way: str, command: str) -> str:
    """Differs for hosts that are reached in another way, or whose agents are started in another one."""
    return hashlib.blake2b(f"{command}\n{way}".encode(), digest_size=16).hexdigest()


def ask(path: str, request: Mapping[str, Any]) -> socket.socket:
    """Ask the keeper behind a socket; its answers come through what is returned.

    Raises OSError if nobody is there, or if it hangs and too many wait for it already.
    """
    way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    way.settimeout(ANSWER)
    try:
        way.connect(path)
        way.send(json.dumps(request).encode())
    except OSError:
        way.close()
        raise
    return way


def send_all(way: socket.socket, data: bytes) -> None:
    """Send data in packets. Raises OSError."""
    for place in range(0, len(data), PACKET - 1):
        way.send(DATA + data[place : place + PACKET - 1])


def receive(way: socket.socket) -> bytes:
    """The next packet; b"" once the other end is gone, and all that it has sent has come."""
    for _ in range(2):
        try:
            return way.recv(PACKET)
        except ConnectionResetError:  # it had not read all of ours; what it said before comes after this
            continue
        except OSError:
            break
    return b""
