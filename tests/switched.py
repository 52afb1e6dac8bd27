"""A switchboard with nodes on this machine, and a user whose ``mesh`` goes through it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mesh.backends.switchboard.program import pack
from mesh.engine.credentials import make_credentials
from tests.conftest import Home
from tests.ports import free_port
from tests.switched_client import LOOPBACK

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of hosts, as sshd has it


@dataclass
class SwitchedHome(Home):
    """A user whose ``mesh`` reaches hosts through a switchboard."""

    board: Switchboard | None = None
    client_return: float = 30.0

    def argv(self, *words: str) -> list[str]:
        assert self.board is not None
        given = [str(self.board.port), str(self.board.key), str(self.client_return)]
        return [sys.executable, "-m", "tests.switched_client", *given, *words]


class Switchboard:
    """A switchboard and its nodes, each a process here."""

    def __init__(self, directory: Path, names: Sequence[str], python: str = sys.executable) -> None:
        self._directory, self._python = directory, python
        directory.mkdir(parents=True, exist_ok=True)
        self.credentials = make_credentials()
        self.key, self._zip = directory / "key.pem", directory / "switchboard.zip"
        self.key.write_text(self.credentials)
        self._zip.write_bytes(pack())
        self.port = free_port()  # which stays its own while no switchboard is there
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
        """Start it, on the port that it has always."""
        self.board = self._start({}, "board", "--address", LOOPBACK, "--ports", f"{self.port}-{self.port}")
        assert self.board.stdout is not None
        with self.board.stdout as stdout:
            assert json.loads(stdout.readline()) == {"port": self.port}

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
                env={**os.environ, "PATH": PATH, **environ},
                start_new_session=True,
            )
