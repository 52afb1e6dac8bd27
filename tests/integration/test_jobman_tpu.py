"""JOBMAN's quick start line by line: a TPU by the stand-in for its API, gcsfuse, keys, docker, and a command.

Real parts: the hosts behind the addresses have sshd and a docker of their own, which pulls the image from a registry.
Stand-ins: the TPU API, the buckets with gcsfuse, and `pip` in the image, which waits until the bucket has a file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import engines
from tests.conftest import REPOSITORY, Done, Home
from tests.desk import Desk, desk_of
from tests.gcs import FakeGcs, missing
from tests.lab import eventually
from tests.machine_image import boot_script
from tests.tpu_steward import steward
from tests.tpuemulator.client import Emulator, double, emulator

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(missing()), reason=missing() or "nothing")]
WITHIN_S = 300.0
BUCKET, IMAGE = "bucket_us_east1_d", "anna/box:latest"
FILE = (REPOSITORY / "tests/data/jobman/s/quick-start.yaml").read_text()
PIP = """#!/bin/sh
echo "Name: $2"
echo "Location: $PWD, $(cat bucket/a.txt)"
[ -e bucket/go ] || exec sleep 600
"""
FORMAT = "{{.Config.Image}} {{.Config.WorkingDir}} {{.HostConfig.Privileged}} {{.HostConfig.NetworkMode}}"


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if reason := engines.why_not():
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("tpu")
    with emulator(place, "--lab", "2", "--image", str(place / "image")) as found:
        yield found


@pytest.fixture
def gcs(tpus: Emulator, tmp_path: Path) -> Iterator[FakeGcs]:
    """Have the bucket and the image, which machines mount and pull."""
    here = f"{'.'.join(tpus.addresses[0].split('.')[:2])}.0.1"
    with FakeGcs(here) as server, engines.registry(tmp_path, 5000, here) as registry:
        server.bucket(BUCKET, a__txt="hello")
        engines.push(registry, IMAGE, engines.image_tar(("bin/pip", PIP.encode())))
        text = boot_script(gcsfuse=server.program(), registry=registry, directories="/home/anna/.ssh")
        (tpus.directory / "image").write_text(text)
        yield server


@pytest.fixture
def desk(home: Home, tpus: Emulator, gcs: FakeGcs) -> Iterator[Desk]:
    (home.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(tpus.identity, home.path / ".ssh/google_compute_engine")
    home.environ |= {**tpus.environ, "LOGNAME": "root", "USER": "root", "MESH_SERVE": "0"}
    home.own_known_hosts()  # of `mesh ssh`
    for name in ("id_rsa", "id_rsa.pub"):
        (home.path / name).write_text(f"{name} of anna\n")
    # The path of the keys is one of this machine. The slice is one of two hosts, so that worker 0 is not all of them.
    text = FILE.replace("/u/anna/.ssh", str(home.path)).replace("v6e-1\n", "v4-16\n")
    (home.project / "configs").mkdir()
    (home.project / "configs/quick-start.yaml").write_text(text)
    with desk_of(home) as found, steward(found):
        try:
            yield found
        finally:
            found.end_jobs(WITHIN_S)
    assert eventually(lambda: not tpus.nodes and not tpus.requests, WITHIN_S), tpus.state
    assert not double(tpus.effects("create-node"))


def on_worker(desk: Desk, worker: int, *words: str) -> Done:
    return desk.mesh("ssh", f"job:1:{worker}", "--", *words, within=WITHIN_S)


def test_request_set_up_cancel_resume_and_delete(desk: Desk, tpus: Emulator, gcs: FakeGcs) -> None:
    mesh, place = desk.mesh, desk.home.project / "jobs/000001"
    made = mesh("jobman", "create", "--config=configs/quick-start.yaml")
    assert made.status == 0, made.err
    assert made.out.decode().splitlines() == ["job 000001 test-v6: jobs/000001", "logs: jobs/000001/logs"]
    assert (place / "config.yaml").exists()
    desk.until(1, "running", "held", within=WITHIN_S)
    shown = desk.show(1)
    assert shown["state"] == "running", shown
    check_request(tpus)
    check_directory(place, tpus)
    listed = mesh("jobman", "list").out.decode().splitlines()
    assert listed[1].split()[3:] == ["v4-16", "us-east1-d", tpus.addresses[0], "RUNNING"]
    assert listed[2] == "us-east1-d v4: 8 chips held, 0 asked for"
    check_hosts(desk, str(shown["runs"][-1]))  # type: ignore[index]
    check_reports(desk)

    assert mesh("jobman", "cancel", "000001").status == 0
    desk.until(1, "stopped", within=WITHIN_S)
    assert not tpus.nodes
    assert mesh("jobman", "list").out.decode().splitlines()[1].split()[-1] == "DEAD"
    assert (place / "logs/main_command_worker_0.log").read_text() == "Name: jax\nLocation: /home/anna, hello\n"

    gcs.put(BUCKET, "go", "now")
    assert b"QUEUEING" in mesh("jobman", "resume", "000001").out
    assert desk.until(1, "succeeded", "failed", "held", within=WITHIN_S)["state"] == "succeeded", desk.show(1)
    lines = (place / "logs/main_command_worker_0.log").read_text().splitlines()
    assert lines == ["Name: jax", "Location: /home/anna, hello", "Name: flax", "Location: /home/anna, hello"]
    assert not (place / "logs/main_command_worker_1.log").exists()
    assert mesh("jobman", "status", "000001").out.decode().splitlines()[-4:] == lines
    assert len(tpus.effects("create-request")) == 2
    assert not tpus.nodes

    assert mesh("jobman", "delete", "000001").status == 0
    assert not place.is_symlink()


def check_request(tpus: Emulator) -> None:
    """The request has what `tpu:` says."""
    (request,) = [one for one in tpus.journal() if one["what"] == "create-request"]
    assert request["name"].startswith("anna-v4-16-")
    assert request["zone"] == "us-east1-d"
    (spec,) = request["fields"]["tpu"]["node_spec"]
    node = spec["node"]
    assert (node["accelerator_type"], node["runtime_version"]) == ("v4-16", "v2-alpha-tpuv6e")
    assert node["tags"] == ["jobman", "trial"]
    assert node["metadata"] == {"owner": "anna", "purpose": "a trial"}
    assert "spot" in request["fields"]


def check_directory(place: Path, tpus: Emulator) -> None:
    """The directory of the job has addresses, a start time, and logs by the document's names."""
    assert [one["external_ip"] for one in json.loads((place / "ips.json").read_text())] == tpus.addresses[:2]
    assert (place / "start_time.txt").exists()
    modules = ("gcsfuse", "ssh", "docker")
    assert all((place / f"logs/{module}_worker_{worker}.log").exists() for module in modules for worker in (0, 1))
    assert f"Status: Downloaded newer image for {IMAGE}" in (place / "logs/docker_worker_0.log").read_text()
    log = [line.split(" ", 2)[2] for line in (place / "logs/tpu.log").read_text().splitlines()]
    assert log[0].startswith("generation 1: request anna-v4-16-")
    assert any(line.startswith("generation 1: ready (anna-v4-16-") for line in log), log


