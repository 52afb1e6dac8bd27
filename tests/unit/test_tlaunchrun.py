"""``mesh tlaunchrun``: from its arguments to the options and words of a run."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh.api.holding import InUse
from mesh.api.podhold import check_not_awaited
from mesh.cli import program
from mesh.cli.otherstlaunch import ordered
from mesh.compat.tlaunchpods import PodRequest, clusters_text, write_cluster
from mesh.compat.tlaunchrun import TLaunchJob, options_of, words_of
from mesh.core.errors import MeshError, UsageError
from mesh.hosts.kubernetes.records import PodsRecord, PodsRecords
from mesh.hosts.kubernetes.waiters import Waiters
from mesh.launchpad.podparts import NO_SHARE
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


@pytest.mark.parametrize("name", ["namespace", "image_pull_policy", "gpu_memory", "gpu_cores"])
def test_arguments_of_kubernetes_are_refused_by_name_without_an_image(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} belongs to Kubernetes, and needs --image"):
        program.status(["tlaunchrun", "basic", f"--{name}", "x", "pod", "true"])


ORDERS = {
    "--lpjob_name m --gpu 2 torchrun pod train.py --x 1": "torchrun --lpjob_name m --gpu 2 pod train.py --x 1",
    "basic --set_share_file /nfs/x pod train.py --image y": "basic --set_share_file /nfs/x pod train.py --image y",
    "--image i --set_save_path basic --num_trainer 2 --set_share_file train.py": (
        "basic --image i --set_save_path --num_trainer 2 --set_share_file=auto --cluster=pods train.py"
    ),
    "basic --set_share_file --image=i train.py --gpu 1": (
        "basic --set_share_file=auto --image=i --cluster=pods train.py --gpu 1"
    ),
    "--image i --num-nodes 2": "--image i --num-nodes 2",
    "--gpu 2 ray pod train.py": "ray --gpu 2 pod train.py",
}


@pytest.mark.parametrize("words", ORDERS)
def test_the_method_comes_first_and_with_an_image_no_cluster_is_named(words: str) -> None:
    assert ordered(words.split()) == ORDERS[words].split()


def in_pods(home: Home, text: str, *more: str) -> tuple[dict[str, Any], str]:
    """Return the spec of the first pod that --dry-run prints, and its line about the words."""
    done = home.mesh("tlaunchrun", "--dry-run", "--image", "x", *more, *text.split())
    assert done.status == 0, done.err
    objects, _, words = done.out.decode().rpartition("# ")
    pods = [one for one in yaml.safe_load_all(objects) if one["kind"] == "Pod"]
    return {**pods[0]["spec"], "pods": len(pods)}, words.strip()


def test_pods_have_what_was_asked_for(home: Home) -> None:
    home.files(mesh__yaml="gpu_share: {gpu: a.b/gpu, memory: a.b/mem, cores: a.b/cores}\n")
    parts = ("--gpu", "2", "--gpu_memory", "10000", "--gpu_cores", "50", "--image_pull_policy", "Never")
    found, words = in_pods(home, "torchrun --nnodes 3 --nproc_per_node 4 train.py --lr 1", *parts)
    (container,) = found["containers"]
    assert (found["pods"], container["image"], container["imagePullPolicy"]) == (3, "x", "Never")
    assert container["resources"]["limits"] == {"a.b/gpu": "2", "a.b/mem": "10000", "a.b/cores": "50"}
    assert words == "torchrun, 4 processes in each pod: train.py --lr 1"
    found, words = in_pods(home, "basic --num_trainer 2 train.py --lr 1", "--gpu", "1", "--lpjob_name", "m")
    assert found["pods"] == 2
    assert words.startswith("1 processes in each pod: sh -c")
    assert words.endswith("sh python3 train.py --lr 1")
    found, words = in_pods(home, "deepspeed --num_nodes 2 train.py", "--gpu", "8", "--set_save_path")
    assert (found["pods"], words) == (2, "deepspeed, 8 processes in each pod: train.py --save_path models/lpjob")


def test_paths_are_on_the_volume_where_there_is_one(home: Home) -> None:
    words = ("tlaunchrun", "--dry-run", "--image", "x", "basic", "--set_share_file", "train.py")
    done = home.mesh(*words)
    assert (done.status, "MESH_TDATA" in done.err) == (2, True)
    home.environ["MESH_TDATA"] = "tdata:/TData"
    options = ("--lpjob_name", "m", "--set_save_path", "--set_checkpoint_path")
    found, shown = in_pods(home, "basic --num_trainer 2 --set_share_file train.py", *options)
    assert [one["persistentVolumeClaim"]["claimName"] for one in found["volumes"] if "emptyDir" not in one] == ["tdata"]
    added = "--save_path /TData/models/m --checkpoint_path /TData/models/last.tar.gz"
    assert re.search(rf"--share_file /TData/cache/m-[0-9a-f]{{12}} {added}$", shown)


def test_parts_of_gpus_need_names_of_their_resources(home: Home) -> None:
    done = home.mesh("tlaunchrun", "--dry-run", "--image", "x", "--gpu_memory", "1", "basic", "train.py")
    assert (done.status, "`gpu_share: {memory: " in done.err) == (2, True)
    for option, value in (("--image_pull_policy", "Often"), ("--lpjob_name", "a:b")):
        done = home.mesh("tlaunchrun", "--dry-run", "--image", "x", option, value, "basic", "train.py")
        assert (done.status, f"error: {option}: expected" in done.err) == (2, True), done.err


def test_the_nodes_of_a_launcher_are_the_hosts_of_the_cluster(home: Home) -> None:
    assert home.mesh("tlaunchrun", "--dry-run", "torchrun", "--nnodes", "2", "local:2", "train.py").status == 0
    done = home.mesh("tlaunchrun", "torchrun", "--nnodes", "1", "local:2", "train.py")
    assert (done.status, "local:2 has 2 hosts" in done.err) == (2, True)


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


def test_pods_that_start_for_another_job_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    records = PodsRecords({"XDG_STATE_HOME": str(tmp_path)})
    record = PodsRecord(
        uid="u", root="mesh-lpjob-a", cluster="lpjob", context="", namespace="n", pods=1, since=1.0, until=0.0, hold=1.0
    )
    check_not_awaited("lpjob", [record])
    with Waiters(records, record.place), pytest.raises(InUse, match="starting for another command") as caught:
        check_not_awaited("lpjob", [record])
    assert caught.value.exit_code == 75
    check_not_awaited("lpjob", [record])


def test_a_description_that_was_cut_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    place = tmp_path / "lpjob.yaml"
    text = clusters_text("", PodRequest(image="x", nodes=1), NO_SHARE)
    write_cluster(place, text, "lpjob")
    assert (place.read_text(), [*tmp_path.glob("lpjob.yaml*")]) == (text, [place])
    place.write_text("")
    with pytest.raises(MeshError, match=r"kubeconfig|context|Kubernetes"):  # which is asked about the pods of before
        write_cluster(place, text, "lpjob")
    assert [*tmp_path.glob("lpjob.yaml*")] == [place]
