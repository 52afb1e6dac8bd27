"""How far a run is on its way to the start, as people see it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.app.luggage import WorkspaceLuggage
from mesh.core.cluster import Host, place_ranks
from mesh.core.events import (
    Connected,
    Event,
    Lost,
    Notice,
    Output,
    PrepareFailed,
    Started,
    Stream,
    Synced,
)
from mesh.core.progress import Preparing, Sending
from mesh.core.pull import Pulled, Pulling
from mesh.screen.output import Style
from mesh.screen.progress import Progress
from mesh.screen.terminal import About, Streams, TerminalSink
from mesh.workspace.git import GitState
from mesh.workspace.manifest import hash_of
from tests.conftest import Home
from tests.specs import spec_of
from tests.unit.test_live import Terminal

PLACEMENT = place_ranks(tuple(Host(name=f"tpu-{n}", address=f"10.0.0.{n}") for n in range(8)))
MB = 1_000_000


def connected(*nodes: int) -> list[Event]:
    return [Connected(time=1, node=node, address="", machine="") for node in nodes]


def synced(*nodes: int) -> list[Event]:
    return [Synced(time=1, node=node, files=1, bytes=1, seconds=1) for node in nodes]


def sending(sent: float, of: float) -> Event:
    return Sending(time=1, sent=int(sent * MB), of=int(of * MB))


def pulling(node: int, has: float, of: float) -> Event:
    return Pulling(time=1, node=node, files=1, bytes=int(has * MB), of=int(of * MB))


def pulled(*nodes: int) -> list[Event]:
    return [Pulled(time=1, node=node, files=1, unchanged=0, bytes=1, seconds=1) for node in nodes]


ALL = connected(*range(8))
AT: dict[str, tuple[list[tuple[float, list[Event]]], str]] = {
    "nothing within a second": ([(0.9, connected(0))], ""),
    "who connects": ([(1, connected(0))], "connecting: 1 of 8 hosts"),
    "who is missing, once most are there": (
        [(1, connected(0, 1, 4, 6))],
        "connecting: 4 of 8 hosts, waiting for tpu-2, tpu-3, tpu-5, ...",
    ),
    "one who failed is not waited for": (
        [(1, [*connected(0, 1, 2, 3, 4, 5), PrepareFailed(time=1, node=6, step="login", message="")])],
        "connecting: 7 of 8 hosts, waiting for tpu-7",
    ),
    "listing": ([(1, ALL), (1.2, [Preparing(time=1, what="listing", done=45000, of=0)])], "listing: 45,000 files"),
    "hashing": ([(1, [Preparing(time=1, what="hashing", done=300, of=7000)])], "hashing: 0.3 of 7.0 kB"),
    "listing was a while ago": (
        [(1, [Preparing(time=1, what="listing", done=9, of=0)]), (2, connected(0))],
        "connecting: 1 of 8 hosts",
    ),
    "syncing": (
        [(1, ALL), (2, [sending(0, 20)]), (5, [sending(12.3, 20)])],
        "syncing: 12.3 of 20.0 MB, 4.1 MB/s, 0 of 8 hosts",
    ),
    "the rate of the last seconds": (
        [(2, [*ALL, sending(0, 20)]), (10, [sending(10, 20)]), (16, [sending(10, 20)]), (20, [sending(12, 20)])],
        "syncing: 12.0 of 20.0 MB, 200.0 kB/s, 0 of 8 hosts",
    ),
    "the slowest by name": (
        [(1, ALL), (2, [sending(0, 20)]), (5, [sending(12.3, 20), *synced(0, 1, 2, 4, 5)])],
        "syncing: 12.3 of 20.0 MB, 4.1 MB/s, 5 of 8 hosts, waiting for tpu-3, tpu-6, tpu-7",
    ),
    "all has left, and hosts hand it on": (
        [(1, ALL), (2, [sending(20, 20), *synced(0, 1, 2, 3, 4, 5, 6)])],
        "syncing: 20.0 MB sent, 7 of 8 hosts, waiting for tpu-7",
    ),
    "a host that is lost": (
        [(2, [*ALL, sending(20, 20), *synced(0, 1, 2, 3, 4, 5), Lost(time=1, node=7, reason="")])],
        "syncing: 20.0 MB sent, 6 of 8 hosts, waiting for tpu-6",
    ),
    "all are synced": ([(2, [*ALL, sending(20, 20), *synced(*range(8))])], ""),
    "pulling": (
        [(1, ALL), (2, [pulling(0, 0, 20), pulling(1, 1, 10)]), (5, [pulling(1, 10, 10), *pulled(1)])],
        "pulling: 10.0 of 30.0 MB, 3.3 MB/s, 1 of 8 hosts",
    ),
    "all that is known has come": (
        [(1, ALL), (2, [pulling(0, 20, 20), *pulled(1, 2, 3, 4, 5, 6, 7)])],
        "pulling: 20.0 MB, 7 of 8 hosts, waiting for tpu-0",
    ),
    "all is here": ([(2, [*ALL, pulling(0, 20, 20), *pulled(*range(8))])], ""),
    "one has not connected yet": (
        [(2, [*connected(*range(7)), sending(20, 20), *synced(*range(7))])],
        "connecting: 7 of 8 hosts, waiting for tpu-7",
    ),
    "they run": ([(2, [*ALL, Started(time=1, node=0, rank=0, pid=1)])], ""),
}


@pytest.mark.parametrize(("history", "told"), AT.values(), ids=AT)
def test_the_line(history: list[tuple[float, list[Event]]], told: str) -> None:
    progress, now = Progress(PLACEMENT, 0.0), 0.0
    for now, events in history:
        for event in events:
            progress.handle(event, now)
    assert progress.line(now) == told


class Clock:
    """One that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0  # seconds

    def __call__(self) -> float:
        return self.now


