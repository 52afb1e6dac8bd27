"""What all rows of the suite share: test hosts, users with projects, contestants that take turns, and the clock."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from benchmarks.figures import Sample
from tests.lab import Lab, LabError, eventually, sh

REPOSITORY = Path(__file__).parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
KEPT_WITHIN = 60.0  # seconds for agents to wait again
SETTLE = 5.0  # seconds for what a command has left on the hosts to end
LONGEST = 900.0  # seconds of one command


class BenchmarkError(Exception):
    """A contestant did not do what it was measured for."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """mesh as it is in one directory."""

    name: str
    source: Path


OURS = Variant(name="mesh", source=REPOSITORY)


@dataclass(frozen=True, kw_only=True)
class User:
    """Who runs a contestant: a home directory with a project, of which it knows the hosts as ``pod``."""

    variant: Variant
    home: Path
    project: Path

    @property
    def environ(self) -> dict[str, str]:
        known = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return {**known, "HOME": str(self.home), "PYTHONPATH": str(self.variant.source)}

    def mesh(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mesh", *words]

    def contestant(
        self, name: str, *words: str, kept: bool = False, before: Callable[[], object] = lambda: None
    ) -> Contestant:
        """A command of mesh on the cluster; kept: with an agent that waits on every host."""
        environ = {"MESH_KEEP": "600" if kept else "0"}
        name = f"{self.variant.name} {name}{', kept' * kept}"
        return Contestant(name=name, argv=self.mesh(*words), user=self, environ=environ, before=before)

    def wait_for_keeper(self, hosts: int) -> None:
        """Until an agent waits on every host for the next command. Raises BenchmarkError."""
        told = self.mesh("keep")

        def is_there() -> bool:
            done = subprocess.run(told, env=self.environ, cwd=self.project, capture_output=True, check=False)
            return f"an agent on {hosts} host{'s' * (hosts > 1)}".encode() in done.stdout

        if not eventually(is_there, KEPT_WITHIN):
            raise BenchmarkError(f"no agent waits on each of {hosts} hosts")

    def stop_keeper(self) -> None:
        """End what is kept for the next command."""
        subprocess.run(self.mesh("keep", "stop"), env=self.environ, cwd=self.project, capture_output=True, check=False)

    def fill(self, files: int, size: int) -> None:
        """Make the project anew: so many files of random bytes, which no compressor makes smaller."""
        shutil.rmtree(self.project)
        self.project.mkdir()
        generator = random.Random(7)
        for number in range(files):
            directory = self.project / f"d{number % 50}"
            directory.mkdir(exist_ok=True)
            (directory / f"f{number}").write_bytes(generator.randbytes(size))

    def edit(self) -> None:
        """Change one file."""
        (self.project / "d7/f7").write_bytes(os.urandom(1024))


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A command that is measured."""

    name: str
    argv: Sequence[str]  # () if the tool is not here
    user: User
    environ: Mapping[str, str] = field(default_factory=dict)  # more than the user's
    missing: str = ""  # what is to be installed, if it is not here
    before: Callable[[], object] = lambda: None  # called before each run, outside the measured time


