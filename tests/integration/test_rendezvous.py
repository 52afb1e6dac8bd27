"""Ranks that find each other: programs of JAX and torch as they are, slices, interfaces and ports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.full import times
from tests.lab import Lab

pytestmark = [pytest.mark.root, pytest.mark.sshd]

SHOW = """import json, os, sys
names = sys.argv[1:]
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(tuple(names))}))
"""
INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def variables(home: Home, *words: str) -> list[dict[str, str]]:
    """What the ranks of a run find in their environment, in order."""
    home.files(show__py=SHOW)
    done = home.mesh("run", *words)
    assert done.status == 0, done.err
    lines = sorted(done.out.decode().splitlines(), key=lambda line: int(line[1 : line.index("]")]))
    return [json.loads(line.partition("] ")[2]) for line in lines]


def logs(home: Home) -> Path:
    (found,) = (home.path / ".local/state/mesh/runs").glob("*/logs")
    return found


# With MESH_TEST_FULL=1 there are four hosts, and two processes on each of two.
COUNT = times(2, 4)
WORLDS = {
    "hosts": ["--ranks", f"0-{COUNT - 1}", "pod"],
    "this machine": ["--nproc", "2", f"local:{COUNT // 2}"],
}


@pytest.mark.parametrize("words", WORLDS.values(), ids=WORLDS)
def test_a_jax_program_sums_over_all_processes(pod: Home, words: list[str]) -> None:
    pytest.importorskip("jax", reason="JAX is not installed here")
    pod.files(jax_sum__py=(REPOSITORY / "examples/jax_sum.py").read_text())
    done = pod.mesh("run", *words, f"{sys.prefix}/bin/python", "jax_sum.py", within=5 * PATIENCE)
    assert done.status == 0, done.err
    own = [line for line in done.lines if "[Gloo]" not in line]
    assert own == [f"[{n}] rank {n}: {COUNT} processes, sum {sum(range(COUNT))}" for n in range(COUNT)]


TORCH_WORLDS = {
    "two hosts": ["--ranks", "0-1", "--nproc", f"{COUNT // 2}", "pod"],
    "this machine": ["--nproc", "2", f"local:{COUNT // 2}"],
}


@pytest.mark.parametrize("words", TORCH_WORLDS.values(), ids=TORCH_WORLDS)
def test_a_torch_program_sums_over_all_processes_of_torchrun(pod: Home, words: list[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed here")
    pod.files(
        torch_sum__py=(REPOSITORY / "examples/torch_sum.py").read_text(),
        mesh__yaml=f"prerun: ['export PATH={sys.prefix}/bin:$PATH']\n",
    )
    done = pod.mesh("run", "--launcher", "torchrun", *words, "torch_sum.py", within=5 * PATIENCE)
    assert done.status == 0, done.err
    expected = [f"rank {n}: {COUNT} processes, sum {sum(range(COUNT))}" for n in range(COUNT)]
    assert sorted(line[4:] for line in done.lines) == expected


def test_two_slices(pod: Home, lab: Lab) -> None:
    addresses = [host.address for host in lab.hosts]
    slices = f"[{{hosts: {addresses[:2]}}}, {{hosts: {addresses[2:]}}}]"
    pod.clusters(f"pod:\n  user: root\n  identity_file: {lab.identity}\n  slices: {slices}\n")
    names = ("RANK", "SLICE_ID", "WORKER_ID", "MEGASCALE", "MASTER_PORT", *INTERFACES)
    found = variables(pod, "pod", "python3", "show.py", *names)
    (port,) = {one.pop("MEGASCALE_PORT") for one in found}
    assert {one.pop("MASTER_PORT") for one in found}.isdisjoint({port})
    assert found == [
        {
            "RANK": str(rank),
            "SLICE_ID": str(rank // 2),
            "WORKER_ID": str(rank % 2),
            "MEGASCALE_COORDINATOR_ADDRESS": lab.hosts[0].address,
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": str(rank // 2),
            **dict.fromkeys(INTERFACES, "eth0"),
        }
        for rank in range(4)
    ]
    for rank in range(4):
        link = logs(pod) / f"output_slice_{rank // 2:04d}_worker_{rank % 2:04d}.txt"
        assert link.is_symlink()
        assert json.loads(link.read_text())["RANK"] == str(rank)


def test_the_interface_towards_rank_0(pod: Home, lab: Lab) -> None:
    """Its own host knows its name as a loopback address; another one has an interface whose name begins alike."""
    first, second = lab.hosts[:2]
    hosts = first.path("/etc/hosts")
    before = hosts.read_text()
    settings = f"pod:\n  user: root\n  identity_file: {lab.identity}\n"

    def cluster(internal: str) -> None:
        listed = f"[{{host: {first.address}, internal_ip: {internal}}}, {second.address}]"
        pod.clusters(f"{settings}  hosts: {listed}\n")

    second.run("ip", "link", "add", "eth01", "type", "veth", "peer", "name", "other")
    try:
        hosts.write_text(before.replace(f"{first.address} ", "127.0.1.1 "))
        cluster(first.name)
        found = variables(pod, "pod", "python3", "show.py", "MASTER_ADDR", *INTERFACES)
        assert [one.pop("MASTER_ADDR") for one in found] == ["h00", "h00"]
        assert [list(map(one.get, INTERFACES)) for one in found] == [["eth0", "eth0"], ["=eth0", "eth0"]]
        cluster("192.0.2.1")
        done = pod.mesh("run", "pod", "sh", "-c", "echo $NCCL_SOCKET_IFNAME $GLOO_SOCKET_IFNAME")
        assert (done.status, done.lines) == (0, ["[0] ", "[1] "])
        text = ": no route from here to 192.0.2.1, the address of rank 0"
        named = [line.partition(text)[0] for line in done.err.splitlines() if text in line]
        # Both hosts are in one line, or in two lines if a notice came late.
        assert {name for names in named for name in names.replace("==> ", "").split(", ")} == {
            first.address,
            second.address,
        }
    finally:
        hosts.write_text(before)
        second.run("ip", "link", "del", "eth01")


def test_a_master_port_that_is_taken(pod: Home) -> None:
    done = pod.mesh("run", "--master-port", "22", "pod", "echo", "started")
    assert (done.status, done.out) == (125, b"")
    assert "port 22 for the ranks cannot be had: Address already in use" in done.err
