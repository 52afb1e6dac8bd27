"""A user whose jobs have machines of the stand-in for the TPU API: fixtures of tests, and looks at machines."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.lab import eventually
from tests.tpu_steward import steward
from tests.tpuemulator.client import ZONES, Emulator, double

WITHIN_S = 300.0
IMAGE = "image"  # in the emulator's directory: a script that machines run as they boot, where a test has written one
NAP = f"sleep 600.{os.getpid()}"  # a command that no other process of this machine has


@pytest.fixture
def tpu_emulator(session_emulator: Emulator) -> Emulator:
    """The emulator of a test. A module may have one of its own in place of it."""
    return session_emulator


@pytest.fixture
def tpus(tpu_emulator: Emulator) -> Iterator[Emulator]:
    """The emulator without faults; at the end of a test nothing is there, and nothing was made twice."""
    tpu_emulator.calm()
    yield tpu_emulator
    tpu_emulator.calm()
    (tpu_emulator.directory / IMAGE).unlink(missing_ok=True)
    assert eventually(lambda: not tpu_emulator.nodes and not tpu_emulator.requests, WITHIN_S), tpu_emulator.state
    assert not double(tpu_emulator.effects("create-node"))
    assert not double(tpu_emulator.effects("create-request"))


@pytest.fixture
def tpu_user(home: Home, tpus: Emulator) -> Home:
    """A user with gcloud's settings and key."""
    make_user(home, tpus)
    return home


def make_user(home: Home, tpus: Emulator) -> None:
    """Give a user gcloud's settings and key."""
    (home.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(tpus.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ, "LOGNAME": "root", "USER": "root"}


@contextlib.contextmanager
def served(user: Home) -> Iterator[Desk]:
    """Give a user a steward whose maker looks often."""
    user.environ["MESH_SERVE"] = "0"
    with desk_of(user) as found, steward(found):
        yield found


@contextlib.contextmanager
def jobs_end(desk: Desk) -> Iterator[Desk]:
    """End all jobs afterwards."""
    try:
        yield desk
    finally:
        assert "running" not in desk.end_jobs(WITHIN_S)


@pytest.fixture
def tpu_desk(tpu_user: Home) -> Iterator[Desk]:
    """A user with a steward, and no job before."""
    with served(tpu_user) as found, jobs_end(found):
        yield found


def job_file(command: str, *more: str, rules: str = "", **tpu: object) -> str:
    """Return a job file."""
    keys = {"accelerator": "v4-8", "version": "tpu-ubuntu2204-base", "zones": f"[{', '.join(ZONES)}]", **tpu}
    wanted = ", ".join(f"{name}: {value}" for name, value in keys.items())
    backoff = f"restart: {{on: preemption, backoff: [0.5, 1]{rules}}}"
    return "\n".join([f"tpu: {{{wanted}}}", f"command: {{run: {command!r}, grace: 1}}", backoff, *more, ""])


def end_of(desk: Desk, job: int) -> dict[str, object]:
    """Wait for the end of a job."""
    return desk.until(job, "succeeded", "failed", "stopped", "held", within=WITHIN_S)


def name_of(tpus: Emulator, generation: int = 1) -> str:
    """Wait for a generation to be asked for; return ZONE/NAME of its queued resource."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [name for name in tpus.requests if name.endswith(f"-g{generation}")]
        return bool(found)

    assert eventually(is_there, WITHIN_S), tpus.state
    return found[0]


def place_of(tpus: Emulator, state: str, generation: int = 1) -> dict[str, str]:
    """Wait until the node of a generation is in a state; return its zone and name."""
    found: list[str] = []

    def is_there() -> bool:
        wanted = f"-g{generation}"
        found[:] = [name for name, one in tpus.nodes.items() if name.endswith(wanted) and one["state"] == state]
        return bool(found)

    assert eventually(is_there, WITHIN_S), tpus.state
    zone, _, name = found[0].partition("/")
    return {"zone": zone, "name": name}


def is_replaced_after(tpus: Emulator) -> bool:
    """Return True if each generation of the newest job was asked for after the one before was gone."""
    newest = tpus.effects("create-request")[-1].rpartition("-g")[0]
    entries = [one for one in tpus.journal() if one["name"].startswith(f"{newest}-g")]
    alive: set[str] = set()
    for one in entries:
        if one["what"] == "create-request":
            if alive:
                return False
            alive.add(one["name"])
        elif one["what"] == "gone-request":
            alive.discard(one["name"])
    return not alive


def wait_for_naps(count: int = 1) -> None:
    """Wait until so many ranks sleep, so that what they do before has been done."""
    assert eventually(lambda: _naps() >= count, WITHIN_S)


def _naps() -> int:
    words, found = NAP.encode().replace(b" ", b"\0") + b"\0", 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            found += Path("/proc", name, "cmdline").read_bytes() == words
    return found
