"""mesh within another program: in threads, twice at once, with events, under pytest and in a notebook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh import api
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Event, Exited, Finished, Output, Started
from mesh.core.outcome import Cause
from tests.conftest import Home
from tests.lab import eventually


@pytest.fixture
def inside(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The user's home and project are those of this process."""
    for name, value in home.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home.project)
    return home


@pytest.fixture
def inside_pod(plain_pod: Home, inside: Home) -> Home:
    """The same, with two sshd as the cluster ``pod``."""
    return inside


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def processes_of(mark: str) -> list[str]:
    """The processes of this machine with a text in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if mark.encode() in command:
            found.append(command.decode(errors="replace"))
    return found


def process_state() -> dict[str, object]:
    """Return the state of this process that a run could change: handlers, directory, environment and the like."""
    umask = os.umask(0o077)
    os.umask(umask)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE, signal.SIGCHLD)
    return {
        "directory": os.getcwd(),
        "environ": dict(os.environ),
        "descriptors": [os.fstat(number)[:3] for number in range(3)],
        "umask": umask,
        "signals": [signal.getsignal(number) for number in numbers],
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "streams": (sys.stdout, sys.stderr, sys.stdin),
        "wakeup": _wakeup(),
    }


def _wakeup() -> int:
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number)
    return number


def stdout(result: api.RunResult) -> list[bytes]:
    return [rank.stdout for rank in result.ranks]


@pytest.mark.sshd
def test_two_runs_at_once_in_one_process(inside_pod: Home) -> None:
    """Each has its result, its output and its directory, and the process is as it was."""
    inside_pod.files(a__txt="x")
    before = process_state()
    results: dict[str, api.RunResult] = {}
    events: dict[str, list[Event]] = {"pod": [], "local:3": []}
    # Both are on at the same time: each goes on only once it has seen the other.
    command = "touch {home}/{mine}-$RANK; until [ -e {home}/{other}-0 ]; do sleep 0.05; done; "
    command += "i=0; while [ $i -lt 300 ]; do echo {mine} $RANK $i; i=$((i+1)); done; exit {code}"

    def work(cluster: str, mine: str, other: str, code: int) -> None:
        text = command.format(home=inside_pod.path, mine=mine, other=other, code=code)
        results[cluster] = api.run(["sh", "-c", text], cluster=cluster, quiet=True, on_event=events[cluster].append)

    threads = [
        in_thread(lambda: work("pod", "one", "two", 0)),
        in_thread(lambda: work("local:3", "two", "one", 5)),
    ]
    for thread in threads:
        thread.join()
    assert process_state() == before
    one, two = results["pod"], results["local:3"]
    assert (one.exit_code, two.exit_code, two.cause) == (0, 5, Cause.RANK)
    assert one.directory != two.directory
    for result, mark, count in ((one, b"one", 2), (two, b"two", 3)):
        assert len(result.ranks) == count
        for rank in result.ranks:
            lines = rank.stdout.splitlines()
            assert lines == [b"%s %d %d" % (mark, rank.rank, number) for number in range(len(lines))]
    assert all(len(rank.stdout.splitlines()) == 300 for rank in one.ranks)
    for cluster, mark in (("pod", b"one"), ("local:3", b"two")):
        data = b"".join(event.data for event in events[cluster] if isinstance(event, Output))
        assert {line.split()[0] for line in data.splitlines()} == {mark}
        assert isinstance(events[cluster][-1], Finished)


@pytest.mark.sshd
@pytest.mark.parametrize("cluster", ["local", "pod"])
def test_a_stream_ends_with_the_run_and_has_its_result(inside_pod: Home, cluster: str) -> None:
    with api.stream(["sh", "-c", "echo $RANK; exit $RANK"], cluster=cluster, sync=False) as events:
        found = list(events)
    assert sorted(event.data for event in found if isinstance(event, Output)) == [b"0\n", b"1\n"]
    assert {event.rank for event in found if isinstance(event, Exited)} == {0, 1}
    assert sum(isinstance(event, Started) for event in found) == 2
    assert (events.result.exit_code, stdout(events.result)) == (1, [b"0\n", b"1\n"])
    assert list(events) == []
    with pytest.raises(MeshError, match=r"run \S+: rank 1 on \S+: exit 1") as raised:
        events.result.raise_for_status()
    assert raised.value.exit_code == 1


def test_the_result_of_a_stream_may_be_had_without_its_events(inside: Home) -> None:
    result = api.stream(["sh", "-c", "seq 20000"], cluster="local").result
    result.raise_for_status()
    assert [len(rank.stdout.splitlines()) for rank in result.ranks] == [20000, 20000]


def test_a_stream_that_cannot_begin_is_refused_at_once(inside: Home) -> None:
    with pytest.raises(UsageError, match="no cluster"):
        api.stream(["true"], cluster="nowhere")


@pytest.mark.sshd
@pytest.mark.parametrize("cluster", ["local", "pod"])
def test_leaving_a_stream_early_ends_the_run_on_all_hosts(inside_pod: Home, cluster: str) -> None:
    mark = f"9{time.time_ns() % 10**8}"
    with api.stream(["sh", "-c", f"echo on; exec sleep {mark}"], cluster=cluster, sync=False) as events:
        next(event for event in events if isinstance(event, Output))
    assert processes_of(f"sleep\0{mark}") == []
    assert (events.result.exit_code, events.result.cause) == (128 + signal.SIGTERM, Cause.SIGNAL)
    with pytest.raises(MeshError, match="ended: signal"):
        events.result.raise_for_status()


@pytest.mark.sshd
@pytest.mark.parametrize("cluster", ["local", "pod"])
def test_a_stream_that_is_left_at_once_starts_nothing(inside_pod: Home, cluster: str) -> None:
    with api.stream(["touch", str(inside_pod.path / "started")], cluster=cluster, sync=False) as events:
        pass
    assert (events.result.exit_code, events.result.cause) == (128 + signal.SIGTERM, Cause.SIGNAL)
    assert not (inside_pod.path / "started").exists()


def test_an_error_of_mesh_reaches_the_reader_of_a_stream(inside: Home) -> None:
    with api.stream(["true"], cluster="local", options=api.Options(nproc=api.AUTO)) as events:
        for _ in range(2):
            with pytest.raises(MeshError, match="--nproc auto: no GPU"):
                next(events)
    with pytest.raises(MeshError, match="--nproc auto: no GPU"):
        _ = events.result


def test_a_loop_over_a_stream_that_is_broken_off_ends_the_run(inside: Home) -> None:
    mark = f"9{time.time_ns() % 10**8}"
    for event in api.stream(["sh", "-c", f"yes & exec sleep {mark}"], cluster="local"):
        if isinstance(event, Output):
            break
    assert eventually(lambda: not processes_of(f"sleep\0{mark}"))


@pytest.mark.sshd
@pytest.mark.parametrize("cluster", ["local", "pod"])
def test_an_error_of_on_event_ends_the_run_and_reaches_the_caller(inside_pod: Home, cluster: str) -> None:
    mark = f"9{time.time_ns() % 10**8}"

    def on_event(event: Event) -> None:
        if isinstance(event, Output):
            raise ZeroDivisionError(event.data)

    with pytest.raises(ZeroDivisionError, match="on"):
        api.exec(["sh", "-c", f"echo on; exec sleep {mark}"], cluster=cluster, quiet=True, on_event=on_event)
    assert processes_of(f"sleep\0{mark}") == []
    (record, *_) = api.list_records()
    assert (record.state.value, record.cause, record.exit_code) == ("ended", "signal", 143)


def test_output_is_captured_where_the_program_captures_it(inside: Home, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[api.RunResult] = []
    for start in (lambda work: work(), lambda work: in_thread(work).join()):
        start(lambda: found.append(api.run(["sh", "-c", "echo rank $RANK; echo err >&2"], cluster="local")))
        captured = capsys.readouterr()
        assert sorted(captured.out.splitlines()) == ["[0] rank 0", "[1] rank 1"]
        assert "[0] err" in captured.err
    assert [result.exit_code for result in found] == [0, 0]


INTERRUPTED = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where the tests run in the background
from mesh import api
from mesh.core.events import Output

{program}
"""
IN_A_THREAD = """
found, seen = [], threading.Event()
def on_event(event):
    if isinstance(event, Output):
        seen.set()
def work():
    found.append(api.run(["sh", "-c", "echo on; sleep 1; echo $RANK"], cluster="local", quiet=True, on_event=on_event))
thread = threading.Thread(target=work)
thread.start()
seen.wait()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
thread.join()
print(found[0].exit_code, [rank.stdout for rank in found[0].ranks])
"""
IN_A_STREAM = """
events = api.stream(["sh", "-c", "echo on; exec sleep MARK"], cluster="local")
timers = []
try:
    for event in events:
        if isinstance(event, Output) and not timers:
            timers = [threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))]
            timers[0].start()
except KeyboardInterrupt:
    print("interrupted")
print(events.result.exit_code, events.result.cause.value)
"""
WITHOUT_MAIN_THREAD = """
started = threading.Event()
def on_event(event):
    if isinstance(event, Output):
        started.set()
def work():
    command = ["sh", "-c", "echo on; sleep 3; echo $RANK"]
    result = api.run(command, cluster="local", quiet=True, on_event=on_event)
    print(result.exit_code, [rank.stdout for rank in result.ranks], flush=True)
threading.Thread(target=work).start()
started.wait()
"""


def ended(home: Home, program: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", INTERRUPTED.format(program=program)]
    return subprocess.run(argv, cwd=home.project, env=home.environ, capture_output=True, text=True, check=False)


def test_an_interrupt_of_the_main_thread_leaves_a_run_in_another_one_alone(home: Home) -> None:
    done = ended(home, IN_A_THREAD)
    assert done.stdout == "interrupted\n0 [b'on\\n0\\n', b'on\\n1\\n']\n", done.stderr


def test_an_interrupt_ends_a_stream_that_the_main_thread_reads(home: Home) -> None:
    mark = f"9{time.time_ns() % 10**8}"
    done = ended(home, IN_A_STREAM.replace("MARK", mark))
    assert done.stdout == "interrupted\n130 signal\n", done.stderr
    assert processes_of(f"sleep\0{mark}") == []


def test_a_run_goes_on_in_its_thread_when_the_main_thread_has_ended(home: Home) -> None:
    done = ended(home, WITHOUT_MAIN_THREAD)
    assert done.stdout == "0 [b'on\\n0\\n', b'on\\n1\\n']\n", done.stderr
