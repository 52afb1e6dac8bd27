"""Real agents in real subprocesses, on each Python that is found here."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.backends.command import CommandBackend, CommandChannel
from mesh.core.cluster import Host
from mesh.core.events import (
    Connected,
    Event,
    Exited,
    Gone,
    HostEvent,
    Locked,
    Output,
    PrepareFailed,
    Ready,
    Started,
    Stream,
)
from mesh.core.interfaces import Channel
from mesh.core.run import PrerunEntry, Rules
from mesh.remote.agent import cgroups
from mesh.remote.agent.doors import group_of
from mesh.remote.agent.state import machine_directory
from mesh.remote.begin import Begin, Finds, Preparation, Rank
from mesh.remote.blob import opening, start_command
from mesh.remote.session import Callbacks, Session
from tests.lab import eventually

OLDEST, NEWEST = (3, 8), (3, 14)
HOST = Host(name="here", address="127.0.0.1")


def pythons() -> dict[str, str]:
    """A path for each minor version that the agent supports and that is here."""
    found = {}
    patterns = [
        "/usr/bin/python3.?",
        "/usr/bin/python3.??",
        "/usr/local/bin/python3.??",
        os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"),
    ]
    for path in [sys.executable, *(path for pattern in patterns for path in sorted(glob.glob(pattern)))]:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        version = answer.stdout.strip()
        if version and OLDEST <= tuple(map(int, version.split("."))) <= NEWEST:
            found.setdefault(version, path)
    return found


PYTHONS = pythons()


class Run:
    """One agent, driven step by step; it keeps every event that came."""

    def __init__(
        self, channel: Channel, begin: Begin, preparation: Preparation | None = None, finds: Finds | None = None
    ) -> None:
        self.session = Session(0, 0, channel, Callbacks(taken=self.take, reopen=lambda: self.reopen()))
        self.reopen: Callable[[], Channel | None] = lambda: None
        self.events: list[Event] = []
        self.taken: list[tuple[int, int]] = []
        self.session.begin(begin, preparation, finds)
        self._coming = self.session.events()
        self.spare = 0  # what waits to become its first rank

    def take(self, rank: int, count: int) -> None:
        self.taken.append((rank, count))

    def until(self, *kinds: type[Event], where: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next event of these kinds; the wait ends at the channel's end at the latest."""
        for event in self._coming:
            self.events.append(event)
            self.session.acknowledge(self.session.place)
            if isinstance(event, kinds) and where(event):
                return event
        raise AssertionError(f"no {kinds} came, but {self.events}")

    def lock(self) -> None:
        self.until(Connected)
        self.session.lock()
        self.until(Locked)

    def prepare(
        self,
        prerun: Sequence[str | PrerunEntry] = (),
        env: Mapping[str, str] | None = None,
        *,
        force: bool = False,
        claim: bool = False,
        evict: bool = False,
        interface: str = "",
        targets: Sequence[str] = (),
        library: bytes = b"",
        program: str = "",
    ) -> HostEvent:
        """Go on to Ready, or to what failed."""
        self.lock()
        given = {"RANK": "0", "LOCAL_RANK": "0", **(env or {})}
        entries = [PrerunEntry(run=entry) if isinstance(entry, str) else entry for entry in prerun]
        wanted = Preparation(prerun=entries, force=force, claim=claim, evict=evict, library=library, program=program)
        self.session.prepare(wanted, Finds(env=given, interface=interface, targets=targets))
        event = self.until(Ready, PrepareFailed)
        assert isinstance(event, HostEvent)
        return event

    def start(self, *argv: str, nproc: int = 1, stdin: bool = False) -> None:
        ranks = [Rank(rank=n, env={"RANK": str(n), "LOCAL_RANK": str(n)}, stdin=stdin) for n in range(nproc)]
        self.session.start(argv, ranks)
        for _ in ranks:
            self.until(Started)

    def finish(self, grace: float = 10.0) -> Gone:
        self.session.finish(signal.SIGTERM, grace)
        event = self.until(Gone)
        assert isinstance(event, Gone)
        return event

    def result(self) -> Exited:
        """Wait for the end of the (only) rank, and let the agent leave."""
        event = self.until(Exited)
        assert isinstance(event, Exited)
        assert self.finish().left == ()
        return event

    def printed(self, stream: Stream = Stream.STDOUT, rank: int = 0) -> bytes:
        return b"".join(
            event.data
            for event in self.events
            if isinstance(event, Output) and event.stream is stream and event.rank == rank
        )


