"""Jobs whose machines are made: whole lives on a stand-in for the TPU API, with real sshd hosts behind its addresses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.lab import eventually
from tests.tpu_steward import steward
from tests.tpuemulator.client import ZONES, Emulator, double, emulator

pytestmark = pytest.mark.root
WITHIN_S = 180.0
PLACE = "echo $MESH_ATTEMPT $RANK of $WORLD_SIZE slice $SLICE_ID worker $WORKER_ID"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("tpu"), "--lab", "6") as found:
        yield found


@pytest.fixture
def tpus(running: Emulator) -> Iterator[Emulator]:
    """The emulator without faults; at the end of a test nothing is there, and nothing was made twice."""
    running.calm()
    yield running
    running.calm()
    assert eventually(lambda: not running.nodes and not running.requests), running.state
    assert not double(running.effects("create-node", "create-request"))


@pytest.fixture
def desk(home: Home, tpus: Emulator) -> Iterator[Desk]:
    """A user with gcloud's settings and key, and a steward."""
    (home.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(tpus.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ, "LOGNAME": "root", "USER": "root", "MESH_SERVE": "0"}
    with desk_of(home) as found, steward(found):
        try:
            yield found
        finally:
            found.mesh("job", "stop", "*")
            done = found.mesh("job", "wait", "*", "--timeout", "90", within=120)
            assert "running" not in done.err, done.err


def job_file(command: str, *more: str, rules: str = "", **tpu: object) -> str:
    """Return a job file."""
    keys = {"accelerator": "v4-8", "version": "tpu-ubuntu2204-base", "zones": f"[{', '.join(ZONES)}]", **tpu}
    wanted = ", ".join(f"{name}: {value}" for name, value in keys.items())
    backoff = f"restart: {{on: preemption, backoff: [0.5, 1]{rules}}}"
    return "\n".join([f"tpu: {{{wanted}}}", f"command: {{run: {command!r}, grace: 1}}", backoff, *more, ""])


def end_of(desk: Desk, job: int) -> dict[str, object]:
    """Wait for the end of a job."""
    return desk.until(job, "succeeded", "failed", "stopped", "held", within=WITHIN_S)


@pytest.mark.parametrize(
    ("mode", "slices", "pricing"),
    [("tpu-vm", 1, "ondemand"), ("queued-resources", 1, "spot"), ("queued-resources", 2, "best-effort")],
)
def test_a_whole_life(desk: Desk, tpus: Emulator, mode: str, slices: int, pricing: str) -> None:
    text = job_file(PLACE, allocation_mode=mode, slices=slices, pricing=pricing, accelerator="v4-16")
    job = desk.submit(text)
    shown = end_of(desk, job)
    assert (shown["state"], shown["exit_code"]) == ("succeeded", 0), shown
    hosts = 2 * slices
    lines = desk.mesh("job", "logs", str(job)).out.decode().splitlines()
    assert sorted(line.partition("] ")[2] for line in lines) == [
        f"1 {rank} of {hosts} slice {rank // 2} worker {rank % 2}" for rank in range(hosts)
    ]
    assert not tpus.nodes
    assert not tpus.requests
    (created,) = [one for one in tpus.journal() if one["what"] == ("create-node" if mode == "tpu-vm" else "create-request")][-1:]
    assert created["name"].startswith("train-")
    assert created["labels"]["mesh-job"] == str(job)
    assert created["zone"] == ZONES[0]
