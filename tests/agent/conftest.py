"""Real agents in real subprocesses, on the oldest and the newest Python that is found here."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mesh.agent.process import cgroups
from mesh.backends import command
from mesh.backends.command import CommandBackend, CommandChannel
from mesh.core.cluster import Host
from mesh.core.events import (
    Connected,
    Ended,
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
from mesh.core.run import PrerunEntry
from mesh.protocol.first import Begin
from mesh.protocol.requests import Prepare, RankStart
from mesh.remote.blob import start_command
from mesh.remote.callbacks import Callbacks
from mesh.remote.session import Session
from tests.firsts import finds, first_request, prepare_request
from tests.lab import eventually
from tests.pythons import outermost, pythons

HOST = Host(name="here", address="127.0.0.1")
GRACE_S = 60.0  # for ranks that end by themselves; a test of the SIGKILL behind it has its own


PYTHONS = pythons()
OUTERMOST = outermost()
AGENTS = {"opener", "python"}  # the fixtures and parameters by which a test has an agent, or a rank, of some Python


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that run on this Python alone, where the agents' one is chosen: it is another one's turn."""
    if "MESH_TEST_PYTHON" in os.environ:
        here = Path(__file__).parent
        alone = [one for one in items if here in one.path.parents and AGENTS.isdisjoint(one.fixturenames)]  # type: ignore[attr-defined]
        config.hook.pytest_deselected(items=alone)
        items[:] = [one for one in items if one not in alone]


class Run:
    """One agent, driven step by step; it keeps every event that came."""

    def __init__(self, channel: Channel, begin: Begin, prepare: Prepare | None = None, library: bytes = b"") -> None:
        self.session = Session(0, 0, channel, Callbacks(taken=self.take, reopen=lambda: self.reopen()))
        self.reopen: Callable[[], Channel | None] = lambda: None
        self.events: list[Event] = []
        self.taken: list[tuple[int, int]] = []
        self.session.begin(begin, prepare, library)
        self._coming = self.session.events()

    def take(self, rank: int, count: int) -> None:
        self.taken.append((rank, count))

    def until(self, *kinds: type[Event], where: Callable[[Event], bool] = lambda event: True) -> Event:
        """The next event of these kinds; the wait ends at the channel's end at the latest.

        Ended is left out: on a slow machine it passes output that waits for us, and Exited comes all the same.
        """
        for event in self._coming:
            self.session.acknowledge(self.session.place)
            if isinstance(event, Ended):
                continue
            self.events.append(event)
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
        found = finds(given, interface, targets)
        wanted = prepare_request(entries, found, force=force, claim=claim, evict=evict, program=program)
        self.session.prepare(wanted, library)
        event = self.until(Ready, PrepareFailed)
        assert isinstance(event, HostEvent)
        return event

    def start(self, *argv: str, nproc: int = 1, stdin: bool = False) -> None:
        ranks = [RankStart(rank=n, env={"RANK": str(n), "LOCAL_RANK": str(n)}, stdin=stdin) for n in range(nproc)]
        self.session.start(argv, ranks)
        for _ in ranks:
            self.until(Started)

    def finish(self, grace: float = GRACE_S) -> Gone:
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


@pytest.fixture(params=OUTERMOST)
def python(request: pytest.FixtureRequest) -> str:
    return OUTERMOST[request.param]


@pytest.fixture
def any_python() -> str:
    return next(iter(PYTHONS.values()))


@pytest.fixture
def remote_dir(tmp_path: Path) -> Path:
    return tmp_path / "dot mesh"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a guardian takes long to end what its agent has left, and is waited for."""
    monkeypatch.setattr(command, "STATUS_TIMEOUT_S", GRACE_S)


@pytest.fixture
def opener(remote_dir: Path) -> Iterator[Open]:
    """Open agents; all are gone when the test ends, or it fails."""
    backend = CommandBackend()
    channels: list[Channel] = []

    def start(
        python: str,
        prepare: Prepare | None = None,
        library: bytes = b"",
        **changes: object,
    ) -> Run:
        usual = {"run": f"run-{os.getpid()}", "remote_dir": str(remote_dir), "grace": GRACE_S}
        begin = first_request(**{**usual, **changes})
        wanted = next(iter(PYTHONS.values())) if python == sys.executable else python
        (opened,) = backend.open([HOST], start_command(wanted))
        assert not isinstance(opened.result, Exception), opened.result
        channels.append(opened.result)
        return Run(opened.result, begin, prepare, library)

    yield start
    for channel in channels:
        channel.close()
        # An agent that was let go is no child that ``close`` waits for; it may be on its way out.
        assert isinstance(channel, CommandChannel)
        assert not channel.is_left or eventually(lambda channel=channel: channel.process.poll() is not None, 60.0)
    backend.close()
    assert eventually(lambda: not left_of(f"run-{os.getpid()}"), 60.0), left_of(f"run-{os.getpid()}")


def left_of(run: str) -> list[str]:
    """Control groups and doors of a run on this machine."""
    groups = glob.glob(f"{cgroups.own() or '/nowhere'}/mesh-{run}-*")
    return groups + glob.glob(f"/tmp/mesh-{os.geteuid()}/{run}-*")


@pytest.fixture
def agent(opener: Open, any_python: str) -> Run:
    """One agent on one Python, for what does not depend on its version."""
    return opener(any_python)


@pytest.fixture(scope="session")
def bash() -> str:
    found = shutil.which("bash")
    assert found
    return found
