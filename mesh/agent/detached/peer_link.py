"""A connection to another agent of a detached run: messages through TLS, and neither end waits for the other."""

from __future__ import annotations

import errno
import os
import select
import socket
import time

from mesh.agent.link.tls import TlsEngine
from mesh.protocol.control import FROM_PEER
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.messages import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from mesh.protocol.control import PeerMessage

    Address = tuple[object, ...]  # as the socket module has it

READ_BYTES = 1 << 16
HEADER_BYTES = 1 << 16  # of one message
WAITING_BYTES_MAX = 1 << 20  # of messages, for an end that takes none


class LinkClosed(Exception):
    """The end of a link; the text has the reason."""


class PeerLink:
    """An end of a connection. Each method raises LinkClosed once it has ended."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        """connection: connected, or on its way; context: of the credentials that the other end has too"""
        connection.setblocking(False)
        self._socket = connection
        self._tls = TlsEngine(context, server)
        self._decoder = Decoder({}, HEADER_BYTES)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._plain = bytearray()  # that waits for the handshake
        self._encrypted = bytearray()  # that waits for the socket
        self.began = time.monotonic()

    @property
    def is_open(self) -> bool:
        """True once the other end has shown that it has the key."""
        return self._tls.is_open

    def fileno(self) -> int:
        return self._socket.fileno()

    def events(self) -> int:
        """Return the events to poll for."""
        return select.POLLIN | (select.POLLOUT if self._encrypted else 0)

    def send(self, message: PeerMessage) -> None:
        self._plain += encode(message)
        if len(self._plain) + len(self._encrypted) > WAITING_BYTES_MAX:
            raise LinkClosed("it takes nothing")
        self._continue()

    def receive(self) -> list[PeerMessage]:
        """Do all that can be done now; return the messages that have come."""
        try:
            chunk = self._socket.recv(READ_BYTES)
            if not chunk:
                raise LinkClosed("it ended")
            self._tls.feed(chunk)
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkClosed(error.strerror or str(error)) from error
        self._continue()
        try:
            return [FROM_PEER.read(header) for header, _ in self._decoder.feed(self._read())]
        except FrameError as error:
            raise LinkClosed(str(error)) from error

    def close(self) -> None:
        self._socket.close()

    def _continue(self) -> None:
        """Continue the handshake, and send what can be sent now."""
        try:
            if self._tls.shake_hands() and self._plain:
                self._tls.write(self._plain)
                self._plain.clear()
        except (OSError, ValueError) as error:
            raise LinkClosed(f"it is no agent of this run: {error}") from error
        self._encrypted += self._tls.outgoing()
        try:
            while self._encrypted:
                del self._encrypted[: self._socket.send(self._encrypted)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkClosed(error.strerror or str(error)) from error

    def _read(self) -> bytes:
        text, size = b"", 1
        try:
            while size and self.is_open:
                size = self._tls.read_into(self._buffer)
                text += self._buffer[:size]
        except (OSError, ValueError) as error:
            raise LinkClosed(f"it ended: {error}") from error
        if self._tls.is_ended:
            raise LinkClosed("it ended")
        return text


class Guest:
    """An agent on another host, at the hub."""

    def __init__(self) -> None:
        self.link: PeerLink | None = None
        self.is_met = False  # it has received our welcome
        self.received_at = 0.0
        self.ended_at = 0.0  # when its last link ended
        self.is_over = False  # its ranks have ended, or it is lost


def connect(family: int, address: Address) -> socket.socket:
    """Return a socket on its way to an address. Raises LinkClosed if there is no way."""
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = connection.connect_ex(address)
        if problem not in (0, errno.EINPROGRESS):
            connection.close()
            raise OSError(problem, os.strerror(problem))
    except OSError as error:
        raise LinkClosed(error.strerror or str(error)) from error
    return connection


def resolve(address: str, port: int) -> dict[str, object]:
    """Look up a name: "addresses", each with its family, or "error"."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return {"error": f"{address} cannot be resolved: {error}"}
    return {"addresses": [[family, list(address)] for family, _, _, _, address in found]}
