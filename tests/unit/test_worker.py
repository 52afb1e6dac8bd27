"""Workers in job files: JOBMAN's `job.queue`, and what mesh adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.config.jobfile import JobFile, read_job_file
from mesh.core.errors import UsageError
from mesh.core.job import RestartOn
from mesh.core.tasks import PrefixStep, WorkerSpec

# A worker file of JOBMAN's third version, key for key.
JOBMAN = """\
job:
  name: me-qw-${tpu.accelerator}
  env_type: none
  loop: true
  remote_user: me
  environment:
    TPU_PREFIX: ${tpu.name}
  queue:
    enabled: true
    config: queue_machines/tasks.yaml
    prefix:
      - name: "gcloud-setup"
        workers: 0
        run: |
          gcloud config set compute/zone ${tpu.zone}
      - run: sudo mkdir -p /mnt/ramdisk
        workers: all
        required: true
tpu:
  allocation_mode: "queued-resources"
  accelerator: v6e-64
  name: me-${tpu.accelerator}
  zone: us-central1-b
  version: v2-alpha-tpuv6e
  pricing: spot
command:
  cmd: not used by a worker
"""


def read(tmp_path: Path, text: str) -> JobFile:
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    return read_job_file(path, (), (), 0.0, tmp_path)


def test_a_worker_of_jobman_loads_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "queue_machines").mkdir()
    (tmp_path / "queue_machines/tasks.yaml").touch()
    spec = read(tmp_path, JOBMAN).spec
    assert spec.worker == WorkerSpec(
        tasks=tmp_path / "queue_machines/tasks.yaml",
        accelerator="v6e-64",
        zone="us-central1-b",
        prefix=(
            PrefixStep(name="gcloud-setup", run="gcloud config set compute/zone us-central1-b\n"),
            PrefixStep(name="prefix-2", run="sudo mkdir -p /mnt/ramdisk", workers=(), required=True),
        ),
    )
    assert spec.command.words == ()
    assert spec.restart.on is RestartOn.FAILURE
    assert spec.env["TPU_PREFIX"] == "me-v6e-64"


def test_without_its_queue_the_file_is_a_job_with_a_command(tmp_path: Path) -> None:
    spec = read(tmp_path, JOBMAN.replace("enabled: true", "enabled: false")).spec
    assert spec.worker is None
    assert spec.command.words[-1].endswith("not used by a worker")


def test_a_prefix_may_be_a_text_and_idle_times_are_meshs_own(tmp_path: Path) -> None:
    queue = "{config: /x/t.yaml, prefix: echo hi, idle: 90s, end: true, accelerator: v4-8, zone: z}"
    spec = read(tmp_path, f"machines: local:1\njob: {{queue: {queue}}}\n").spec
    assert spec.worker == WorkerSpec(
        tasks=Path("/x/t.yaml"),
        accelerator="v4-8",
        zone="z",
        prefix=(PrefixStep(name="prefix", run="echo hi"),),
        idle=90.0,
        ends=True,
    )


def test_a_name_is_the_queue_that_a_job_waits_in(tmp_path: Path) -> None:
    spec = read(tmp_path, "machines: local:1\nrun: x\njob: {queue: night}\n").spec
    assert (spec.queue, spec.worker) == ("night", None)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("{enabled: true}", "worker.yaml:2: job.queue: has no config:"),
        ("{config: t.yaml, prefixes: x}", "unknown key 'prefixes'; did you mean 'prefix'?"),
        ("{config: t.yaml, prefix: [{name: x}]}", "job.queue.prefix[0]: has no run:"),
        ("{config: t.yaml, idle: soon}", "job.queue.idle: expected seconds"),
        ("{config: t.yaml, prefix: [{run: x, workers: one}]}", "workers: expected all, or numbers"),
    ],
)
def test_a_problem_has_its_line(tmp_path: Path, queue: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f"machines: local:1\njob: {{queue: {queue}}}\n")
    assert expected in str(caught.value)
