"""Packs that hosts send on to each other, so that they leave the client about once.

The client makes a certificate for this one sync and gives it to the hosts of the run only. Both ends of each
connection show it.
"""

from __future__ import annotations

import errno
import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    import threading

PIECE_BYTES = 1 << 17  # that are read and sent together
RECORD_BYTES = 1 << 14  # of a TLS record, at most (RFC 8446, 5.1)
GROWTH_POLL_S = 0.01  # between two looks at a file that grows
CONNECT_LIMIT_S = 3.0  # to reach another host; a firewall may drop packets silently
STALL_LIMIT_S = 10.0  # without a byte, after which the client is asked instead
HANDSHAKE_LIMIT_S = 5.0  # a peer that has not shown our certificate by then is disconnected
MAX_HANDSHAKES = 8  # peers at a time that have not shown it yet; more wait in the kernel, and cost us no thread
MAX_TRANSFERS = 8  # connections at a time that get the pack; a host has at most two below it


class Unreachable(Exception):
    """A host that does not send the pack; the text has the reason."""


def listen(port: int = 0) -> socket.socket:
    """Return a socket on every address of this host, IPv6 ones too where there are any. Raises OSError.

    port: 0: one that is free
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    return socket.create_server(("", port), backlog=64)


def serve(listener: socket.socket, path: str, size: int, credentials: str) -> None:
    """Send a file of this size, also while it grows, to each peer that shows the certificate. Does not return."""
    import threading

    from mesh.agent.link.tls import tls_context

    context = tls_context(credentials, server=True)
    handshakes, transfers = threading.Semaphore(MAX_HANDSHAKES), threading.Semaphore(MAX_TRANSFERS)
    while True:
        handshakes.acquire()
        connection, _ = listener.accept()
        arguments = (connection, context, path, size, handshakes, transfers)
        threading.Thread(target=_serve_peer, args=arguments, daemon=True).start()


def _serve_peer(
    connection: socket.socket,
    context: ssl.SSLContext,
    path: str,
    size: int,
    handshakes: threading.Semaphore,
    transfers: threading.Semaphore,
) -> None:
    """Serve one peer, if it shows our certificate in time and not too many are served.

    handshakes: is released once the peer has shown it, or is gone; transfers: is held while it is served
    """
    try:
        with connection:
            try:
                channel = _Channel(connection, context, server=True, limit_s=HANDSHAKE_LIMIT_S)
            finally:
                handshakes.release()
            if transfers.acquire(blocking=False):
                try:
                    _send_file(channel, path, size)
                finally:
                    transfers.release()
    except (OSError, ValueError):  # the peer has gone, or has another certificate
        pass


def _send_file(channel: _Channel, path: str, size: int) -> None:
    with open(path, "rb", buffering=0) as file:
        sent, sent_at = 0, time.monotonic()
        while sent < size and time.monotonic() - sent_at < STALL_LIMIT_S:
            piece = file.read(min(PIECE_BYTES, size - sent))
            if piece:
                channel.send(piece)
                sent, sent_at = sent + len(piece), time.monotonic()
            else:
                time.sleep(GROWTH_POLL_S)


def fetch(address: str, port: int, path: str, size: int, credentials: str) -> None:
    """Write a file of this size from another host. Raises Unreachable, and OSError if it cannot be written here."""
    received = 0
    with open(path, "wb", buffering=0) as file:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_LIMIT_S)
        except OSError as error:
            raise Unreachable(f"{address} port {port}: {error.strerror or error}") from None
        try:
            with connection:
                from mesh.agent.link.tls import tls_context

                channel = _Channel(connection, tls_context(credentials, server=False), server=False)
                while received < size:
                    piece = channel.receive()[: size - received]
                    if not piece:
                        break
                    received += len(piece)
                    _write(file.fileno(), piece)
        except _WriteFailed as failed:
            raise failed.error from None
        except (OSError, ValueError, ImportError, AttributeError) as error:  # or no ssl, or no memfd_create
            raise Unreachable(f"{address} port {port}: {error}") from None
    if received < size:
        raise Unreachable(f"{address} port {port}: it ended after {received} of {size} bytes")


class _Channel:
    """TLS through a blocking socket. No method waits for twice STALL_LIMIT_S; all raise OSError."""

    def __init__(self, link: socket.socket, context: ssl.SSLContext, server: bool, limit_s: float = 0.0) -> None:
        """Shake hands. limit_s: seconds for that; 0: STALL_LIMIT_S without a byte"""
        from mesh.agent.link.tls import TlsEngine

        self._link, self._tls = link, TlsEngine(context, server)
        self._encrypted = self._plain = memoryview(b"")
        link.settimeout(limit_s or STALL_LIMIT_S)
        began = time.monotonic()
        while not self._tls.shake_hands():
            self._flush()
            if limit_s:
                left = began + limit_s - time.monotonic()
                if left <= 0:
                    raise TimeoutError(errno.ETIMEDOUT, "the handshake takes too long") from None
                link.settimeout(left)
            else:
                _check(began)
            encrypted = link.recv(RECORD_BYTES)
            if not encrypted:
                raise ConnectionResetError("it hung up") from None
            self._tls.feed(encrypted)
        link.settimeout(STALL_LIMIT_S)
        self._flush()

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive(self) -> memoryview:
        """Return the bytes that have come, valid until the next call; none at the end."""
        if not self._plain:
            self._encrypted = memoryview(bytearray(PIECE_BYTES))
            self._plain = memoryview(bytearray(PIECE_BYTES + RECORD_BYTES))  # of a piece, and of a record begun before
        began = time.monotonic()
        while True:
            size = self._tls.read_into(self._plain)  # with TLS 1.2 the first of it may have come with the handshake
            if size or self._tls.is_ended:
                return self._plain[:size]
            _check(began)
            count = self._link.recv_into(self._encrypted)
            if not count:
                return self._plain[:0]
            self._tls.feed(self._encrypted[:count])

    def _flush(self) -> None:
        self._link.sendall(self._tls.outgoing())


def _check(began: float) -> None:
    """Raise TimeoutError after STALL_LIMIT_S: a peer that sends a byte now and then counts as silent."""
    if time.monotonic() - began > STALL_LIMIT_S:
        raise TimeoutError(errno.ETIMEDOUT, "it takes too long")


class _WriteFailed(Exception):
    """A failure of the disk here, and not of the connection."""

    def __init__(self, error: OSError) -> None:
        Exception.__init__(self)
        self.error = error


def _write(descriptor: int, view: memoryview) -> None:
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise _WriteFailed(error) from None
