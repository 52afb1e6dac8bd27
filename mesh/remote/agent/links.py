"""A link to another agent of the run: frames through TLS, and neither end ever waits for the other."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import time

from .frames import Decoder, FrameError, encode
from .messages import from_peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 65536  # bytes
HEADER_BYTES = 1 << 16  # of one message
MOST = 1 << 20  # bytes of frames that may wait for an end that takes none


class Closed(Exception):
    """The link has ended; the text says how."""


class Link:
    """One end. Raises Closed from each method once the link has ended."""

    def __init__(self, own: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        """own: connected, or on its way; context: of the credentials that the other end has too."""
        own.setblocking(False)
        self._socket = own
        self._coming, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._leaving, server_side=server)
        self._decoder = Decoder({}, HEADER_BYTES)
        self._plain = bytearray()  # that waits for the handshake
        self._sealed = bytearray()  # that waits for the socket
        self.is_open = False  # the other end has shown that it knows the key
        self.began = time.monotonic()

    def fileno(self) -> int:
        return self._socket.fileno()

    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._sealed else 0)

    def send(self, header: dict[str, Any]) -> None:
        self._plain += encode(header)
        if len(self._plain) + len(self._sealed) > MOST:
            raise Closed("it takes nothing")
        self._work()

    def receive(self) -> list[dict[str, Any]]:
        """Do what can be done now; return what has come."""
        try:
            chunk = self._socket.recv(PIECE)
            if not chunk:
                raise Closed("it ended")
            self._coming.write(chunk)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(error.strerror or str(error)) from error
        self._work()
        text = self._read() if self.is_open else b""
        try:
            return [from_peer(header) for header, _ in self._decoder.feed(text)]
        except FrameError as error:
            raise Closed(str(error)) from error

    def close(self) -> None:
        self._socket.close()

    def _work(self) -> None:
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            if self._plain:
                self._tls.write(bytes(self._plain))
                self._plain.clear()
        except ssl.SSLWantReadError:
            pass
        except (OSError, ValueError) as error:
            raise Closed(f"it is none of ours: {error}") from error
        self._sealed += self._leaving.read()
        try:
            while self._sealed:
                del self._sealed[: self._socket.send(self._sealed)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(error.strerror or str(error)) from error

    def _read(self) -> bytes:
        text = b""
        try:
            while True:
                piece = self._tls.read(PIECE)
                if not piece:
                    raise Closed("it ended")
                text += piece
        except ssl.SSLWantReadError:
            return text
        except (OSError, ValueError) as error:
            raise Closed(f"it ended: {error}") from error


def reach(family: int, address: tuple[Any, ...]) -> socket.socket:
    """A socket on its way to an address. Raises Closed if there is no way."""
    try:
        own = socket.socket(family, socket.SOCK_STREAM)
        own.setblocking(False)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = own.connect_ex(address)
        if problem not in (0, errno.EINPROGRESS):
            own.close()
            raise OSError(problem, os.strerror(problem))
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error
    return own
