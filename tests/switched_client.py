"""``mesh`` over a switchboard: ``python -m tests.switched_client PORT KEY RETURN WORDS``.

Hosts of clusters with ``backend: command`` are nodes of the switchboard, by their names. Nothing else of the tests is
imported, so that it costs what mesh costs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from mesh.app import carriers
from mesh.app.carriers import Carrier, Means
from mesh.backends.command import CommandChannel
from mesh.backends.switchboard.ways import Connect, bridge_argv, tcp
from mesh.core.cluster import Cluster
from mesh.core.interfaces import Backend, Channel

LOOPBACK = "127.0.0.1"


def carrier(connect: Connect, credentials: str, client_return: float) -> Carrier:
    """The carrier of a cluster whose hosts are nodes of a switchboard."""

    def open_backend(cluster: Cluster, means: Means) -> Backend:
        from mesh.backends.switchboard.backend import SwitchboardBackend

        names = [host.name for host in cluster.hosts]
        return SwitchboardBackend(connect, credentials, names, client_return=client_return)

    return Carrier(open=open_backend, steps=("reach", "python"), descriptors=0)


def through_bridge(port: int) -> Connect:
    """A way by the standard streams of the program that copies both ways."""

    def connect() -> Channel:
        return _Bridge(bridge_argv(LOOPBACK, port, sys.executable), is_agent=False)

    return connect


class _Bridge(CommandChannel):
    """A program that copies both ways; it is waited for when its channel is closed."""

    def close(self, *, leave: bool = False) -> None:
        super().close(leave=leave)
        self.reap(time.monotonic())


def main() -> None:
    port, key, client_return, *words = sys.argv[1:]
    connect = through_bridge(int(port)) if os.environ.get("BY_BRIDGE") else tcp(LOOPBACK, int(port))
    made = carrier(connect, Path(key).read_text(), float(client_return))
    carriers.CARRIERS = {**carriers.CARRIERS, "command": made}  # type: ignore[misc]
    from mesh.cli.program import run

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(run(["mesh", *words]))


if __name__ == "__main__":
    main()
