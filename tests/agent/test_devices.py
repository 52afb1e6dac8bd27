"""Devices before and after a run. Ordinary files stand for them; a lease on a file stands for one that is taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import Gone, HostNotice, PrepareFailed, Ready
from tests.agent.conftest import Open, Run
from tests.lab import eventually

HOLD = "import sys, time; file = open(sys.argv[1]); print(flush=True); time.sleep(1000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + HOLD
# Whoever else opens the file is told that it is in use, until the kernel breaks the lease after 45 s.
TAKE = (
    "import fcntl, signal, sys, time; signal.signal(signal.SIGIO, signal.SIG_IGN); file = open(sys.argv[1], 'r+'); "
    "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); print(flush=True); time.sleep(float(sys.argv[2]))"
)


class Holders:
    """Processes that hold a file, and that are no children of an agent."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, code: str, *words: str, **env: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", code, *words]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={**os.environ, **env})
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process


@pytest.fixture
def holders() -> Iterator[Holders]:
    holders = Holders()
    yield holders
    for process in holders.started:
        process.kill()
        process.communicate()


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "accel0"
    path.touch()
    return path


@pytest.fixture
def run(opener: Open, any_python: str, device: Path) -> Run:
    return opener(any_python, devices=(f"{device.parent}/accel*",), grace=0.5, device_patience=1.0)


def test_a_foreign_holder_is_named_and_untouched(run: Run, holders: Holders, device: Path) -> None:
    holder = holders.start(HOLD, str(device))
    failed = run.prepare(claim=True)
    assert isinstance(failed, PrepareFailed)
    assert failed.step == "devices"
    assert f"{device} is held by pid {holder.pid}" in failed.message
    assert HOLD[:20] in failed.message
    assert f"user {os.geteuid()}, for " in failed.message
    assert "--evict" in failed.hint
    assert holder.poll() is None
    assert run.finish().left == ()


def test_what_an_earlier_run_has_left_is_ended(run: Run, holders: Holders, device: Path) -> None:
    holder = holders.start(STUBBORN, str(device), MESH_RUN_ID="20200101-000000-abcdef")
    assert isinstance(run.prepare(claim=True), Ready)
    assert holder.wait(60) == -9
    (told,) = [event.text for event in run.events if isinstance(event, HostNotice)]
    assert f"ended pid {holder.pid}" in told
    run.finish()


def test_evict_ends_our_own_processes(run: Run, holders: Holders, device: Path) -> None:
    holder = holders.start(HOLD, str(device))
    assert isinstance(run.prepare(claim=True, evict=True), Ready)
    assert holder.wait(60) == -15
    run.finish()


def test_a_service_of_a_setup_is_foreign(run: Run, holders: Holders, device: Path) -> None:
    holder = holders.start(HOLD, str(device), MESH_RUN_ID="20200101-000000-abcdef", MESH_SETUP="1")
    assert isinstance(run.prepare(claim=True), PrepareFailed)
    assert holder.poll() is None
    run.finish()


def test_a_run_that_lives_keeps_its_devices(
    run: Run, opener: Open, any_python: str, device: Path, holders: Holders
) -> None:
    other = opener(any_python, run="20200101-000000-abcdef")
    other.prepare()
    holder = holders.start(HOLD, str(device), MESH_RUN_ID="20200101-000000-abcdef")
    failed = run.prepare(claim=True, evict=True)
    assert isinstance(failed, PrepareFailed)
    assert "`mesh stop 20200101-000000-abcdef`" in failed.hint
    assert holder.poll() is None
    other.finish()
    run.finish()


def test_a_device_that_is_free_soon_is_waited_for(
    opener: Open, any_python: str, holders: Holders, device: Path
) -> None:
    """It is held by nobody whom we see as a holder: its process is in another place, or its end takes time."""
    run = opener(any_python, devices=(str(device),), device_patience=60.0)
    run.prepare(claim=True)
    run.start("true")
    holder = holders.start(TAKE, str(device), "1000")
    run.session.finish(signal.SIGTERM, 10.0)
    run.until(HostNotice, where=lambda event: isinstance(event, HostNotice) and f"waiting for {device}" in event.text)
    holder.kill()
    gone = run.until(Gone)
    assert isinstance(gone, Gone)
    assert gone.left == ()


def test_a_device_that_stays_busy_is_named(run: Run, holders: Holders, device: Path) -> None:
    run.prepare(claim=True)
    run.start("true")
    holder = holders.start(TAKE, str(device), "1000")
    gone = run.finish()
    assert isinstance(gone, Gone)
    (line,) = gone.left
    assert f"{device} cannot be opened: held by pid {holder.pid}" in line


def test_the_lock_file_of_libtpu(run: Run, device: Path) -> None:
    """It is removed while nobody holds a device, and only if there are devices."""
    lockfile = Path("/tmp/libtpu_lockfile")
    assert not lockfile.exists()
    lockfile.touch()
    try:
        run.prepare(claim=True)
        assert eventually(lambda: not lockfile.exists())
    finally:
        lockfile.unlink(missing_ok=True)
    run.finish()
