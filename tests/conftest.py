"""What all tests share: test hosts, a user's home, the mesh command, and a look that no test leaves anything."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from tests.full import IS_FULL, times
from tests.lab import SSHD, Lab, PlainLab, eventually
from tests.pythons import pythons

REPOSITORY = Path(__file__).parent.parent
# Each module is compiled once: processes of tests would do so at every start, and each worker for all test files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# On a machine with much to do, inputs come slowly. They are the same in each run of the suite, so that no change is
# refused for an input that an older fault fails at once in many runs. MESH_TEST_FULL=1 tries new ones.
settings.register_profile(
    "mesh",
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    derandomize=not IS_FULL,
    max_examples=times(50, full=100),
)
settings.load_profile("mesh")
HAS_FAILED = pytest.StashKey[bool]()
PATIENCE = 60.0  # seconds for one mesh command; a test that needs more hangs


def pytest_configure(config: pytest.Config) -> None:
    """Have programs begin with these signals at their default. What runs in the background of a shell ignores them."""
    config.pluginmanager.register(Doctests())
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # an ignored one stays ignored in programs, and this one does not


def pytest_report_header() -> str:
    return f"agents run on Python {', '.join(pythons())}"


class Doctests:
    """A plugin that leaves out modules without doctests, which each worker would import and look through.

    The hook of a conftest is called for files beside it alone, and most doctests are in mesh.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        collectors = yield
        if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
            collectors = [one for one in collectors if not isinstance(one, DoctestModule)]
        return collectors


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))
    for item in items:
        if item.get_closest_marker("root") and os.geteuid():
            item.add_marker(pytest.mark.skip(reason="needs root"))
        elif item.get_closest_marker("sshd") and SSHD is None:
            item.add_marker(pytest.mark.skip(reason="needs sshd"))


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return tests in an order in which each worker begins with its share of the long ones, and ends with short ones.

    Each worker is given as many as another, in this order, and takes over from others what they have not come to.
    """
    kinds: dict[str, list[pytest.Item]] = {"chaos": [], "integration": [], "agent": [], "": []}
    for item in items:
        kinds[item.path.parent.name if item.path.parent.name in kinds else ""].append(item)
    return [
        item
        for worker in range(workers)
        for kind in kinds.values()
        for item in kind[len(kind) * worker // workers : len(kind) * (worker + 1) // workers]
    ]


def pytest_collection_finish() -> None:
    """Have no search for garbage look at the tests themselves, which stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an open descriptor."""
    threads, children = set(threading.enumerate()), own_children()
    descriptors = set(os.listdir("/proc/self/fd"))
    yield
    # Threads and processes may be on their way out.
    assert eventually(lambda: not own_children() - children, PATIENCE), f"left {own_children() - children}"
    left = [thread for thread in threading.enumerate() if thread not in threads]
    assert eventually(lambda: not any(thread.is_alive() for thread in left), PATIENCE), f"left {left}"
    found = open_descriptors() - descriptors
    assert not found or eventually(lambda: not open_descriptors() - descriptors, PATIENCE), f"left {found}"


def own_children() -> set[str]:
    """Our child processes, zombies too."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def open_descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{name}")
            found.add(name)
        except OSError:  # the one that listed the directory
            pass
    return found


@pytest.fixture(scope="session")
def session_lab() -> Iterator[Lab]:
    with Lab(4, visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY]) as lab:
        yield lab


@pytest.fixture
def lab(session_lab: Lab, nothing_is_left: None) -> Iterator[Lab]:
    """Four hosts made of namespaces, as new. A test that leaves a process on one of them fails."""
    yield session_lab
    try:
        left = lambda: {name: found for name, found in session_lab.processes(session_lab.hosts).items() if found}  # noqa: E731
        assert eventually(lambda: not left(), PATIENCE), f"left: {left()}"
    finally:
        session_lab.reset()