def check_hosts(desk: Desk, run: str) -> None:
    """Every host has the keys, the bucket and the image; worker 0 alone has a container, with all its words."""
    for worker in (0, 1):
        seen = on_worker(desk, worker, "cat", ".ssh/id_rsa", "/home/anna/bucket/a.txt")
        assert seen.out.decode().splitlines()[-2:] == ["id_rsa of anna", "hello"], seen.err
    container = f"mesh-{run}-0"
    # It sleeps after its output.
    assert eventually(lambda: b"sleep 600" in on_worker(desk, 0, "docker", "top", container).out, WITHIN_S)
    about = on_worker(desk, 0, f"docker inspect --format '{FORMAT} {{{{.HostConfig.Binds}}}}' {container}")
    words = about.out.decode().split(" ", 4)
    assert words[:4] == [IMAGE, "/home/anna", "true", "host"], about.err
    for bind in ("/home/anna:/home/anna", "/dev:/dev", "/run:/run", "/home/anna/.ssh:/root/.ssh"):
        assert bind in words[4]
    other = on_worker(desk, 1, "docker", "ps", "-q")
    assert (other.status, other.out) == (0, b""), other.err


def check_reports(desk: Desk) -> None:
    """Quotas and costs of the machines that are there, and nothing more is requested."""
    assert desk.mesh("jobman", "tpu", "000001").out.startswith(b"job 000001 test-v6: RUNNING")
    (quota,) = desk.mesh("jobman", "quota").out.decode().splitlines()[1:]
    assert quota.split()[:3] == ["v4/us-east1-d/spot", "8", "0"]
    assert desk.mesh("jobman", "billing").out.decode().splitlines()[0].split() == ["job", "chip-hours", "cost"]
