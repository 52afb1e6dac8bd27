"""The flags of MaxText's multihost_job.py, as a job of mesh."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.app.bucket import place_of
from mesh.cli import otheroptions as x
from mesh.cli.others import multihost_job_flags
from mesh.cli.parser import parse
from mesh.cli.program import COMMANDS
from mesh.compat.maxtextjob import PREAMBLE, MultihostJob, job_of, tpu_of
from mesh.core.errors import UsageError
from mesh.core.job import LogNames
from mesh.core.tpu import Pricing, Provision, TpuSpec
from tests.conftest import REPOSITORY

LEAST = MultihostJob(command="bash setup.sh", bucket_name="gs://bucket", project="lab", zone="us-central2-b")


# The command lines of docs/machines.md and of `mesh multihost-job --help`, and what they ask for.
EXAMPLES = {
    '--COMMAND="bash setup.sh; python3 train.py" --BUCKET_NAME=my-bucket --RUN_NAME=r1': ("r1", "", 2),
    '--COMMAND="bash setup.sh; python3 train.py" --BUCKET_NAME=logs': ("", "", 2),
    '--COMMAND="bash x.sh" --BUCKET_NAME=logs --CQR_EXTRA_ARGS=--reserved': ("", "--reserved", 2),
}


def test_every_example_is_a_job_with_the_machines_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs/machines.md").read_text()
    written = [*re.findall(r"^    (mesh multihost-job .*)$", page, re.MULTILINE)]
    written += [line for line, _ in COMMANDS["multihost-job"].examples]
    assert {line.removeprefix("mesh multihost-job ") for line in written} == EXAMPLES.keys()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for words, (name, pricing, slices) in EXAMPLES.items():
        given = parse(COMMANDS["multihost-job"], shlex.split(words))
        flags = replace(multihost_job_flags(given), project="lab", zone="us-central2-b")
        spec = job_of(flags)
        assert spec.command.words[-1].endswith(given[x.JOB_COMMAND])
        assert spec.name == name or (not name and spec.name)
        assert spec.logs == f"gs://{given[x.BUCKET_NAME]}/{spec.name}"
        assert tpu_of(flags, spec.name).pricing is (Pricing.RESERVED if pricing else Pricing.ONDEMAND)
        assert spec.machines.units == 4 * slices


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