def sink_on(number: int, clock: Clock, *, progress: bool = True) -> TerminalSink:
    streams = Streams(stdout_fd=number, stderr_fd=number, environ={"TERM": "xterm", "NO_COLOR": "1"})
    return TerminalSink(PLACEMENT, Style(mode="all"), streams, About(progress=progress), clock=clock)


def test_on_a_terminal() -> None:
    terminal, clock = Terminal(), Clock()
    terminal.resize(60)
    try:
        sink = sink_on(terminal.number, clock)
        for seconds, events in (
            (1.0, connected(*range(8))),
            (1.0, [sending(0, 20)]),
            (0.0, [sending(1, 20)]),  # so soon that it waits
            (2.0, [sending(8.2, 20), Notice(time=1, text="not sent: a: a socket")]),
            (1.0, [sending(12.3, 20), *synced(*range(7))]),
            (1.0, synced(7)),
            (1.0, [Started(time=1, node=0, rank=0, pid=1)]),
            (1.0, [Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=b"step 1\n")]),
        ):
            clock.now += seconds
            for event in events:
                sink.handle(event)
        sink.close()
        assert terminal.shown().split("\r\x1b[K") == [
            "==> connecting: 1 of 8 hosts",
            "==> syncing: 0.0 of 20.0 MB, 0 B/s, 0 of 8 hosts",
            "==> syncing: 8.2 of 20.0 MB, 4.1 MB/s, 0 of 8 hosts",
            "==> not sent: a: a socket\n==> syncing: 8.2 of 20.0 MB, 4.1 MB/s, 0 of 8 hosts",
            "==> syncing: 12.3 of 20.0 MB, 4.1 MB/s, 0 of 8 hosts",
            "==> synced 1 file to 8 hosts: 8 B sent, 1.0 s\n[0] step 1\n==> 8 ranks running, 0:01",
            "",
        ]
    finally:
        terminal.close()


def test_in_a_file_there_is_a_line_now_and_then(tmp_path: Path) -> None:
    clock = Clock()
    with (tmp_path / "err").open("wb") as file:
        sink = sink_on(file.fileno(), clock)
        for event in connected(*range(8)):
            sink.handle(event)
        for second in range(25):
            clock.now += 1
            sink.handle(sending(second, 40))
        sink.close()
    assert (tmp_path / "err").read_text().splitlines() == [
        "==> syncing: 9.0 of 40.0 MB, 1.0 MB/s, 0 of 8 hosts",
        "==> syncing: 19.0 of 40.0 MB, 1.0 MB/s, 0 of 8 hosts",
    ]


