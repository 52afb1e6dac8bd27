"""Machines behind the addresses of emulated TPUs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Protocol

from tests.lab import Lab, TestHost, make_key, wait_for_sshd

REPOSITORY = Path(__file__).parents[2]
BOTH_KEYS = "AuthorizedKeysFile /etc/ssh/authorized_keys .ssh/authorized_keys"  # the lab's key, and those of hosts


class Hosts(Protocol):
    """A pool of machines, by their numbers. `up` and `down` are called from one thread."""

    def take(self, count: int) -> list[int] | None:
        """Return free numbers; None if there are too few."""

    def address(self, number: int) -> str: ...
    def up(self, number: int, node: str) -> None: ...
    def begin_script(self, number: int, text: str) -> None: ...
    def down(self, number: int, node: str) -> None: ...
    def tick(self) -> None: ...
    def end(self) -> None: ...


class NoHosts:
    """Addresses with nothing behind them."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> list[int] | None:
        self._next += count
        return list(range(self._next - count, self._next))

    def address(self, number: int) -> str:
        return f"192.0.{2 + number // 250}.{1 + number % 250}"

    def up(self, number: int, node: str) -> None: ...
    def begin_script(self, number: int, text: str) -> None: ...
    def down(self, number: int, node: str) -> None: ...
    def tick(self) -> None: ...
    def end(self) -> None: ...


class DirectoryHosts(NoHosts):
    """The hosts of tests/jobs_world.py: directories whose ranks are processes. `down` kills them without a goodbye."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._dead: set[str] = set()  # nodes

    def down(self, number: int, node: str) -> None:
        self._dead.add(node)
        for path in (self._root / "hosts").glob(f"{node}-w*"):
            (path / "down").touch()
        self.tick()

    def tick(self) -> None:
        """Kill the ranks of dead nodes, also those that begin there now, and note their ends."""
        for path in [path for node in self._dead for path in (self._root / "hosts").glob(f"{node}-w*")]:
            notes = path / "ranks"
            alive: dict[int, dict[str, object]] = {}
            text = notes.read_text() if notes.exists() else ""
            for line in text.splitlines()[: text.count("\n")]:  # the last one may be half written
                note = json.loads(line)
                if note["what"] == "begin":
                    alive[note["pid"]] = note
                else:
                    alive.pop(note["pid"], None)
            for pid, note in alive.items():
                moment = time.monotonic()
                if _is_rank(pid, self._root):
                    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                        os.kill(pid, signal.SIGKILL)
                    with open(notes, "a") as file:
                        file.write(json.dumps({**note, "what": "end", "time": moment}) + "\n")


def _is_rank(pid: int, root: Path) -> bool:
    try:
        return str(root).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class LabHosts:
    """Namespaces with sshd. Each `up` is a machine as new: a fresh file system, and another host key.

    image: a script that runs in each machine before sshd starts, for what a real machine's image has
    """

    def __init__(self, count: int, image: Path | None = None) -> None:
        self._count, self._image = count, image
        self.lab = Lab(count, sshd=[BOTH_KEYS], visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY])
        self._free = list(range(count))
        self._is_up: set[int] = set()

    def begin(self) -> None:
        """Make the pool, with no machine in it."""
        self.lab.__enter__()
        self.lab.kill(*self.lab.hosts)

    def take(self, count: int) -> list[int] | None:
        if len(self._free) < count:
            return None
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def address(self, number: int) -> str:
        return self._host(number).address

    def _host(self, number: int) -> TestHost:
        return self.lab.hosts[number]

    def up(self, number: int, node: str) -> None:
        """Boot a machine."""
        if number in self._free:  # it was killed to come back as another one
            self._free.remove(number)
        host = self._host(number)
        shutil.rmtree(host.directory / "fs", ignore_errors=True)
        (host.directory / "fs").mkdir()
        for name in ("host_key", "host_key.pub"):
            (host.directory / name).unlink(missing_ok=True)
        make_key(host.directory / "host_key", host.name)
        boot = host.directory / "boot"
        boot.unlink(missing_ok=True)  # of the machine that was here before
        if self._image is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(self._image, boot)
        self.lab.boot(host)
        self._is_up.add(number)

    def begin_script(self, number: int, text: str) -> None:
        """Run a script as root; its output is in /var/log/startup-script.log."""
        wait_for_sshd(self.address(number), 22)  # before that, the machine's files may still be those of this one
        self._host(number).run("sh", "-c", "sh -s >/var/log/startup-script.log 2>&1 || true", text=text)

    def down(self, number: int, node: str) -> None:
        """Kill a machine without a goodbye."""
        if number in self._is_up:
            self._is_up.discard(number)
            self.lab.kill(self._host(number))
        if number not in self._free:
            self._free.append(number)

    def tick(self) -> None: ...

    def end(self) -> None:
        self.lab.down()


NO_HOSTS = NoHosts()
