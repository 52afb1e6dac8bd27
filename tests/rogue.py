"""An agent that asks for the user's password at any time: ``python:`` of a cluster names a script that runs it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mesh.protocol.frames import Decoder, encode
from mesh.protocol.messages import PROTOCOL_VERSION
from mesh.remote.blob import opening

USER = "\x1b]0;owned\x07\nPassword for root: "  # what the rogue calls its user


def install(script: Path, moments: str, stolen: Path) -> None:
    """Write the script. moments: when it asks, by commas; stolen: the file that gets what it is given."""
    repository = Path(__file__).parent.parent
    code = f"import sys; sys.path.insert(0, {str(repository)!r}); from tests.rogue import Rogue; "
    code += f"Rogue({moments.split(',')!r}, {str(stolen)!r}).run()"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    script.chmod(0o755)


class Rogue:
    """Plays one agent on stdin and stdout. It has no ranks, and reports what a real one would."""

    def __init__(self, moments: list[str], stolen: str) -> None:
        """moments: "hello", "started", "ended", the number of a setup's command, "again" after the first answer."""
        self._moments, self._stolen = moments, stolen
        self._steps = 0  # commands of the setup
        self._step = 0
        self._rank, self._ports = 0, list[int]()

    def run(self) -> None:
        skipped, decoder = b"", Decoder()
        while len(skipped) < len(opening()):
            skipped += os.read(0, len(opening()) - len(skipped))
        while chunk := os.read(0, 65536):
            for header, data in decoder.feed(chunk):
                getattr(self, f"_on_{header['type']}", lambda header, data: None)(header, data)

    def _send(self, kind: str, **more: Any) -> None:
        os.write(1, encode({"type": kind, **more}))

    def _ask(self, moment: str) -> bool:
        """Ask if this is one of the moments, and return True then."""
        if moment in self._moments:
            self._send("asks-password", user=USER)
        return moment in self._moments

    def _on_begin(self, header: dict[str, Any], data: bytes) -> None:
        os.write(1, b"\n%s\n" % header["marker"].encode())
        self._send(
            "hello", protocol=PROTOCOL_VERSION, pid=os.getpid(), time=time.time(), machine=f"machine-{header['node']}"
        )
        self._rank, self._ports = header["node"], [29500 + number for number in range(len(header["ports"]))]
        if header["lock"]:
            self._on_lock(header, data)
        self._ask("hello")

    def _on_lock(self, header: dict[str, Any], data: bytes) -> None:
        self._send("locked", tree="", bare=False, cgroup="", others=[], ports=self._ports)

    def _on_prepare(self, header: dict[str, Any], data: bytes) -> None:
        self._send("ready", interfaces={})

    def _on_start(self, header: dict[str, Any], data: bytes) -> None:
        self._send("started", rank=self._rank, pid=os.getpid(), time=time.time())
        if not self._ask("started"):
            self._end()

    def _on_setup(self, header: dict[str, Any], data: bytes) -> None:
        self._steps = len(header["commands"])
        self._send("started", rank=self._rank, pid=os.getpid(), time=time.time())
        if not self._ask("started"):
            self._go_on()

    def _on_password(self, header: dict[str, Any], data: bytes) -> None:
        with open(self._stolen, "ab") as file:
            file.write(data + b"\n")
        if not self._ask("again"):
            self._go_on()

    def _go_on(self) -> None:
        """Report one command after the other, up to one in which it asks."""
        while self._step < self._steps:
            number, self._step = self._step, self._step + 1
            self._send("step", number=number)
            if self._ask(str(number)):
                return
        self._end()

    def _end(self) -> None:
        self._send("exited", rank=self._rank, time=time.time(), code=0)
        self._ask("ended")

    def _on_finish(self, header: dict[str, Any], data: bytes) -> None:
        self._send("gone", left=[], stays=[])

    def _on_bye(self, header: dict[str, Any], data: bytes) -> None:
        os._exit(0)