@pytest.fixture(scope="session")
def session_plain_lab() -> Iterator[PlainLab]:
    with PlainLab(2) as lab:
        yield lab


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB. Needs root."""
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def own_place(home: Home) -> Iterator[Path]:
    """Where nothing of another test waits for the next command. The name of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="mesh-") as place:
        home.environ["XDG_RUNTIME_DIR"] = place
        yield Path(place)
        assert eventually(lambda: not os.listdir(place)), os.listdir(place)


@dataclass
class Home:
    """A user with a home directory and a project."""

    path: Path
    project: Path
    environ: dict[str, str] = field(default_factory=dict)

    def clusters(self, text: str) -> None:
        """Write cluster.yaml."""
        file = self.path / ".config/mesh/cluster.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def trust(self, lab: Lab) -> None:
        """Know the keys of all hosts already."""
        (self.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (self.path / ".ssh/known_hosts").write_text(lab.known_hosts.read_text())

    def own_known_hosts(self) -> None:
        """Have ssh(1) keep the keys of hosts here. It reads the user database, whatever HOME is."""
        wrapper = self.path / "bin/ssh"
        wrapper.parent.mkdir()
        settings = f"-F {self.path}/.ssh/config -o UserKnownHostsFile={self.path}/.ssh/known_hosts"
        wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh {settings} "$@"\n')
        wrapper.chmod(0o755)
        (self.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
        (self.path / ".ssh/config").touch()
        self.environ["PATH"] = f"{wrapper.parent}:{self.environ['PATH']}"

    def files(self, **texts: str) -> None:
        """Write files of the project; ``__`` in a name stands for a dot."""
        for name, text in texts.items():
            (self.project / name.replace("__", ".")).write_text(text)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mesh", *words]

    def popen(self, *words: str, **options: object) -> subprocess.Popen[bytes]:
        """Start mesh, with SIGINT at its default.

        Without ``preexec_fn``, Python need not copy the tables of this process' memory, which has grown by all tests.
        """
        settings: dict[str, object] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.project,
            "env": self.environ,
            "start_new_session": True,
            **options,
        }
        return subprocess.Popen(self.argv(*words), **settings)  # type: ignore[call-overload, no-any-return]

    def terminal(self, *words: str) -> Terminal:
        """Start mesh on a terminal of its own, without colours."""
        return Terminal(self.argv(*words), self.project, {**self.environ, "NO_COLOR": "1"})

    def mesh(self, *words: str, within: float = PATIENCE, stdin: bytes | None = None, **options: object) -> Done:
        """Run mesh to its end."""
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(*words, **options)
        try:
            out, err = process.communicate(stdin, timeout=within)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            out, err = process.communicate()
            raise AssertionError(f"mesh {words} hangs: {out!r} {err.decode(errors='replace')}") from None
        return Done(process.returncode, out or b"", (err or b"").decode(errors="replace"))


class Terminal:
    """A program on a pseudo-terminal that is its controlling one."""

    def __init__(self, argv: Sequence[str], directory: Path, environ: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()

        def own_terminal() -> None:
            _default_signals()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**environ, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        os.close(theirs)
        self.shown = b""

    def expect(self, text: bytes, within: float = PATIENCE) -> None:
        """Wait until a text is shown."""
        deadline = time.monotonic() + within
        while text not in self.shown:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"{text!r} is not in {self.shown!r}")

    def read_all(self) -> None:
        """Read what is shown by now."""
        while self._read(0.0):
            pass

    def type(self, data: bytes) -> None:
        os.write(self._ours, data)

    def keep_output(self) -> None:
        """Keep Ctrl-C from discarding output that was written and not read yet, as terminals do without NOFLSH."""
        modes = termios.tcgetattr(self._ours)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(self._ours, termios.TCSANOW, modes)

    @property
    def has_echo(self) -> bool:
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def end(self, within: float = PATIENCE) -> int:
        """Read to the end; return the exit status."""
        deadline = time.monotonic() + within
        while self._read(max(0.0, deadline - time.monotonic())):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def hang_up(self) -> None:
        """Close the terminal's window: its programs get SIGHUP, and nobody reads what they write."""
        os.close(self._ours)
        self._ours = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._ours >= 0:
            os.close(self._ours)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, within: float) -> bool:
        """Read what comes next; False at the end, or when nothing came in time."""
        ready, _, _ = select.select([self._ours], [], [], within)
        try:
            data = os.read(self._ours, 65536) if ready else b""
        except OSError:  # EIO: nobody has it open any more
            data = b""
        self.shown += data
        return bool(data)


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@dataclass(frozen=True)
class Done:
    """The end of a mesh command."""

    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed on stdout, sorted: ranks may speak in any order."""
        return sorted(self.out.decode().splitlines())

    @property
    def said(self) -> str:
        """Its stderr, without lines about hosts that a busy machine reaches slowly."""
        slow = r"(?m)^==> (still connecting to|connecting:|pulling:|not reached after) .*\n( +mesh .*\n)?"
        return re.sub(slow, "", self.err)


def new_home(directory: Path) -> Home:
    """A new user, below a directory."""
    path, project = directory / "home", directory / "project"
    path.mkdir()
    project.mkdir()
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "COVERAGE_PROCESS_START") if name in os.environ
    }
    environ = {**kept, "HOME": str(path), "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error::ResourceWarning"}
    return Home(path, project, environ)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test has failed, for its fixtures; print what a command that failed had on stderr."""
    report = yield
    if report.failed:
        item.stash[HAS_FAILED] = True
        if call.excinfo is not None and isinstance(call.excinfo.value, subprocess.SubprocessError):
            stderr = getattr(call.excinfo.value, "stderr", None) or "(not captured, or empty)"
            text = stderr.decode(errors="replace") if isinstance(stderr, bytes) else stderr
            report.sections.append(("stderr of the command", text))
    return report


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    """A new user, in a directory that is no project yet. A detached run of a test that fails is killed."""
    home = new_home(tmp_path)
    yield home
    if request.node.stash.get(HAS_FAILED, False):
        eventually(lambda: not kill_all_of(home.path), 20.0)


