"""A connection of the switchboard: frames through TLS, over a socket that never blocks."""

from __future__ import annotations

import socket
import time

from mesh.agent.link.tls import TlsEngine
from mesh.agent.switchboard.flow import Outgoing
from mesh.agent.switchboard.frames import BadFrame, Frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from mesh.agent.switchboard.frames import Frame

READ_BYTES = 64 << 10
BACKLOG_CONNECTIONS = 4096
SENT_TOGETHER_BYTES = 64 << 10  # little waits in encrypted form, where a quiet stream cannot pass
USER_TIMEOUT_MS = 20_000  # bytes that are not acknowledged for so long end a connection (tcp(7))
TCP_USER_TIMEOUT = 18  # linux/tcp.h


class ConnectionEnded(Exception):
    """The end of a connection; the text has the reason."""


class Connection:
    """An end of a connection. Its methods raise ConnectionEnded once it has ended."""

    def __init__(self, own: socket.socket, context: ssl.SSLContext, server: bool) -> None:
        """own: a connected socket; server: the other end has connected"""
        own.setblocking(False)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            own.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        except OSError:  # not on Linux
            pass
        self.socket = own
        self.out = Outgoing()
        self.began = self.received_at = time.monotonic()
        self._tls = TlsEngine(context, server)
        self._encrypted = memoryview(b"")
        self._frames = Frames()

    @property
    def is_open(self) -> bool:
        """True once the other end has shown that it has the key."""
        return self._tls.is_open

    @property
    def wants_to_write(self) -> bool:
        """True if bytes wait for the socket."""
        return bool(self._encrypted) or bool(self.is_open and self.out)

    def receive(self, buffer: memoryview) -> list[Frame]:
        """Return the frames that have come. buffer: of READ_BYTES; a thousand connections share it"""
        try:
            chunk = self.socket.recv(READ_BYTES)
            if not chunk:
                raise ConnectionEnded("it ended")
            self.received_at = time.monotonic()
            self._tls.feed(chunk)
            if not self._tls.shake_hands():
                self.flush()
                return []
            frames: list[Frame] = []
            while True:
                size = self._tls.read_into(buffer)
                frames.extend(self._frames.feed(bytes(buffer[:size])))
                if size < len(buffer):
                    break
        except BlockingIOError:
            return []
        except (OSError, ValueError, BadFrame) as error:
            raise ConnectionEnded(str(error)) from None
        if self._tls.is_ended and not frames:
            raise ConnectionEnded("it ended")
        return frames

    def flush(self) -> None:
        """Send what the socket takes now."""
        try:
            self._tls.shake_hands()
            while True:
                if not self._encrypted:
                    if self.is_open and self.out:
                        self._tls.write(self.out.take(SENT_TOGETHER_BYTES))
                    self._encrypted = memoryview(self._tls.outgoing())
                    if not self._encrypted:
                        return
                self._encrypted = self._encrypted[self.socket.send(self._encrypted) :]
        except BlockingIOError:
            pass
        except (OSError, ValueError) as error:
            raise ConnectionEnded(str(error)) from None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def finish(self, timeout: float) -> None:
        """Close the socket once the other end has read everything, or after so many seconds."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(timeout)
            until = time.monotonic() + timeout
            while self.socket.recv(READ_BYTES) and time.monotonic() < until:
                pass
        except OSError:
            pass
        self.socket.close()


def listen(address: str, port: int) -> socket.socket:
    """Return a socket of the switchboard. Raises OSError. address: "": all, IPv6 ones too where there are any"""
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG_CONNECTIONS
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG_CONNECTIONS)
