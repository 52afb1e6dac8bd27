"""``slurm:`` of cluster.yaml, names of allocations, and overrides: values, and one message for each fault."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mesh.config.clusters import find_cluster, is_cluster, load_clusters
from mesh.config.selectors import parse
from mesh.config.slurm import Allocation, MadeAllocation, Warn, overridden, read_change, read_nodes
from mesh.core.cluster import Cluster
from mesh.core.errors import UsageError

WHOLE = """\
big:
  user: me
  gateway: login1.site
  remote_dir: /scratch/mesh
  slurm:
    nodes: 16
    partition: gpu
    account: lab
    gres: gpu:8
    gpus_per_node: 8
    cpus_per_task: 4
    mem: 64G
    time: 2:00:00
    exclusive: true
    extra: ["--switches=1"]
    hold: 5m
    start_timeout: 2h
    warn: SIGUSR1 60s
"""

# cluster.yaml below `big:`, and what the message holds.
WRONG = {
    "no nodes": ("slurm: {partition: gpu}", "big.slurm: expected nodes: (how many), nodelist: or jobid:"),
    "an unknown key": ("slurm: {nodes: 2, partiton: gpu}", "unknown key 'partiton'; did you mean 'partition'?"),
    "no number": ("slurm: {nodes: many}", "big.slurm.nodes: expected a whole number from 1 to"),
    "no job": ("slurm: {jobid: x}", "big.slurm.jobid: expected the number of a job, as 12345, found 'x'"),
    "a job and a request": ("slurm: {jobid: 12, nodes: 2}", "unknown key 'nodes'"),
    "no memory": ("slurm: {nodes: 2, mem: lots}", "big.slurm.mem: expected memory of each node, as 64G"),
    "no time": ("slurm: {nodes: 2, time: 2h}", "big.slurm.time: expected a limit"),
    "no GPUs": ("slurm: {nodes: 2, gpus_per_node: none}", "big.slurm.gpus_per_node: expected a number, as 8 or a100:8"),
    "no signal": ("slurm: {nodes: 2, warn: 60s}", 'big.slurm.warn: expected a signal and a time before the end, as "'),
    "a word of mesh": ("slurm: {nodes: 2, extra: [--array=1-3]}", "big.slurm.extra: --array is set by mesh"),
    "a word with a key": ("slurm: {nodes: 2, extra: [--partition=x]}", "--partition has a key of its own: partition:"),
    "a short option": ("slurm: {nodes: 2, extra: [-p]}", 'expected long options, as "--switches=1"'),
    "hosts beside it": ("slurm: {nodes: 2}\n  hosts: [a]", "big.slurm: has hosts: beside it"),
    "a key of SSH": ("slurm: {nodes: 2}\n  gateway: g\n  port: 22", "big.port: has no meaning beside slurm:"),
    "no login node": ("slurm: {nodes: 2}\n  user: me", "big.user: has no meaning without gateway:"),
    "no way to nodes that are asked for": ("slurm: {nodes: 2, reach: rsh}", "big.slurm.reach: expected switchboard or"),
    "no way": ("slurm: {jobid: 12, reach: rsh}", "big.slurm.reach: expected switchboard or ssh, found 'rsh'"),
    "two directories": (
        "slurm: {nodes: 2, local: true}\n  remote_dir: /x",
        "big.slurm.local: has remote_dir: beside it",
    ),
    "no end": ("slurm: {nodes: 2, hold: .inf}", "big.slurm.hold: expected"),
}


def found(tmp_path: Path, text: str, name: str = "big") -> Cluster:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return find_cluster(name, load_clusters(file, required=True))


def test_an_allocation_is_read_with_its_login_node(tmp_path: Path) -> None:
    cluster = found(tmp_path, WHOLE)
    source = cluster.source
    assert isinstance(source, MadeAllocation)
    assert (cluster.backend, cluster.gateway, cluster.remote_dir) == ("slurm", "login1.site", "/scratch/mesh")
    assert source.login is not None
    assert (source.login.address, source.login.user) == ("login1.site", "me")
    assert (source.nodes, source.exclusive, source.extra) == (16, True, ("--switches=1",))
    assert source.request == {
        "nodes": "16",
        "cpus_per_task": "4",
        "partition": "gpu",
        "account": "lab",
        "gres": "gpu:8",
        "gpus_per_node": "8",
        "mem": "64G",
        "time": "2:00:00",
    }
    assert (source.hold, source.start_timeout) == (300.0, 7200.0)
    assert source.warn == Warn(signal=signal.SIGUSR1, before=60.0)


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_has_its_line(tmp_path: Path, name: str) -> None:
    text, words = WRONG[name]
    with pytest.raises(UsageError) as raised:
        found(tmp_path, f"big:\n  {text}\n")
    assert words in str(raised.value)
    assert f"{tmp_path}/cluster.yaml:" in str(raised.value)


def test_names_of_allocations_that_are_in_no_file(tmp_path: Path) -> None:
    file = load_clusters(tmp_path / "none", required=False)
    source = find_cluster("slurm:12345", file).source
    assert isinstance(source, Allocation)
    assert source.job == "12345"
    parts = parse("slurm:12345:3", lambda name: is_cluster(name, file))
    assert [(one.cluster, one.picks) for one in parts] == [("slurm:12345", ("3",))]
    parts = parse("slurm:", lambda name: is_cluster(name, file))
    assert [(one.cluster, one.picks) for one in parts] == [("slurm:", ())]
    with pytest.raises(UsageError, match="expected the number of a job"):
        find_cluster("slurm:big", file)


def test_an_existing_allocation_is_named_in_the_file(tmp_path: Path) -> None:
    source = found(tmp_path, "big: {slurm: {jobid: 12345, hold: 0}}\n").source
    assert isinstance(source, Allocation)
    assert (source.job, source.hold) == ("12345", 0.0)


def test_nodes_of_an_existing_allocation_may_be_reached_by_ssh(tmp_path: Path) -> None:
    text = "big:\n  user: me\n  gateway: login1\n  slurm: {jobid: 12, reach: ssh}\n"
    source = found(tmp_path, text).source
    assert isinstance(source, Allocation)
    assert source.is_by_ssh
    assert source.like is not None
    assert source.like.user == "me"


def test_nodes_that_are_asked_for_may_be_reached_by_ssh(tmp_path: Path) -> None:
    source = found(tmp_path, "big:\n  user: me\n  gateway: login1\n  slurm: {nodes: 2, reach: ssh}\n").source
    assert isinstance(source, MadeAllocation)
    assert source.like is not None
    assert (source.is_by_ssh, source.like.user, source.nodes) == (True, "me", 2)


def test_overrides_change_one_request(tmp_path: Path) -> None:
    cluster = found(tmp_path, WHOLE)
    changes = {"partition": "debug", "exclusive": "false", "hold": "5s", "local": "true"}
    source = overridden(cluster, 4, changes).source
    assert isinstance(source, MadeAllocation)
    assert (source.nodes, source.request["partition"], source.exclusive, source.hold) == (4, "debug", False, 5.0)
    assert source.local
    assert overridden(cluster, 0, {}) is cluster


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mem", "lots", "--slurm mem: expected memory of each node, as 64G, found 'lots'"),
        ("extra", "--x", "--slurm: no key 'extra'"),
        ("partiton", "x", "did you mean 'partition'?"),
        ("exclusive", "yes", "--slurm exclusive: expected true or false"),
        ("hold", "long", "--slurm hold"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        overridden(found(tmp_path, WHOLE), 0, {key: value})
    assert words in str(raised.value)


def test_overrides_are_for_allocations_that_mesh_asks_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--nodes: mesh asks for no allocation of pod"):
        overridden(found(tmp_path, "pod: {hosts: [a]}\n", "pod"), 4, {})
    with pytest.raises(UsageError, match="expected KEY=VALUE, found 'x'"):
        read_change("--slurm", "x")
    with pytest.raises(UsageError, match="--nodes: expected a whole number"):
        read_nodes("--nodes", "0")
