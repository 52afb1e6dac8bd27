"""The module gcsfuse: its steps as texts, and these texts run by bash where nothing is mounted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mesh.core.module import Bucket, Gcsfuse, ModuleError, Step
from mesh.modules.gcsfuse import GcsfuseModule
from tests import host_steps as steps
from tests.host_steps import Place

JOBMAN_CACHE: dict[str, str | int | bool] = {
    "dir": "/mnt/ramdisk",
    "metadata_ttl_secs": -1,
    "stat_cache_max_size_mb": -1,
    "type_cache_max_size_mb": -1,
    "file_cache_max_size_mb": 550000,
    "cache_file_for_range_read": True,
    "enable_parallel_downloads": False,
    "prefix": "mkdir -p /mnt/ramdisk",
}


def mount(bucket: Bucket) -> Step:
    return GcsfuseModule(Gcsfuse(buckets=(bucket,))).steps((), 0)[1]


def value(step: Step, name: str) -> str:
    [line] = [line for line in step.apply.splitlines() if line.startswith(f"{name}=")]
    return line.partition("=")[2]


def test_the_keys_of_cache_become_options_of_gcsfuse() -> None:
    step = mount(Bucket(name="data", path="/mnt/data", cache=JOBMAN_CACHE))
    assert value(step, "options") == (
        "(--implicit-dirs --dir-mode=777 --file-mode=777 --cache-dir=/mnt/ramdisk --metadata-cache-ttl-secs=-1"
        " --stat-cache-max-size-mb=-1 --type-cache-max-size-mb=-1 --file-cache-max-size-mb=550000"
        " --file-cache-cache-file-for-range-read --file-cache-enable-parallel-downloads=false)"
    )
    assert value(step, "prefix") == "'mkdir -p /mnt/ramdisk'"


def test_a_general_option_is_replaced_and_does_not_stand_twice() -> None:
    step = mount(Bucket(name="data", path="/mnt/data", cache={"dir_mode": "755", "implicit_dirs": False}))
    assert value(step, "options") == "(--implicit-dirs=false --dir-mode=755 --file-mode=777)"


def test_one_path_has_one_mark_however_it_is_written() -> None:
    marks = {
        value(mount(Bucket(name="data", path=path)), "key") for path in ("/mnt/data", "/mnt//data/", "/mnt/./data")
    }
    assert len(marks) == 1
    assert value(mount(Bucket(name="other", path="/mnt/data")), "key") not in marks


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([("gs://data", "/mnt")], "'gs://data' is no name of a bucket"),
        ([("Data", "/mnt")], "'Data' is no name of a bucket"),
        ([("-x", "/mnt")], "'-x' is no name of a bucket"),
        ([("data", "mnt")], "'mnt': expected an absolute path"),
        ([("data", "/")], "expected an absolute path"),
        ([("data", "~")], "expected an absolute path"),
        ([("data", "/mnt/../etc")], "expected an absolute path"),
        ([("a1", "/mnt/x"), ("b1", "/mnt/x/")], "/mnt/x is the path of several buckets: a1, b1"),
    ],
)
def test_a_description_that_no_host_can_carry_out_is_refused(buckets: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(ModuleError, match="gcsfuse: ") as caught:
        GcsfuseModule(Gcsfuse(buckets=tuple(Bucket(name=name, path=path) for name, path in buckets)))
    assert message in str(caught.value)


def test_every_text_is_right_for_bash(tmp_path: Path) -> None:
    texts = GcsfuseModule(Gcsfuse(buckets=(Bucket(name="data", path="~/it's $HOME", cache=JOBMAN_CACHE),)))
    for step in texts.steps((), 0):
        for text in (step.check, step.apply, step.undo):
            subprocess.run(["bash", "-n", "-c", text], check=True)


def test_undo_without_a_mark_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = steps.undo(Place(tmp_path), mount(Bucket(name="data", path="~/data")))
    assert (done.status, done.err) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["data"]


def test_a_failed_mount_leaves_nothing(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gcsfuse").write_text("#!/bin/sh\necho no credentials\nexit 1\n")  # a stand-in
    (programs / "gcsfuse").chmod(0o755)
    place = Place(tmp_path, {"PATH": f"{programs}:{os.environ['PATH']}"})
    step = mount(Bucket(name="data", path="~/it's/a $HOME"))
    done = steps.settle(place, step)
    assert done.status == 1
    assert done.err.splitlines()[-1].endswith(
        f"cannot mount the bucket data at {tmp_path}/it's/a $HOME: no credentials"
    )
    assert sorted(os.listdir(tmp_path)) == [".mesh", "programs"]
    assert os.listdir(tmp_path / ".mesh/modules") == []


def test_without_root_the_message_has_what_an_administrator_must_run(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_ins = {"id": '[ "$1" = -u ] && echo 1000 || echo someone', "sudo": "exit 1", "apt-get": "exit 99"}
    for name in ("cat", "hostname", "printf", "bash"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    for name, text in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    program = GcsfuseModule(Gcsfuse(buckets=())).steps((), 0)[0]
    assert program.sudo
    place = Place(tmp_path, {"PATH": str(programs)})
    assert steps.check(place, program).status != 0
    done = steps.apply(place, program)
    assert done.status == 1
    assert "someone may not install it. An administrator must run:" in done.err
    assert "sudo apt-get update && sudo apt-get install -y gcsfuse" in done.err
    assert "needs root" in done.err.splitlines()[-1]
