"""Ports of this machine for tests that must choose one before anything listens there."""

from __future__ import annotations

import itertools
import os
import socket

FIRST_PORT, PORTS_OF_PROCESS, PROCESSES = 20_000, 10, 1000
_NUMBERS = itertools.count()


def free_port() -> int:
    """Return a port of loopback on which nothing listens.

    It is below those that the kernel gives to connections (ip_local_port_range), and other workers get other ports:
    nothing takes it by chance before the test does.
    """
    for number in itertools.islice(_NUMBERS, PORTS_OF_PROCESS):
        port = FIRST_PORT + os.getpid() % PROCESSES * PORTS_OF_PROCESS + number % PORTS_OF_PROCESS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an ended server's connections are no matter
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("no free port")
