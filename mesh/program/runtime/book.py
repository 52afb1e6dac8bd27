"""The addresses of all nodes, and the way from this node to each."""

from __future__ import annotations

import json
import socket
import ssl
from typing import Dict

from mesh.program.runtime.links import Link, SocketLink, TlsStream, tls_context, tune

CONNECT_TIMEOUT_S = 60.0  # the process of a node may still be starting, with all hosts of a run at once


def role_of(label: str) -> str:
    """Return the name of a node among the ranks of its run: "learner" is "learner/0" there."""
    return label if "/" in label else f"{label}/0"


class Book:
    """The addresses of a program's nodes, as the agents have written them."""

    def __init__(self, path: str, key_file: str, own_role: str) -> None:
        """path: JSON with Unix path, TCP address and host of each; key_file: the run's key and certificate"""
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            self._addresses: Dict[str, Dict[str, object]] = json.load(file)
        self._key_file = key_file
        self._context: "ssl.SSLContext | None" = None
        self._host = self._addresses[own_role].get("host")

    def connect(self, label: str) -> Link:
        """Return a link to a node. Raises OSError."""
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
        return self._remote(address)

    def _remote(self, address: "Dict[str, object]") -> Link:
        place = address.get("tcp")
        if not isinstance(place, list):
            raise ConnectionError("it listens on its own host only")
        if self._context is None:
            self._context = tls_context(self._key_file, is_server=False)
        own = socket.create_connection((str(place[0]), int(place[1])), CONNECT_TIMEOUT_S)
        try:
            tune(own)
            return SocketLink(TlsStream(self._context.wrap_socket(own)))
        except (OSError, ValueError):
            own.close()
            raise
