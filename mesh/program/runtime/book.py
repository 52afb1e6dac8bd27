"""The addresses of all nodes, and the way from this node to each."""

from __future__ import annotations

import json
import os
import socket
import ssl
from typing import Dict

from mesh.program.runtime.links import Link, SocketLink, TlsStream, tls_context, tune

CONNECT_TIMEOUT_S = 60.0  # the process of a node may still be starting, with all hosts of a run at once
DIRECT_TIMEOUT_S = 3.0  # for the TCP connection, which the agent's socket takes: a firewall may drop packets silently
RELAY, LINE_BYTES = "relay", 4096  # the agent's socket beside the address book, and its answer


def role_of(label: str) -> str:
    """Return the name of a node among the ranks of its run: "learner" is "learner/0" there."""
    return label if "/" in label else f"{label}/0"


class Book:
    """The addresses of a program's nodes, as the agents have written them."""

    def __init__(self, path: str, key_file: str, own_role: str) -> None:
        """path: JSON with Unix path, TCP address and host of each; key_file: the run's key and certificate"""
        self._path, self._read = path, (0, 0)
        self._addresses: Dict[str, Dict[str, object]] = {}
        self._load()
        self._key_file, self._own_role = key_file, own_role
        self._relay = os.path.join(os.path.dirname(path), RELAY)
        self._separated: Dict[object, str] = {}  # hosts that answered nothing, and how
        self._context: "ssl.SSLContext | None" = None
        self._host = self._addresses[own_role].get("host")

    def _load(self) -> None:
        """Read the file, unless it is the one that was read: the agent replaces it once a node has moved."""
        found = os.stat(self._path)
        key = found.st_ino, found.st_mtime_ns
        if key != self._read:
            with open(self._path, encoding="utf-8", errors="surrogateescape") as file:
                self._addresses = json.load(file)
            self._read = key

    def connect(self, label: str) -> Link:
        """Return a link to a node. Raises OSError."""
        self._load()
        address = self._addresses.get(role_of(label))
        if address is None:
            raise ConnectionError(f"no node {label!r} in this program")
        if address.get("host") == self._host:
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                own.connect(str(address["unix"]))
            except OSError:
                own.close()
                raise
            return SocketLink(own)
        return self._remote(address, role_of(label))

    def _remote(self, address: "Dict[str, object]", role: str) -> Link:
        """Connect directly, or through the client where a firewall separates the hosts."""
        reason = self._separated.get(address.get("host"))
        if reason is None:
            try:
                own = self._direct(address)
            except OSError as error:
                reason = "no answer" if isinstance(error, socket.timeout) else error.strerror or str(error)
                if isinstance(error, socket.timeout):  # it would cost each new link as much
                    self._separated[address.get("host")] = reason
            else:
                return self._secured(own)
        return self._through_client(role, reason)

    def _direct(self, address: "Dict[str, object]") -> socket.socket:
        place = address.get("tcp")
        if not isinstance(place, list):
            raise ConnectionError("it listens on its own host only")
        return socket.create_connection((str(place[0]), int(place[1])), DIRECT_TIMEOUT_S)

    def _secured(self, own: socket.socket) -> Link:
        if self._context is None:
            self._context = tls_context(self._key_file, is_server=False)
        own.settimeout(CONNECT_TIMEOUT_S)
        try:
            tune(own)
            return SocketLink(TlsStream(self._context.wrap_socket(own)))
        except (OSError, ValueError):
            own.close()
            raise

    def _through_client(self, role: str, reason: str) -> Link:
        """Have the agent and the client make the connection; SSH protects it on its way. Raises OSError."""
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.settimeout(CONNECT_TIMEOUT_S)
            own.connect(self._relay)
            own.sendall(json.dumps({"from": self._own_role, "to": role, "why": reason}).encode())
            line = b""
            while not line.endswith(b"\n") and len(line) < LINE_BYTES:
                piece = own.recv(1)  # what comes behind the line is the link's
                if not piece:
                    raise ConnectionError("the agent has closed the connection")
                line += piece
            failure = str(json.loads(line)["why"])
            if failure:
                raise ConnectionError(failure)
            own.settimeout(None)
        except (OSError, ValueError) as error:
            own.close()
            raise ConnectionError(f"{reason}; and not through the client: {error}") from error
        return SocketLink(own)