def test_where_nobody_wants_it_there_is_none() -> None:
    terminal, clock = Terminal(), Clock()
    try:
        sink = sink_on(terminal.number, clock, progress=False)
        for event in connected(*range(8)):
            sink.handle(event)
        clock.now += 60
        sink.handle(sending(1, 40))
        sink.idle()
        sink.close()
        assert terminal.shown() == ""
    finally:
        terminal.close()


def large(home: Home, monkeypatch: pytest.MonkeyPatch) -> tuple[WorkspaceLuggage, contextlib.ExitStack, list[Event]]:
    """A workspace of 610 kB in a world where that is very much."""
    monkeypatch.setattr("mesh.app.luggage.LARGE_BYTES", 500_000)
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    (home.project / "data/train").mkdir(parents=True)
    (home.project / "out [1]").mkdir()
    for number in range(50):
        (home.project / f"data/train/{number}").write_bytes(bytes([number]) * 10_000)
    (home.project / "out [1]/model").write_bytes(b"m" * 80_000)
    for name in "abcd":
        (home.project / name).write_bytes(name.encode() * 7_500)
    told: list[Event] = []
    files = contextlib.ExitStack()
    spec = spec_of(run="r", project="p", workspace=home.project, command=())
    return WorkspaceLuggage(spec, files, told.append), files, told


def test_git_is_asked_for_ranks_only(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def ask(workspace: Path) -> contextlib.AbstractContextManager[Callable[[], GitState]]:
        asked.append(workspace)
        return contextlib.nullcontext(lambda: GitState(variables={"MESH_GIT_DIRTY": "0"}))

    monkeypatch.setattr("mesh.app.luggage.asked_git", ask)
    monkeypatch.setenv("HOME", str(home.project.parent))
    for command, known in (((), {}), (("true",), {"MESH_GIT_DIRTY": "0"})):
        spec = spec_of(run="r", project="p", workspace=home.project, command=command)
        with contextlib.ExitStack() as files:
            assert WorkspaceLuggage(spec, files, lambda event: None).env == known
    assert asked == [home.project]


def test_before_very_much_is_sent_the_biggest_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    luggage, files, told = large(home, monkeypatch)
    with files:
        wants = [{"hash": hash_of(bytes([number]) * 10_000), "size": 10_000} for number in range(50)]
        wants += [{"hash": hash_of(name.encode() * 7_500), "size": 7_500} for name in "abcd"]
        wants += [{"hash": hash_of(b"m" * 80_000), "size": 80_000}]
        luggage.pack(wants, compress=False)  # before anybody asks: perhaps nobody needs it
        assert not [event for event in told if isinstance(event, Notice)]
        luggage.asked(wants)
        luggage.asked(wants[:-1])
    (notice,) = [event.text for event in told if isinstance(event, Notice)]
    assert notice.splitlines() == [
        "sending 610.0 kB; what the hosts can do without goes into mesh.yaml, as",
        "    ignore:",
        "      - /data/train/          # 500.0 kB",
        '      - "/out \\\\[1]/model"    # 80.0 kB',
        "      - /a                    # 7.5 kB",
        "      - /b                    # 7.5 kB",
        "      - /c                    # 7.5 kB",
    ]
    (home.project / "mesh.yaml").write_text("\n".join(line.removeprefix("    ") for line in notice.splitlines()[1:]))
    assert {item["path"] for item in json.loads(home.mesh("push", "--list", "--json").out)} == {"d", "mesh.yaml"}


def test_what_is_not_so_much_is_not_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    luggage, files, told = large(home, monkeypatch)
    with files:
        luggage.asked([{"hash": hash_of(b"m" * 80_000), "size": 80_000}])
    assert not [event for event in told if isinstance(event, Notice)]


def test_silence_is_told_each_minute_where_there_is_no_terminal(tmp_path: Path) -> None:
    clock = Clock()
    with (tmp_path / "err").open("wb") as file:
        sink = sink_on(file.fileno(), clock)
        for event in [*connected(*range(8)), Started(time=1, node=0, rank=0, pid=1)]:
            sink.handle(event)
        for _ in range(13):
            clock.now += 10
            sink.idle()
        sink.close()
    assert (tmp_path / "err").read_text().splitlines() == [
        "==> no output for 60 s: 8 ranks running",
        "==> no output for 120 s: 8 ranks running",
    ]
