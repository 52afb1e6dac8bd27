"""Ways to a switchboard's port: TCP, a forwarded connection, or a program on a host from where the port is reached."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Protocol

from mesh.agent.switchboard.connection import TCP_USER_TIMEOUT, USER_TIMEOUT_MS
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.interfaces import Channel, Farewell
from mesh.core.interpreter import interpreter

READ_BYTES = 128 << 10
CONNECT_TIMEOUT_S = 10.0
SHUT_BOTH = 2  # socket.SHUT_RDWR, for sockets that are none of the system's

Connect = Callable[[], Channel]  # opens a connection to the switchboard's port; raises HostUnreachable

# Connects and copies both ways. It ends with either direction: the other end is gone then.
BRIDGE = """\
import os, socket, sys, threading
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.settimeout(None)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def up():
    while 1:
        d = os.read(0, 131072)
        if not d: os._exit(0)
        s.sendall(d)
threading.Thread(target=up, daemon=True).start()
while 1:
    d = s.recv(131072)
    if not d: os._exit(0)
    while d: d = d[os.write(1, d):]
"""


class SocketLike(Protocol):
    """The part of a socket that a way needs; paramiko's channels have it as well."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class SocketChannel:
    """A connected socket as a channel."""

    def __init__(self, own: SocketLike) -> None:
        """own: connected, without a timeout"""
        self._socket = own

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (OSError, EOFError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> bytes:
        try:
            return self._socket.recv(READ_BYTES)
        except (OSError, EOFError):
            return b""

    def farewell(self) -> Farewell:
        return Farewell(status=None, stderr=b"", is_agents=False)

    def close(self, *, leave: bool = False) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._socket.shutdown(SHUT_BOTH)  # wakes a thread that waits for it
        with contextlib.suppress(OSError, EOFError):
            self._socket.close()


def tcp(host: str, port: int, timeout: float = CONNECT_TIMEOUT_S) -> Connect:
    """Return a way by a TCP connection of this machine. timeout: seconds"""

    def connect() -> Channel:
        try:
            own = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise HostUnreachable(f"the switchboard at {host} port {port}: {error.strerror or error}") from error
        return channel_of(own)

    return connect


def channel_of(own: socket.socket) -> SocketChannel:
    """Return a connected socket as a channel, which ends if the other end takes nothing for USER_TIMEOUT_MS."""
    own.settimeout(None)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # not on Linux
        own.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return SocketChannel(own)


def bridge_argv(host: str, port: int, python: str = "python3") -> list[str]:
    """Return the argv of a program that copies between its standard streams and the switchboard's port."""
    return [*interpreter(python), "-I", "-S", "-c", BRIDGE, host, str(port)]
