"""TLS between two agents of a run, without a socket of its own: for packs on their way, and for detached runs."""

from __future__ import annotations

import os
import ssl


class TlsEngine:
    """The TLS end of a connection. Its user moves the encrypted bytes from and to the socket.

    Python's own TLS sockets ask the system for each record of 16 KB, and for its head: twice the CPU of a transfer.
    Methods raise OSError or ValueError if the other end breaks the protocol or shows another certificate.
    """

    def __init__(self, context: ssl.SSLContext, server: bool) -> None:
        """context: from ``tls_context``; server: this end was connected to"""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self.is_open = False  # the other end has shown the certificate
        self.is_ended = False  # the other end has closed

    def shake_hands(self) -> bool:
        """Continue the handshake; return True once it is complete."""
        if not self.is_open:
            try:
                self._tls.do_handshake()
                self.is_open = True
            except ssl.SSLWantReadError:
                pass
        return self.is_open

    def feed(self, encrypted: bytes | memoryview) -> None:
        """Take bytes from the socket."""
        self._incoming.write(encrypted)

    def outgoing(self) -> bytes:
        """Remove and return the bytes for the socket."""
        return self._outgoing.read()

    def write(self, data: bytes | bytearray) -> None:
        """Encrypt bytes for the other end, once the handshake is complete."""
        self._tls.write(data)

    def read_into(self, buffer: memoryview) -> int:
        """Decrypt as much as has come and the buffer holds; return the number of bytes."""
        size = 0
        try:
            while size < len(buffer):
                # It returns their number, whatever typeshed declares; 0 when the other end has closed.
                count = int(self._tls.read(len(buffer) - size, buffer[size:]))
                self.is_ended = not count
                if not count:
                    break
                size += count
        except ssl.SSLWantReadError:
            pass
        return size


def tls_context(credentials: str, server: bool) -> ssl.SSLContext:
    """Return the context in which both ends show and demand the same certificate.

    credentials: a private key and its certificate, as PEM; the client has made them for this one use
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself identifies the other end
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials[credentials.index("-----BEGIN CERTIFICATE") :])
    # OpenSSL takes keys from files only; this one is in memory.
    if not hasattr(os, "memfd_create"):  # a client that is not on Linux
        _load_from_disk(context, credentials)
        return context
    descriptor = os.memfd_create("key")
    try:
        os.write(descriptor, credentials.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _load_from_disk(context: ssl.SSLContext, credentials: str) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:  # with mode 0600
        file.write(credentials.encode())
        file.flush()
        context.load_cert_chain(file.name)
