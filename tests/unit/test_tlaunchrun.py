"""``mesh tlaunchrun``: from its arguments to the options and words of a run."""

from __future__ import annotations

import base64
import json

import pytest

from mesh.cli import program
from mesh.compat.tlaunchrun import TLaunchJob, options_of, words_of
from mesh.core.errors import UsageError
from tests.conftest import Home


def job(method: str = "basic", **more: object) -> TLaunchJob:
    return TLaunchJob(method=method, cluster="pod", command=("python3", "train.py"), **more)  # type: ignore[arg-type]


def test_trainers_are_dealt_over_hosts() -> None:
    assert (options_of(job(), 0).nproc, options_of(job(), 0).ranks) == (1, "")
    assert options_of(job(num_trainer=1), 4).ranks == "0"
    assert (options_of(job(num_trainer=3), 4).nproc, options_of(job(num_trainer=3), 4).ranks) == (1, "0-2")
    assert (options_of(job(num_trainer=8), 4).nproc, options_of(job(num_trainer=8), 4).ranks) == (2, "")
    with pytest.raises(UsageError, match="evenly") as caught:
        options_of(job(num_trainer=6), 4)
    assert caught.value.hint == "--num_trainer 4, or 8"
    with pytest.raises(UsageError, match="both"):
        options_of(job(num_trainer=2, gpu=2), 4)


def test_gpus_and_launchers() -> None:
    found = options_of(job(gpu=8, name="r1"), 0)
    assert (found.nproc, found.bind, found.name, found.launcher) == (8, True, "r1", "")
    found = options_of(job("torchrun", gpu=8), 0)
    assert (found.nproc, found.bind, found.launcher) == (8, False, "torchrun")
    with pytest.raises(UsageError, match="basic"):
        options_of(job("deepspeed", num_trainer=2), 4)
    with pytest.raises(UsageError, match="expected basic"):
        options_of(job("mpi"), 0)


def test_words_that_are_added() -> None:
    paths = {"set_save_path": True, "set_checkpoint_path": True, "name": "r1"}
    added = ("--save_path", "models/r1", "--checkpoint_path", "models/last.tar.gz")
    assert words_of(job("torchrun", **paths)) == ("python3", "train.py", *added)
    assert words_of(job(share_file="/nfs/x"))[-4:] == ("python3", "train.py", "--share_file", "/nfs/x")


@pytest.mark.parametrize("name", ["namespace", "image", "image_pull_policy", "gpu_memory", "gpu_cores"])
def test_arguments_of_kubernetes_are_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} belongs to Kubernetes"):
        program.status(["tlaunchrun", "basic", f"--{name}", "x", "pod", "true"])


def test_a_basic_job_on_this_machine(home: Home) -> None:
    words = ["tlaunchrun", "basic", "--num_trainer", "4", "--lpjob_name", "r1", "--set_save_path", "local:2"]
    done = home.mesh(*words, "sh", "-c", 'echo "$MASTER_ADDR" "$@"', "sh", "--lr", "1 e")
    assert done.status == 0, done.err
    lines = sorted(line.partition("] ")[2].split(maxsplit=1)[1] for line in done.out.decode().splitlines())
    assert lines == [f"--lr 1 e --save_path models/r1 --rank {rank} --world_size 4" for rank in range(4)]


def test_a_shared_file_needs_a_shared_directory(home: Home) -> None:
    """Both hosts of this machine share its files; a relative path is in the workspace of each."""
    words = ["sh", "-c", 'echo "$@"', "sh"]
    shared = home.path / "shared"
    shared.mkdir()
    done = home.mesh("tlaunchrun", "basic", "--set_share_file", f"{shared}/meet", "local:2", *words)
    assert done.status == 0, done.err
    assert f"--share_file {shared}/meet --rank 1 --world_size 2" in done.out.decode()
    assert list(shared.iterdir()) == []
    done = home.mesh("tlaunchrun", "basic", "--set_share_file", "meet", "local:2", *words)
    assert (done.status, "MASTER_ADDR" in done.err) == (2, True)
    done = home.mesh("tlaunchrun", "basic", "--set_share_file", f"{home.path}/no/meet", "local:2", *words)
    assert (done.status, "cannot be written" in done.err) == (2, True)


def test_deepspeed_gets_its_hosts_and_processes(home: Home) -> None:
    """A package of our own has the name of DeepSpeed's launcher, and prints its words."""
    directory = home.path / "packages/deepspeed/launcher"
    directory.mkdir(parents=True)
    for place in (directory, directory.parent):
        (place / "__init__.py").touch()
    (directory / "launch.py").write_text("import sys\nprint(*sys.argv[1:], flush=True)\n")
    home.files(mesh__yaml=f"prerun: ['export PYTHONPATH={home.path}/packages']\n", train__py="")
    done = home.mesh("tlaunchrun", "deepspeed", "--gpu", "3", "local:2", "train.py", "--lr", "1")
    assert done.status == 0, done.err
    words = [line.partition("] ")[2].split() for line in done.out.decode().splitlines()]
    assert sorted(one[1] for one in words) == ["--node_rank=0", "--node_rank=1"], words
    assert all(one[4:] == ["train.py", "--lr", "1"] for one in words), words
    (world,) = {one[0].partition("=")[2] for one in words}
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node-0": [0, 1, 2], "node-1": [0, 1, 2]}


def test_torchrun_gets_its_hosts_and_processes(home: Home) -> None:
    """A torchrun of our own prints its words."""
    directory = home.path / "bin"
    directory.mkdir()
    script = directory / "torchrun"
    script.write_text('#!/bin/sh\necho "$@"\n')
    script.chmod(0o755)
    home.environ["PATH"] = f"{directory}:{home.environ['PATH']}"
    home.files(mesh__yaml=f"prerun: ['export PATH={directory}:$PATH']\n", train__py="")
    done = home.mesh("tlaunchrun", "torchrun", "--gpu", "3", "local:2", "train.py", "--lr", "1")
    assert done.status == 0, done.err
    lines = done.out.decode().splitlines()
    assert len(lines) == 2
    assert all("--nnodes=2" in line and "--nproc-per-node=3" in line.replace("_", "-") for line in lines), lines
    assert all(line.endswith("train.py --lr 1") for line in lines), lines
