"""Packs that hosts hand on among themselves, so that they leave the client about once.

Whoever listens, and whoever asks, shows the same certificate, which the client has made for this one sync and given to
the hosts of the run and to nobody else.
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

PIECE = 1 << 17  # bytes that are read and sent together
RECORD = 1 << 14  # bytes of a TLS record, at most (RFC 8446, 5.1)
LOOK = 0.01  # seconds between two looks at a file that grows
REACH = 3.0  # seconds to reach another host; a firewall may drop packets without a word
STALLED = 10.0  # seconds without a byte after which the client is asked instead
HANDSHAKE_LIMIT_S = 5.0  # a peer that has not shown our certificate by then is disconnected
MAX_HANDSHAKES = 8  # peers at a time that have not shown it yet; more wait in the kernel, and cost us no thread
MAX_TRANSFERS = 8  # connections at a time that get the pack; a host has at most two below it


class Unreachable(Exception):
    """The other host does not hand it on; the text says why."""


def listen(port: int = 0) -> socket.socket:
    """A socket on every address of this host, IPv6 ones too where there are any. Raises OSError.

    port: 0: one that is free
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    return socket.create_server(("", port), backlog=64)


def serve(listener: socket.socket, path: str, size: int, credentials: str) -> None:
    """Hand on a file of this size to whoever asks and may, also while it is still growing. Does not return."""
    import threading

    context = credentialed(credentials, server=True)
    handshakes, transfers = threading.Semaphore(MAX_HANDSHAKES), threading.Semaphore(MAX_TRANSFERS)
    while True:
        handshakes.acquire()
        visitor, _ = listener.accept()
        arguments = (visitor, context, path, size, handshakes, transfers)
        threading.Thread(target=_attend, args=arguments, daemon=True).start()


def _attend(
    visitor: socket.socket,
    context: ssl.SSLContext,
    path: str,
    size: int,
    handshakes: threading.Semaphore,
    transfers: threading.Semaphore,
) -> None:
    """Serve one peer, if it shows our certificate in time and not too many are served.

    handshakes: is released once the peer is known, or gone; transfers: is held while it is served
    """
    try:
        with visitor:
            try:
                channel = _Channel(visitor, context, server=True, limit_s=HANDSHAKE_LIMIT_S)
            finally:
                handshakes.release()
            if transfers.acquire(blocking=False):
                try:
                    _hand_on(channel, path, size)
                finally:
                    transfers.release()
    except (OSError, ValueError):  # it has gone, or was none of ours
        pass


def _hand_on(channel: _Channel, path: str, size: int) -> None:
    with open(path, "rb", buffering=0) as file:
        sent, heard = 0, time.monotonic()
        while sent < size and time.monotonic() - heard < STALLED:
            piece = file.read(min(PIECE, size - sent))
            if piece:
                channel.send(piece)
                sent, heard = sent + len(piece), time.monotonic()
            else:
                time.sleep(LOOK)


def fetch(address: str, port: int, path: str, size: int, credentials: str) -> None:
    """Write a file of this size from another host. Raises Unreachable, and OSError if it cannot be written here."""
    got = 0
    with open(path, "wb", buffering=0) as file:
        try:
            link = socket.create_connection((address, port), timeout=REACH)
        except OSError as error:
            raise Unreachable(f"{address} port {port}: {error.strerror or error}") from None
        try:
            with link:
                channel = _Channel(link, credentialed(credentials, server=False), server=False)
                while got < size:
                    piece = channel.receive()[: size - got]
                    if not piece:
                        break
                    got += len(piece)
                    _write(file.fileno(), piece)
        except _Full as error:
            raise error.error from None
        except (OSError, ValueError, ImportError, AttributeError) as error:  # or no ssl, or no memfd_create
            raise Unreachable(f"{address} port {port}: {error}") from None
    if got < size:
        raise Unreachable(f"{address} port {port}: it ended after {got} of {size} bytes")


class _Channel:
    """TLS through a socket, many records at a time.

    Python's own sockets ask the system for each record of 16 KB, and for its head: twice the CPU of a hop.
    """

    def __init__(self, link: socket.socket, context: ssl.SSLContext, server: bool, limit_s: float = 0.0) -> None:
        """Shakes hands. Raises OSError, as its methods do: none waits for twice STALLED.

        limit_s: seconds for the handshake; 0: STALLED without a byte
        """
        import ssl

        link.settimeout(limit_s or STALLED)
        self._link, self._want = link, ssl.SSLWantReadError
        self._coming, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._leaving, server_side=server)
        self._sealed = self._plain = memoryview(b"")
        began = time.monotonic()
        while True:
            try:
                self._tls.do_handshake()
                break
            except self._want:
                self._flush()
                if limit_s:
                    left = began + limit_s - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(errno.ETIMEDOUT, "the handshake takes too long") from None
                    link.settimeout(left)
                else:
                    _check(began)
                sealed = link.recv(RECORD)
                if not sealed:
                    raise ConnectionResetError("it hung up") from None
                self._coming.write(sealed)
        link.settimeout(STALLED)
        self._flush()

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def receive(self) -> memoryview:
        """What has come since, until the next call; nothing at its end."""
        if not self._plain:
            self._sealed = memoryview(bytearray(PIECE))
            self._plain = memoryview(bytearray(PIECE + RECORD))  # of a piece, and of a record begun before it
        size, began = 0, time.monotonic()
        while True:
            try:  # with TLS 1.2 the first of it may have come with the handshake
                # Returns their number, whatever typeshed has it say; 0 when the other end has closed.
                while count := int(self._tls.read(len(self._plain) - size, self._plain[size:])):
                    size += count
                break
            except self._want:
                if size:
                    break
            _check(began)
            count = self._link.recv_into(self._sealed)
            if not count:
                break
            self._coming.write(self._sealed[:count])
        return self._plain[:size]

    def _flush(self) -> None:
        self._link.sendall(self._leaving.read())


def _check(began: float) -> None:
    """Raises TimeoutError: who sends a little now and then is no better than who sends nothing."""
    if time.monotonic() - began > STALLED:
        raise TimeoutError(errno.ETIMEDOUT, "it takes too long")


class _Full(Exception):
    """Our own disk, and not the link, has failed."""

    def __init__(self, error: OSError) -> None:
        Exception.__init__(self)
        self.error = error


def _write(descriptor: int, view: memoryview) -> None:
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise _Full(error) from None


def credentialed(credentials: str, server: bool) -> ssl.SSLContext:
    """credentials: a private key and its certificate, as PEM; both sides have the same."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the key is what we know each other by
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials[credentials.index("-----BEGIN CERTIFICATE") :])
    # OpenSSL takes keys from files only; this one is in memory.
    descriptor = os.memfd_create("key")
    try:
        os.write(descriptor, credentials.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context