def kill_all_of(home: Path) -> list[int]:
    """Kill all processes whose HOME is a directory of a test; return their ids."""
    found, mark = [], b"HOME=%s" % os.fsencode(home)
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if place.name.isdecimal() and mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
                os.kill(found[-1], signal.SIGKILL)
    return found


@pytest.fixture
def pod(home: Home, lab: Lab) -> Home:
    """A user who knows the four hosts as the cluster ``pod``."""
    home.clusters(lab.cluster_yaml())
    home.trust(lab)
    return home


@pytest.fixture
def plain_pod(home: Home, session_plain_lab: PlainLab) -> Home:
    """A user who knows the two loopback hosts as the cluster ``pod``."""
    home.clusters(session_plain_lab.cluster_yaml())
    return home


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Have one worker fill a directory that all workers of this run of the tests read; return it."""
    place = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    with (place / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / name).exists():
            beside = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
            make(beside)
            beside.rename(place / name)
    return place / name


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with uv and py-rattler, from PyPI. Without an index these tests are skipped."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target"]

    def install(directory: Path) -> None:
        done = subprocess.run([*pip, directory, "uv", "py-rattler"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"uv and py-rattler cannot be had: {done.stderr.splitlines()[-1]}")
        directory.chmod(0o755)

    return made_once(tmp_path_factory, "tools", install)


def read_until(stream: IO[bytes] | None, text: bytes) -> bytes:
    """Read the lines of a stream up to the first one with a text; return them. Fail where the stream ends before."""
    assert stream is not None
    read = b""
    while text not in read:
        line = stream.readline()
        assert line, f"{text!r} is not in {read!r}"
        read += line
    return read


Run = Callable[..., Done]
Environ = Mapping[str, str]
