"""The flags of MaxText's multihost_job.py, as a job of mesh."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mesh.app.bucket import place_of
from mesh.compat.maxtextjob import PREAMBLE, MultihostJob, job_of, tpu_of
from mesh.core.errors import UsageError
from mesh.core.job import LogNames
from mesh.core.tpu import Pricing, Provision, TpuSpec

LEAST = MultihostJob(command="bash setup.sh", bucket_name="gs://bucket", project="lab", zone="us-central2-b")


def with_words(words: str, **flags: object) -> MultihostJob:
    fields = {"command": "x", "bucket_name": "b", "project": "lab", "zone": "us-central2-b", "extra_args": words}
    return MultihostJob(**{**fields, **flags})  # type: ignore[arg-type]


def test_the_defaults_are_those_of_maxtext() -> None:
    assert tpu_of(LEAST, "run1") == TpuSpec(
        accelerator="v4-8",
        runtime="tpu-ubuntu2204-base",
        zones=("us-central2-b",),
        project="lab",
        provision=Provision.QUEUED_RESOURCES,
        slices=2,
        prefix="run1",
    )


def test_words_for_gcloud_are_read() -> None:
    found = tpu_of(with_words("--reserved --service-account=me@lab --network n --labels 'a=b'", num_slices=4), "r")
    assert (found.pricing, found.service_account, found.network, found.slices) == (Pricing.RESERVED, "me@lab", "n", 4)
    assert found.labels == {"a": "b"}
    assert tpu_of(with_words("", autocheckpoint=True), "r").autocheckpoint


def test_all_problems_with_words_are_told() -> None:
    with pytest.raises(UsageError) as caught:
        tpu_of(with_words("--best-effrot --node-count=3 --zone us-east1-d"), "r")
    assert str(caught.value).splitlines() == [
        "--CQR_EXTRA_ARGS: --best-effrot: mesh reads no such word; did you mean '--best-effort'?",
        "--CQR_EXTRA_ARGS: slices: 3 contradicts --NUM_SLICES, which is 2",
        "--CQR_EXTRA_ARGS: zone: us-east1-d contradicts --ZONE, which is us-central2-b",
    ]
    with pytest.raises(UsageError, match="--CQR_EXTRA_ARGS: No closing quotation"):
        tpu_of(with_words("--labels='a"), "r")


def test_the_job_of_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "code"
    (directory / "tmp").mkdir(parents=True)
    (directory / "tmp/big").write_text("left out, as there")
    (directory / "train.py").write_text("pass")
    flags = MultihostJob(
        command="python3 train.py",
        bucket_name="gs://bucket/",
        bucket_dir="/dir/",
        run_name="run1",
        script_dir=str(directory),
        project="lab",
        zone="us-central2-b",
    )
    spec = job_of(flags)
    assert (spec.name, spec.logs, spec.log_names) == ("run1", "gs://bucket/dir/run1", LogNames.MAXTEXT)
    assert spec.command.words == ("bash", "-c", f"{PREAMBLE}python3 train.py")
    assert (spec.env["ZONE"], spec.env["PROJECT"]) == ("us-central2-b", "lab")
    assert (spec.machines.units, spec.machines.pool) == (8, "v4/us-central2-b/ondemand")
    (tree,) = (tmp_path / "state").rglob("train.py")
    assert [path.name for path in tree.parent.iterdir()] == ["train.py"]
    for wrong in ("a b", "-x", "a/b"):
        with pytest.raises(UsageError, match="--RUN_NAME"):
            job_of(MultihostJob(command="x", bucket_name="bucket", run_name=wrong, project="lab", zone="us-central2-b"))


def test_what_stands_before_the_command(tmp_path: Path) -> None:
    """Metadata of Google's machines gives the TPU's name; elsewhere the host's name does."""
    (tmp_path / "curl").write_text("#!/bin/sh\nprintf \"ACCELERATOR_TYPE: 'v4-8'\\nNODE_ID: 'pod-1'\\n\"\n")
    (tmp_path / "curl").chmod(0o755)
    for path, expected in ((f"{tmp_path}:/usr/bin:/bin", "pod-1"), ("/usr/bin:/bin", None)):
        script = f"{PREAMBLE}echo $NODE_ID >&2"
        if expected is None:
            script = "curl() { return 6; }\n" + script
            expected = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
        argv = ["bash", "-c", script]
        done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.parametrize("url", ["bucket/dir", "gs://", "gs://B/x", "gs://a b/c"])
def test_a_place_that_is_no_bucket(url: str) -> None:
    with pytest.raises(UsageError, match="expected gs://BUCKET/DIRECTORY"):
        place_of(url)
