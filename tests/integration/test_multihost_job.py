"""`mesh multihost-job` on a stand-in for the TPU API, with real sshd hosts, and logs in a fake bucket."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.conftest import Home
from tests.desk import Desk
from tests.gcs import FakeGcs, missing, own_address
from tests.tpuemulator.client import PROJECT, ZONES, Emulator

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]
LIFE_S = 300.0


@pytest.fixture
def desk(tpu_desk: Desk) -> Desk:
    return tpu_desk


@pytest.fixture
def bucket(home: Home) -> Iterator[FakeGcs]:
    """A bucket called logs, which the user and the steward reach."""
    with FakeGcs(own_address()) as gcs:
        gcs.bucket("logs")
        home.environ["STORAGE_EMULATOR_HOST"] = gcs.url
        yield gcs


def log_of(gcs: FakeGcs, run: str, slice_: int) -> list[str]:
    key = f"dir/{run}/main_command_log_slice_{slice_}_worker_0"
    return sorted(gcs.read("logs", quote(key, safe="")).splitlines())  # of two streams


def test_the_whole_way(bucket: FakeGcs, desk: Desk, tpus: Emulator) -> None:
    (desk.home.project / "data.txt").write_text("data\n")
    words = ["multihost-job", "--BUCKET_NAME=gs://logs", "--BUCKET_DIR=dir", "--attach"]
    command = "--COMMAND=cat data.txt; echo $SLICE_ID $WORKER_ID $ZONE $PROJECT $(ulimit -n) >&2"
    done = desk.mesh(*words, command, "--RUN_NAME=run1", "--CQR_EXTRA_ARGS=--reserved --labels=team=a", within=LIFE_S)
    assert done.status == 0, done.err
    out = done.out.decode()
    assert "logs        gs://logs/dir/run1/" in out
    files = min(100_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # the hosts of tests have this machine's limit
    for number in range(2):
        assert log_of(bucket, "run1", number) == [f"{number} 0 {ZONES[0]} {PROJECT} {files}", "data"]
    assert (tpus.nodes, tpus.requests) == ({}, {})
    (created,) = [one for one in tpus.journal() if one["what"] == "create-request" and one["name"].startswith("run1-")]
    assert created["labels"]["team"] == "a"
    # The status is that of the command, its logs are there, and the machines are gone as well.
    failed = desk.mesh(*words, "--COMMAND=echo no luck; exit 3", "--RUN_NAME=run2", "--NUM_SLICES=1", within=LIFE_S)
    assert failed.status == 3, failed.err
    assert log_of(bucket, "run2", 0) == ["no luck"]
    assert (tpus.nodes, tpus.requests) == ({}, {})


def test_nothing_is_made_without_a_bucket(bucket: FakeGcs, desk: Desk, tpus: Emulator) -> None:
    before = len(tpus.journal())
    for name, told in {"nowhere": "there is no bucket gs://nowhere", "B": "expected gs://BUCKET/DIRECTORY"}.items():
        done = desk.mesh("multihost-job", "--COMMAND=true", f"--BUCKET_NAME={name}")
        assert (done.status, told in done.err) == (2, True), done.err
    assert desk.mesh("multihost-job", "--COMMAND=true").status == 2
    assert len(tpus.journal()) == before
