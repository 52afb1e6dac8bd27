"""TCP sockets to hosts: opened so that a thread can give up, and quick in the round trips of a login."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from mesh.backends.ssh.ahead import Begun

GIVEN_UP_POLL_S = 0.1
AHEAD_BYTES = 1 << 16  # that are read at once
# Not in Python's socket module on every system.
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", 0)


class GivenUp(Exception):
    """The backend is being closed while a connection is opened."""


class QuickSocket(socket.socket):
    """A TCP socket that neither gathers small packets nor delays its acknowledgements.

    Nagle's algorithm and the delayed ACK together cost 40 ms in every round trip of a login. The kernel forgets
    TCP_QUICKACK, so that it is set again after each receive. Closing it wakes who waits for it to be readable.

    It reads ahead: paramiko asks for the first 16 bytes of each packet and then for the rest, and each call lets go of
    the interpreter, which with many hosts takes longer to get back than all that is done with the packet.
    """

    _ahead = memoryview(b"")  # what came and was not asked for yet

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self._ahead:
            self._ahead = memoryview(super().recv(max(size, AHEAD_BYTES), flags))
            if TCP_QUICKACK:
                with contextlib.suppress(OSError):
                    self.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return bytes(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()


def connect(host: str, port: int, deadline: float, is_given_up: Callable[[], bool], begun: Begun) -> QuickSocket:
    """Connect to the first address of a name that answers. Raises OSError or GivenUp.

    begun: connections that may be on their way already, each to be used once
    """
    problem: OSError = OSError(errno.EHOSTUNREACH, "no address")
    # For text Python loads what international names need, 10 ms for all who wait for the first connection.
    name = host.encode() if host.isascii() else host
    for family, kind, number, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
        ahead = begun.pop((host, port), None)
        sock = QuickSocket(family, kind, number, ahead.detach() if ahead else None)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            _finish_connecting(sock, address, deadline, is_given_up)
            sock.setblocking(True)
            return sock
        except OSError as error:
            sock.close()
            problem = error
        except GivenUp:
            sock.close()
            raise
    raise problem


def _finish_connecting(sock: socket.socket, address: Any, deadline: float, is_given_up: Callable[[], bool]) -> None:
    code = sock.connect_ex(address)
    if code == errno.EISCONN:  # it was begun before
        return
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    while code in (errno.EINPROGRESS, errno.EALREADY):
        if is_given_up():
            raise GivenUp
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if poll.poll(GIVEN_UP_POLL_S * 1000):
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