Open = Callable[..., Run]


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return PYTHONS[request.param]


@pytest.fixture
def any_python() -> str:
    return next(iter(PYTHONS.values()))


@pytest.fixture
def remote_dir(tmp_path: Path) -> Path:
    return tmp_path / "dot mesh"


@pytest.fixture
def opener(remote_dir: Path) -> Iterator[Open]:
    """Open agents; all are gone when the test ends, or it fails."""
    backend = CommandBackend()
    channels: list[Channel] = []

    def start(
        python: str,
        preparation: Preparation | None = None,
        finds: Finds | None = None,
        *,
        waits: bool = False,
        **changes: object,
    ) -> Run:
        run = f"run-{os.getpid()}"
        rules = {name: changes.pop(name) for name in Rules.__struct_fields__ if name in changes}
        begin = Begin(
            run=run,
            project="p",
            remote_dir=str(remote_dir),
            about={},
            owner=None,
            node=0,
            share=False,
            devices=(),
            device_patience=5.0,
            rules=replace(Rules(spool=10**9, lease=60.0, grace=5.0), **rules),
        )
        begin = replace(begin, **changes)
        (opened,) = backend.open([HOST], start_command(python))
        assert not isinstance(opened.result, Exception), opened.result
        channels.append(opened.result)
        spare = wait_for_spare(opened.result) if waits else 0
        run = Run(opened.result, begin, preparation, finds)
        run.spare = spare
        return run

    yield start
    for channel in channels:
        channel.close()
        # An agent that was let go is no child that ``close`` waits for; it may be on its way out.
        assert isinstance(channel, CommandChannel)
        assert not channel.is_left or eventually(lambda channel=channel: channel.process.poll() is not None, 20.0)
    backend.close()
    assert eventually(lambda: not left_of(f"run-{os.getpid()}"), 20.0), left_of(f"run-{os.getpid()}")
    for channel in channels:
        assert eventually(lambda channel=channel: not kept_groups(channel), 20.0)


def wait_for_spare(channel: Channel) -> int:
    """As with keep: an agent waits for its first request, and has made what waits to become a rank: its pid."""
    channel.send(opening())
    send = channel.send

    def send_rest(data: bytes) -> None:
        channel.send = send  # type: ignore[method-assign]
        send(data.removeprefix(opening()))

    channel.send = send_rest  # type: ignore[method-assign]
    assert isinstance(channel, CommandChannel)
    assert eventually(lambda: spare_of(channel.process.pid), 20.0)
    return spare_of(channel.process.pid)


def spare_of(guardian: int) -> int:
    """The child of a waiting agent, once it waits; 0 before. guardian: the pid of the agent's"""
    for agent in children(guardian):
        for spare in children(agent):
            with contextlib.suppress(FileNotFoundError):  # it is closing what it does not need
                held = [os.readlink(path) for path in glob.glob(f"/proc/{spare}/fd/*")]
                if len(held) == 4 and held.count(os.devnull) == 3:
                    return spare
    return 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def damage_a_tape(remote_dir: Path) -> None:
    """Have an agent of these fail that looks for tapes: of one, what is told about it is no object."""
    place = Path(machine_directory(str(remote_dir))) / "tape-x-0"
    place.mkdir(parents=True)
    (place / "facts").touch()
    (place / "about.json").write_text("[1]")


def left_of(run: str) -> list[str]:
    """Control groups and doors of a run on this machine."""
    groups = glob.glob(f"{cgroups.own() or '/nowhere'}/mesh-{run}-*")
    return groups + glob.glob(f"/tmp/mesh-{os.geteuid()}/{run}-*")


def kept_groups(channel: Channel) -> list[str]:
    """The control group of an agent that waits, or has waited."""
    assert isinstance(channel, CommandChannel)
    return glob.glob(f"{cgroups.own() or '/nowhere'}/{group_of(channel.process.pid)}")


@pytest.fixture
def agent(opener: Open, any_python: str) -> Run:
    """One agent on one Python, for what does not depend on its version."""
    return opener(any_python)


@pytest.fixture(scope="session")
def bash() -> str:
    found = shutil.which("bash")
    assert found
    return found