class Stage:
    """Hosts and users; a context manager."""

    def __init__(
        self,
        hosts: int,
        variants: Sequence[Variant] = (OURS,),
        *,
        sshd: Sequence[str] = (),
        visible: Sequence[Path] = (),
    ) -> None:
        """visible: directories that the hosts have as well, although they lie where each host has its own"""
        self._variants = variants
        # Tools that open all connections at once are not to be measured by how often they are turned away.
        self.lab = Lab(hosts, sshd=[f"MaxStartups {2 * hosts + 100}", *sshd], visible=visible)
        self.users: list[User] = []
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        with contextlib.ExitStack() as made:
            self.scratch = Path(made.enter_context(tempfile.TemporaryDirectory()))
            made.enter_context(self.lab)
            self.users = [self._user(f"user-{number}", variant) for number, variant in enumerate(self._variants)]
            self._quiet = self._processes()
            self._resources = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for user in self.users:  # also where it was cut short: it would wait for minutes, and `mesh ps` shows it to all
            user.stop_keeper()
        self._resources.close()

    @property
    def user(self) -> User:
        """Who runs all that is not mesh."""
        return self.users[0]

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.lab.hosts]

    @property
    def ssh_options(self) -> list[str]:
        lab = self.lab
        options = f"-i {lab.identity} -o UserKnownHostsFile={lab.known_hosts} -o BatchMode=yes -o LogLevel=ERROR"
        return options.split()

    def _user(self, name: str, variant: Variant) -> User:
        home, project = self.scratch / name / "home", self.scratch / name / "project"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        project.mkdir()
        (home / ".ssh/known_hosts").write_text(self.lab.known_hosts.read_text())
        (home / ".config/mesh").mkdir(parents=True)
        (home / ".config/mesh/cluster.yaml").write_text(self.lab.cluster_yaml())
        return User(variant=variant, home=home, project=project)

    # ---- the network

    @contextlib.contextmanager
    def slow(self, *, round_trip: float = 0.0, uplink: str = "") -> Iterator[None]:
        """Within: a way to the hosts with a round trip of so many seconds, and an uplink of a rate as tc has it.

        Among themselves the hosts are as near as before.
        """
        with contextlib.ExitStack() as ends:
            if round_trip:
                ends.enter_context(self._delayed(round_trip / 2))
            if uplink:
                rate = f"rate {uplink} burst 64k latency 50ms".split()
                sh("tc", "qdisc", "add", "dev", self.lab.link, "root", "tbf", *rate)
                ends.callback(sh, "tc", "qdisc", "del", "dev", self.lab.link, "root")
            yield

    @contextlib.contextmanager
    def _delayed(self, seconds: float) -> Iterator[None]:
        switch = self.lab.in_switch
        switch("ip", "link", "add", "slow0", "type", "veth", "peer", "name", "slow1")
        for words in ("up0 nomaster", "slow0 master br0", "slow0 up", "slow1 up"):
            switch("ip", "link", "set", *words.split())
        enter = ["nsenter", "-t", str(self.lab.switch), "-n"]
        relay = [*enter, "nice", "-n", "-10", sys.executable, "-m", "benchmarks.delay", "up0", "slow1", str(seconds)]
        process = subprocess.Popen(relay, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise LabError("no delay")
            yield
        finally:
            process.kill()
            process.communicate()
            switch("ip", "link", "del", "slow0")
            switch("ip", "link", "set", "up0", "master", "br0")

    # ---- measuring

    def introduce(self) -> None:
        """Let the hosts know every user's agent, as hosts do that are used."""
        for user in self.users:
            self.measure(user.contestant("push", "push", "pod"))

    def compare(
        self, contestants: Sequence[Contestant], rounds: int, *, lines: bytes = b"", warm: bool = True
    ) -> dict[str, list[Sample]]:
        """Run all that are here, in turns, so that a slow moment of the machine meets all of them.

        lines: each host prints one line with this; warm: a round before the others does not count
        """
        here = [one for one in contestants if one.argv]
        taken: dict[str, list[Sample]] = {one.name: [] for one in here}
        for turn in range(rounds + warm):
            for one in here:
                one.before()
                sample = self.measure(one, lines)
                if turn or not warm:
                    taken[one.name].append(sample)
        return taken

    def measure(self, one: Contestant, lines: bytes = b"", out: Path | None = None) -> Sample:
        """Run it once. Raises BenchmarkError if it fails, or if not every host's line comes.

        out: a file that gets what it prints; then no lines are looked for
        """
        sent, there = self._sent(), self.cpu_there()
        with self.started(one, out) as process:
            begin = time.monotonic()
            seen, first = 0, 0.0
            for line in process.stdout or ():
                if lines and lines in line:
                    seen, first = seen + 1, time.monotonic() - begin
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or (lines and seen != len(self.lab.hosts)):
            said = (self.scratch / "stderr").read_text(errors="replace")[-2000:]
            raise BenchmarkError(f"{one.name}: {seen} lines, exit {process.returncode}: {said}")
        self.settle()
        if one.environ.get("MESH_KEEP", "0") != "0":  # nobody is to be measured while it logs in again
            one.user.wait_for_keeper(len(self.lab.hosts))
        return Sample(
            seconds=seconds,
            first=first,
            cpu=usage.ru_utime + usage.ru_stime,
            hosts_cpu=self.cpu_there() - there,
            memory=usage.ru_maxrss / 1000,
            sent=self._sent() - sent,
        )

    @contextlib.contextmanager
    def started(self, one: Contestant, out: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A contestant's process, which leads a group of its own; afterwards nothing of it is here."""
        with contextlib.ExitStack() as files:
            to = files.enter_context(out.open("wb")) if out else subprocess.PIPE
            process = subprocess.Popen(
                one.argv,
                stdin=subprocess.DEVNULL,
                stdout=to,
                stderr=files.enter_context((self.scratch / "stderr").open("wb")),
                env={**one.user.environ, **one.environ},
                cwd=one.user.project,
                start_new_session=True,
                # What is started in the background of a shell has SIGINT ignored, and hands that on.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if process.returncode is None:
                    process.wait()
                if process.stdout:
                    process.stdout.close()

    def settle(self) -> None:
        """Wait until nothing runs on the hosts that did not before, so that its CPU time is counted."""
        if not eventually(lambda: self._processes() <= self._quiet, SETTLE):
            self._quiet = self._processes()  # connections that a tool keeps

    def ranks(self, command: str) -> int:
        """How many processes with exactly this command run on the hosts, counted from outside."""
        return sum(found.strip() == command for host in self.lab.hosts for _, found in host.processes())

    def _sent(self) -> int:
        return int(Path(f"/sys/class/net/{self.lab.link}/statistics/tx_bytes").read_text())

    def _there(self) -> Iterator[str]:
        """The processes of all hosts."""
        spaces = {os.readlink(f"/proc/{host.pid}/ns/pid") for host in self.lab.hosts}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") in spaces:
                    yield name

    def _processes(self) -> int:
        return sum(1 for _ in self._there())

    def cpu_there(self) -> float:
        """CPU seconds of the hosts so far; sshd and init have the sum of all that they have started."""
        ticks = 0
        for name in self._there():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # proc(5): utime, stime, cutime, cstime
        return ticks / TICKS
