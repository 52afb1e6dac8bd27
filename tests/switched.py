"""A switchboard with nodes on this machine, and ``mesh`` over it: ``python -m tests.switched PORT KEY RETURN WORDS``.

Hosts of clusters with ``command:`` are nodes of this switchboard, by their names.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.app import carriers
from mesh.app.carriers import Carrier, Means
from mesh.backends.command import CommandChannel
from mesh.backends.switchboard.backend import SwitchboardBackend
from mesh.backends.switchboard.program import pack
from mesh.backends.switchboard.ways import Connect, relay_argv, tcp
from mesh.core.cluster import Cluster
from mesh.core.interfaces import Backend, Channel
from mesh.engine.credentials import make_credentials
from tests.conftest import Home

LOOPBACK = "127.0.0.1"


def carrier(connect: Connect, credentials: str, client_return: float) -> Carrier:
    """The carrier of a cluster whose hosts are nodes of a switchboard."""

    def open_backend(cluster: Cluster, means: Means) -> Backend:
        names = [host.name for host in cluster.hosts]
        return SwitchboardBackend(connect, credentials, names, node_limit=20.0, client_return=client_return)

    return Carrier(open=open_backend, steps=("reach", "python"), descriptors=0)


def through_relay(port: int) -> Connect:
    """A way by the standard streams of the program that copies both ways."""

    def connect() -> Channel:
        return _Relay(relay_argv(LOOPBACK, port, sys.executable), is_agent=False)

    return connect


class _Relay(CommandChannel):
    """A program that copies both ways; it is waited for when its channel is closed."""

    def close(self, *, leave: bool = False) -> None:
        super().close(leave=leave)
        self.reap(time.monotonic())


@dataclass
class SwitchedHome(Home):
    """A user whose ``mesh`` reaches hosts through a switchboard."""

    board: Switchboard | None = None
    client_return: float = 30.0

    def argv(self, *words: str) -> list[str]:
        assert self.board is not None
        given = [str(self.board.port), str(self.board.key), str(self.client_return)]
        return [sys.executable, "-m", "tests.switched", *given, *words]


class Switchboard:
    """A switchboard and its nodes, each a process here."""

    def __init__(self, directory: Path, names: Sequence[str], python: str = sys.executable) -> None:
        self._directory, self._python = directory, python
        directory.mkdir(parents=True, exist_ok=True)
        self.credentials = make_credentials()
        self.key, self._zip = directory / "key.pem", directory / "switchboard.zip"
        self.key.write_text(self.credentials)
        self._zip.write_bytes(pack())
        self.port = 0
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._names = names

    def __enter__(self) -> Switchboard:
        self.start_board()
        for name in self._names:
            self.start_node(name)
        return self

    def __exit__(self, *why: object) -> None:
        for process in [*self.nodes.values(), self.board]:
            if process.poll() is None:
                process.terminate()
        for process in [*self.nodes.values(), self.board]:
            process.wait(60)

    def start_board(self) -> None:
        """Start it, on the port that it had before."""
        self.board = self._start({}, "board", "--address", LOOPBACK, "--ports", f"{self.port}-{self.port}")
        assert self.board.stdout is not None
        with self.board.stdout as stdout:
            self.port = json.loads(stdout.readline())["port"]

    def start_node(self, name: str) -> None:
        home = self._directory / f"home-{name}"
        home.mkdir(exist_ok=True)
        words = ["node", "--board", f"{LOOPBACK}:{self.port}", "--name", name]
        process = self.nodes[name] = self._start({"HOME": str(home)}, *words)
        assert process.stdout is not None
        process.stdout.close()

    def cluster_yaml(self, name: str = "pod") -> str:
        hosts = "".join(f"    - {{host: {one}, internal_ip: {LOOPBACK}}}\n" for one in self._names)
        return f"{name}:\n  backend: command\n  command: [unused]\n  hosts:\n{hosts}"

    def _start(self, environ: Mapping[str, str], *words: str) -> subprocess.Popen[bytes]:
        with open(self.key, "rb") as key:
            return subprocess.Popen(
                [self._python, "-I", "-S", str(self._zip), *words],
                stdin=key,
                stdout=subprocess.PIPE,
                env={**os.environ, **environ},
                start_new_session=True,
            )


def main() -> None:
    port, key, client_return, *words = sys.argv[1:]
    connect = through_relay(int(port)) if os.environ.get("BY_RELAY") else tcp(LOOPBACK, int(port))
    made = carrier(connect, Path(key).read_text(), float(client_return))
    carriers.CARRIERS = {**carriers.CARRIERS, "command": made}  # type: ignore[misc]
    from mesh.cli.program import run

    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(run(["mesh", *words]))


if __name__ == "__main__":
    main()
