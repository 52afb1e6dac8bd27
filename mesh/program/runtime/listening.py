"""The listening sockets of a node: callers of this host by Unix sockets, those of other hosts by TLS."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from typing import Callable, Dict, List

from mesh.program.runtime.links import Link, SocketLink, TlsStream, peer_uid, tls_context, tune

HANDSHAKE_TIMEOUT_S = 5.0
STRANGERS_LIMIT = 256  # connections that have not shown the key
CALLERS_TCP, CALLERS_UNIX = "tcp", "unix"  # the names of the sockets for callers


class Listener:
    """Accepts callers at inherited sockets."""

    def __init__(self, sockets: "Dict[str, int]", key_file: str, serve: "Callable[[Link], None]") -> None:
        """sockets: descriptors by name; key_file: the run's key and certificate; serve: called with each link"""
        self._serve, self._key_file = serve, key_file
        self._strangers = threading.BoundedSemaphore(STRANGERS_LIMIT)
        self._sockets: List[socket.socket] = []
        for name, descriptor in sockets.items():
            if name in (CALLERS_TCP, CALLERS_UNIX):
                own = socket.socket(fileno=descriptor)
                own.set_inheritable(False)
                own.setblocking(True)
                self._sockets.append(own)

    def start(self) -> None:
        """Begin to accept."""
        for own in self._sockets:
            is_local = own.family == socket.AF_UNIX
            accept = self._accept_local if is_local else self._accept_remote
            threading.Thread(target=accept, args=(own,), name="mesh-accept", daemon=True).start()

    def close(self) -> None:
        """Accept no more callers."""
        for own in self._sockets:
            try:
                own.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            except OSError:
                pass
            own.close()

    def leave(self) -> None:
        """Leave the sockets to the parent, in a process that was just forked."""
        for own in self._sockets:
            own.close()

    def _accept_local(self, own: socket.socket) -> None:
        while True:
            try:
                caller, _ = own.accept()
            except OSError:
                return
            if peer_uid(caller) in (-1, 0, os.geteuid()):
                self._serve(SocketLink(caller))
            else:
                caller.close()

    def _accept_remote(self, own: socket.socket) -> None:
        context = tls_context(self._key_file, is_server=True)
        while True:
            try:
                caller, _ = own.accept()
            except OSError:
                return
            self._strangers.acquire()  # the others wait in the backlog, honest callers among them
            threading.Thread(target=self._greet, args=(caller, context), name="mesh-greet", daemon=True).start()

    def _greet(self, caller: socket.socket, context: ssl.SSLContext) -> None:
        """Serve a caller that shows the run's key within a few seconds."""
        try:
            caller.settimeout(HANDSHAKE_TIMEOUT_S)
            tune(caller)
            tls = context.wrap_socket(caller, server_side=True)
        except (OSError, ValueError):
            caller.close()
            return
        finally:
            self._strangers.release()
        self._serve(SocketLink(TlsStream(tls)))
