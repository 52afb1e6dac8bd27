"""The first program on a host: finds the agent's directory, or asks the client for it, and starts guardian and agent.

This module and version.py travel with every connection and are compiled there each time, so they are short. The agent
itself is a zip of Python packages. The first run of a version unpacks it (install.py), and Python keeps the compiled
modules beside it.
"""

import gc
import os
import sys

from mesh.agent.version import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    from mesh.agent.guardian import Guardian

FIRST_REQUEST_LIMIT_S = 900.0  # as in main.py: the connection of an agent that waits may be dead


def start(key: str, size: int) -> None:
    """Run the agent. Does not return.

    key: names the version of the agent; size: bytes of all its modules, by which a damaged directory shows
    """
    gc.disable()  # everything that is made now stays
    place, before = find(key, size), b""
    if not place:
        os.write(1, b"\nlacks %s\n" % key.encode())
        archive, before = receive()
        zipped = os.memfd_create("agent")
        os.write(zipped, archive)
        sys.path.insert(0, f"/proc/self/fd/{zipped}")
        from mesh.agent.install import install

        place = install(key, size)
    if place:
        sys.path[:] = [place, *(path for path in sys.path if not path.startswith("/proc/self/fd/"))]
    from mesh.agent.guardian import guard

    guard(lambda guardian: serve(before, guardian))


def serve(before: bytes, guardian: "Guardian") -> None:
    """Run the agent in a child of the guardian. before: the part of the first requests that was read already"""
    from mesh.agent.main import main

    gc.freeze()  # children need not copy the pages of objects that are never used
    gc.enable()
    main(before, guardian)


def receive() -> "Tuple[bytes, bytes]":
    """Return the zip, which the client sends between its requests, and those requests."""
    data, others = b"", b""
    while True:
        while b"\n" not in data:
            data += more()
        line, _, data = data.partition(b"\n")
        size = line[:-1].rpartition(b',"size":')[2]  # the last field of a header; frames.py has the format
        count = int(size) if size.isdigit() else 0
        while len(data) < count:
            data += more()
        piece, data = data[:count], data[count:]
        if line.startswith(b'{"type":"agent"'):
            return piece, others + data
        others += line + b"\n" + piece


def more() -> bytes:
    """Return the next bytes of stdin. Ends the process at its end, or where nothing comes for long."""
    import select

    return (select.select([0], [], [], FIRST_REQUEST_LIMIT_S)[0] and os.read(0, 1 << 18)) or sys.exit(1)
