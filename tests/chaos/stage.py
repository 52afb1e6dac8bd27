"""One run on its way, what can be done to it, and what is left of it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.chaos.rank import DEVICE, LINE, lines
from tests.conftest import Home, Terminal, new_home
from tests.lab import Lab, TestHost, eventually, is_agent, wait_for_sshd

PROGRAM = Path(__file__).parent / "rank.py"
GRACE = 1.0  # seconds, --grace of every run here
LEAVE = 2.0  # seconds in which the agent leaves once all is gone
SLACK = 30.0  # seconds more, for four hosts and their client on two busy cores
START = 90.0  # seconds for all ranks to be up
HANG = 60.0  # seconds after which a client that should end hangs, beyond what its own options allow


@dataclass(frozen=True)
class Log:
    """What the client has of one rank's output."""

    rank: int
    size: int  # bytes
    printed: int  # bytes that the rank knows to have printed
    left_out: int  # bytes that mesh has counted as left out
    is_right: bool  # the right lines in the right order, none twice; only the last one may be cut

    @property
    def is_whole(self) -> bool:
        """All that the rank printed is there, or counted."""
        return self.is_right and self.size % LINE == 0 and self.size + self.left_out >= self.printed


class Stage:
    """A run on all hosts of a lab; a context manager that leaves the lab as new."""

    def __init__(self, lab: Lab, behaviours: str, *options: str, on_terminal: bool = False, storm: int = 200) -> None:
        """storm: the processes that a rank forks whose behaviour is that"""
        self.lab, self.hosts = lab, lab.hosts
        self.struck = 0.0  # monotonic, when the first fault that ends the run did
        self.unreachable: set[int] = set()  # hosts that mesh cannot reach at the end of the run
        self._directory = Path(tempfile.mkdtemp(prefix="mesh-chaos-"))
        self._undo: list[tuple[TestHost, str]] = []
        self._is_configured = False  # sshd has settings that it must forget
        self._terminal: Terminal | None = None
        self._storm = storm
        self._options, self._behaviours, self._on_terminal = options, behaviours, on_terminal
        self.home: Home = new_home(self._directory)
        self.home.clusters(lab.cluster_yaml())
        self.home.trust(lab)
        shutil.copy(PROGRAM, self.home.project)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._terminal is not None:
            self._terminal.close()
        for host in self.hosts:
            host.mend()
            self.lab.end_all(host)
            if not any("[listener]" in command for _, command in host.processes(with_sshd=True)):
                self.start_sshd(host)
        for host, script in self._undo:
            host.script(script)
        for host in self.hosts if self._is_configured else ():
            host.restart_sshd()
        self.lab.reset()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- the run

    def start(self) -> None:
        """Start mesh, and wait until every rank does what it is there for."""
        words = ["run", "--grace", f"{GRACE:g}", "--env", f"STORM={self._storm}", *self._options]
        words += ["pod", "python3", "-S", "rank.py", self._behaviours]
        if self._on_terminal:
            self._terminal = self.home.terminal(*words)
            self.process = self._terminal.process
        else:
            with (self._directory / "err").open("wb") as err:
                self.process = self.home.popen(*words, stdout=subprocess.DEVNULL, stderr=err)
        ups = [host.path(f"/tmp/up-{rank}") for rank, host in enumerate(self.hosts)]
        if not eventually(lambda: all(path.exists() for path in ups) or self.client.poll() is not None, START):
            raise AssertionError(f"the ranks did not start: {self.said()}")
        if self.client.poll() is not None:
            raise AssertionError(f"the run did not start: exit {self.client.returncode}: {self.said()}")

    @property
    def client(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def said(self) -> str:
        """What mesh told on stderr."""
        with contextlib.suppress(OSError):
            return (self._directory / "err").read_text(errors="replace")
        return ""

    def verdict(self) -> str:
        """The last error of which mesh told."""
        errors = [line for line in self.said().splitlines() if line.startswith("error: ")]
        return errors[-1] if errors else "no error was told"

    def finish(self) -> None:
        """Let every rank end by itself, where that is still possible."""
        for host in self.hosts:
            host.path("/tmp/finish").touch()

    def fail(self, rank: int) -> None:
        self.hosts[rank].path(f"/tmp/fail-{rank}").touch()

    def end(self, within: float) -> int | None:
        """The client's exit status; None if it hangs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.client.wait(within)
        return None

    # ---- faults

    def strike(self) -> None:
        """What ends the run happens now."""
        self.struck = self.struck or time.monotonic()

    def send(self, number: int) -> None:
        self.client.send_signal(number)

    def hang_up(self) -> None:
        assert self._terminal is not None
        self._terminal.hang_up()

    def stop_client(self, seconds: float) -> None:
        self.send(signal.SIGSTOP)
        time.sleep(seconds)
        self.send(signal.SIGCONT)

    def cut(self, nodes: Sequence[int], seconds: float) -> None:
        for node in nodes:
            self.hosts[node].cut()
        time.sleep(seconds)
        for node in nodes:
            self.hosts[node].mend()

    def cut_for_good(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self.hosts[node].cut()
        self.unreachable |= set(nodes)

    def reset_connections(self, nodes: Sequence[int]) -> None:
        """What is on its way to the client is lost with them, where the kernel can do that (INET_DIAG_DESTROY)."""
        for node in nodes:
            self.hosts[node].run("ss", "-K", "sport", "=", "22", check=False)
            for pid, command in self.hosts[node].processes(with_sshd=True):
                if "sshd" in command and "[listener]" not in command:
                    kill(pid)

    def is_connected(self, node: int) -> bool:
        """Whether sshd there serves a connection."""
        return any("notty" in command for _, command in self.hosts[node].processes(with_sshd=True))

    def kill_sshd(self, node: int) -> None:
        """The listener as well: nobody can come back."""
        for pid, command in self.hosts[node].processes(with_sshd=True):
            if "[listener]" in command:
                kill(pid)
        self.reset_connections([node])
        self.unreachable.add(node)

    def start_sshd(self, host: TestHost) -> None:
        host.script("/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log")
        self.unreachable.discard(host.index)
        wait_for_sshd(host.address, 22)

    def configure_sshd(self, *config: str) -> None:
        """More lines of sshd_config on every host, until the stage ends."""
        added = "\\n".join(config)
        for host in self.hosts:
            host.script(f"cp /etc/ssh/sshd_config /etc/ssh/before; printf '{added}\\n' >>/etc/ssh/sshd_config")
            host.restart_sshd()
            self._undo.append((host, "mv /etc/ssh/before /etc/ssh/sshd_config"))
        self._is_configured = True

    def give_small_disk(self, megabytes: int) -> None:
        """A file system of its own for ~/.mesh on every host, until the stage ends."""
        for host in self.hosts:
            host.script(
                f"mkdir -p .mesh; mount -t tmpfs -o size={megabytes}m,mode=700 tmpfs .mesh; chown {host.user}: .mesh"
            )
            self._undo.append((host, "umount -l .mesh"))

    def fill_disk(self) -> None:
        for host in self.hosts:
            host.script("cat /dev/zero >.mesh/filler 2>/dev/null || true")

    def agents(self, node: int) -> tuple[list[int], list[int]]:
        """(agents, guardians) of a host, as pids here."""
        ours = {pid: _parent(pid) for pid, command in self.hosts[node].processes() if is_agent(command)}
        agents = [pid for pid, parent in ours.items() if parent in ours]
        return agents, [ours[pid] for pid in agents]

    def kill_agent(
        self, node: int, *, agent: bool = True, guardian: bool = False, number: int = signal.SIGKILL
    ) -> None:
        agents, guardians = self.agents(node)
        # The guardian first: it would end the run before it dies itself.
        for pid in [*(guardians if guardian else []), *(agents if agent else [])]:
            kill(pid, number)

    # ---- what is left

    def survivors(self, *, with_agents: bool = True, reachable: bool = False) -> list[str]:
        """Processes on the hosts, counted from outside.

        with_agents: also those of mesh, and what has no command line any more: an agent on its way out looks like that
        reachable: only where mesh can look itself
        """
        return [
            f"{host.name}: {pid} {command[:60]}"
            for host in self.hosts
            if not (reachable and host.index in self.unreachable)
            for pid, command in host.processes()
            if with_agents or (command and not is_agent(command))
        ]

    def devices_are_free(self) -> bool:
        """Whether whoever wants the device of any host can have it."""
        for host in self.hosts:
            with contextlib.suppress(FileNotFoundError), host.path(DEVICE).open("rb") as device:
                try:
                    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def logs(self) -> list[Log]:
        """What the client has of each rank's output, beside what the rank has printed."""
        return list(self._logs())

    def _logs(self) -> Iterator[Log]:
        (directory,) = (self.home.path / ".local/state/mesh/runs").iterdir()
        about = json.loads((directory / "run.json").read_text())
        for rank, host in enumerate(self.hosts):
            counted = host.path(f"/tmp/wrote-{rank}").read_text()
            left_out = sum(item["bytes"] for item in about.get("left_out", ()) if item["rank"] == rank)
            path = directory / f"logs/rank-{rank:04d}.out"
            data = path.read_bytes() if path.exists() else b""
            right = is_right(data, rank, has_gaps=bool(left_out))
            yield Log(rank, len(data), int(counted or 0) * LINE, left_out, right)


def is_right(data: bytes, rank: int, *, has_gaps: bool) -> bool:
    """Whether these are lines of a rank, from its first one on, in order and none twice; the last one may be cut.

    has_gaps: some may be left out in the middle
    """
    if not has_gaps:
        return data == lines(rank, 0, len(data) // LINE + 1)[: len(data)]
    last = -1
    for place in range(0, len(data), LINE):
        line = data[place : place + LINE]
        number = int(line[3:12]) if line[3:12].isdigit() else -1
        if line != lines(rank, number, number + 1) or number <= last:
            return False
        last = number
    return True


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
