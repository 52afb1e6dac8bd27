"""Ports that no other process takes between the look for them and their use."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that Linux gives to connections, and each process of the tests has some of its own.
FIRST_PORT, PORTS, PROCESSES = 20_000, 10, 800
_asked = itertools.count()


def own_port(address: str = "127.0.0.1") -> int:
    """Return a free port of this process. It is another one at each call, until all were had. Raises OSError."""
    first = FIRST_PORT + os.getpid() % PROCESSES * PORTS
    for _ in range(PORTS):
        port = first + next(_asked) % PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {first} to {first + PORTS - 1}")
