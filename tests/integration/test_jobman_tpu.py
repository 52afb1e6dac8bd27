"""JOBMAN's quick start with its TPU, on a stand-in for the TPU API with sshd hosts behind its addresses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.desk import Desk, desk_of
from tests.gcs import FakeGcs, missing
from tests.lab import eventually
from tests.tpu_steward import steward
from tests.tpuemulator.client import Emulator, double, emulator

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")]
WITHIN_S = 180.0
FILE = """\
job:
  name: test-v6

tpu:
  allocation_mode: "queued-resources"    # tpu-vm | queued-resources
  accelerator: v4-16
  name: yufeng-${tpu.accelerator}
  zone: us-east1-d
  version: tpu-ubuntu2204-base
  pricing: spot
  startup_script: startup.sh
  tags: ["jobman", "experiment"]
  metadata:
    owner: "yufeng"
    purpose: "testing jobman"

setup:
  modules:
    - ssh
    - gcsfuse
    - command

gcsfuse:
  bucket_name: llm_pruning_us_east1_d
  mount_path: /home/zephyr/gcs-bucket

command:
  run: |
    echo "$(hostname): $(cat /home/zephyr/gcs-bucket/a.txt) ${tpu.zone}"
    [ -e /home/zephyr/gcs-bucket/go ] || sleep 600
  workers: [0]
"""


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("tpu"), "--lab", "2") as found:
        yield found


@pytest.fixture
def gcs(tpus: Emulator) -> Iterator[FakeGcs]:
    network = ".".join(tpus.addresses[0].split(".")[:2])
    with FakeGcs(f"{network}.0.1") as server:
        server.bucket("llm_pruning_us_east1_d", a__txt="hello")
        yield server


@pytest.fixture
def desk(home: Home, tpus: Emulator, gcs: FakeGcs) -> Iterator[Desk]:
    (home.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(tpus.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ, "LOGNAME": "root", "USER": "root", "MESH_SERVE": "0"}
    program = f"cat >/usr/local/bin/gcsfuse <<'END'\n{gcs.program()}\nEND\nchmod 755 /usr/local/bin/gcsfuse\n"
    home.files(**{"quick-start__yaml": FILE, "startup__sh": f"#!/bin/sh\n{program}"})
    with desk_of(home) as found, steward(found):
        try:
            yield found
        finally:
            found.mesh("job", "stop", "*")
            found.mesh("job", "wait", "*", "--timeout", "90", within=120)
    assert eventually(lambda: not tpus.nodes and not tpus.requests), tpus.state
    assert not double(tpus.effects("create-node"))


def test_request_set_up_cancel_resume_and_delete(desk: Desk, tpus: Emulator, gcs: FakeGcs) -> None:
    mesh, project = desk.mesh, desk.home.project
    made = mesh("jobman", "create", "--config=quick-start.yaml")
    assert made.status == 0, made.err
    assert "tpu.startup_script, tpu.tags, tpu.metadata: used here" in made.err
    place = project / "jobs/000001"
    assert (place / "job.yaml").exists()
    desk.until(1, "running", "held", within=WITHIN_S)
    assert desk.show(1)["state"] == "running", desk.show(1)
    (request,) = [one for one in tpus.journal() if one["what"] == "create-request"]
    assert request["name"].startswith("yufeng-v4-16-")
    assert request["zone"] == "us-east1-d"
    listed = mesh("jobman", "list").out.decode().splitlines()
    assert listed[1].split()[3:] == ["v4-16", "us-east1-d", tpus.addresses[0], "RUNNING"]
    assert listed[2] == "us-east1-d v4: 8 chips held, 0 asked for"
    assert [one["external_ip"] for one in json.loads((place / "ips.json").read_text())] == tpus.addresses[:2]
    assert (place / "logs/gcsfuse_worker_0.log").exists()
    assert (place / "logs/gcsfuse_worker_1.log").exists()
    assert (place / "logs/ssh_worker_1.log").exists()
    assert mesh("jobman", "cancel", "000001").status == 0
    desk.until(1, "stopped", within=WITHIN_S)
    assert not tpus.nodes
    assert mesh("jobman", "list").out.decode().splitlines()[1].split()[-1] == "DEAD"
    gcs.put("llm_pruning_us_east1_d", "go", "now")
    assert b"QUEUEING" in mesh("jobman", "resume", "000001").out
    assert desk.until(1, "succeeded", "failed", "held", within=WITHIN_S)["state"] == "succeeded", desk.show(1)
    log = (place / "logs/main_command_worker_0.log").read_text()
    assert log.endswith(": hello us-east1-d\n")
    assert not (place / "logs/main_command_worker_1.log").exists()
    assert len(tpus.effects("create-request")) == 2
    assert not tpus.nodes
    assert mesh("jobman", "delete", "000001").status == 0
    assert not place.is_symlink()
