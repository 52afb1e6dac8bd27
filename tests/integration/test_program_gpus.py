"""GPUs of a program on hosts with stand-ins for /dev/nvidia*: who gets which, who holds them, and too few of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.integration.test_nodes import nothing_is_there
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
# A /dev of the host's own: what is made in the usual one would be there on this machine as well.
OWN_DEVICES = """
mkdir /run/dev
mount -t tmpfs tmpfs /run/dev
cd /run/dev
for name in null zero full random urandom tty ptmx; do touch $name; mount --bind /dev/$name $name; done
for name in pts shm; do mkdir $name; mount --rbind /dev/$name $name; done
ln -s /proc/self/fd fd
touch nvidiactl nvidia-uvm
for number in {numbers}; do touch nvidia$number; done
cd /
mount --rbind /run/dev /dev
"""
SCRIPT = """
import json
import os
import sys

from mesh.program import Program, here


class Trainer:
    def __init__(self):
        self.numbers = [int(one) for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        self.files = [open(f"/dev/nvidia{number}") for number in self.numbers]

    def gpus(self):
        return here().host, os.environ["HIP_VISIBLE_DEVICES"], self.numbers


class Watcher:
    def see(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES", "all")


if __name__ == "__main__":
    program = Program("gpus", cluster="pod")
    first, second, third = sys.argv[1].split(",")
    small = program.add(Trainer, on=[first, second], per_host=2, gpus=1, label="small")
    large = program.add(Trainer, on=[first], gpus=int(sys.argv[2]), label="large")
    watchers = program.add(Watcher, on=[first, third], per_host=1)
    with program.launch():
        print(json.dumps([*small.gpus(), large.gpus(), *watchers.see()]), flush=True)
        sys.stdin.readline()
"""


@contextlib.contextmanager
def gpus(host: TestHost, count: int) -> Iterator[None]:
    """Give a host so many GPUs."""
    host.script(OWN_DEVICES.format(numbers=" ".join(map(str, range(count)))))
    try:
        yield
    finally:
        host.script("umount -lR /dev; umount -lR /run/dev; rmdir /run/dev")


def started(pod: Home, hosts: str, large: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "gpus.py", hosts, str(large)],
        cwd=pod.project,
        env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_no_two_nodes_share_a_gpu_and_too_few_are_refused_with_sums(pod: Home, lab: Lab) -> None:
    pod.files(gpus__py=SCRIPT)
    first, second = lab.hosts[:2]
    hosts = ",".join(host.address for host in lab.hosts[:3])
    with gpus(first, 4), gpus(second, 2):
        with started(pod, hosts, 4) as refused:
            _, err = refused.communicate(timeout=2 * PATIENCE)
        assert refused.returncode != 0
        assert f"{first.address}: its nodes ask for 6 GPUs, and it has 4" in err
        with started(pod, hosts, 2) as program:
            assert program.stdout is not None
            found = json.loads(program.stdout.readline() or "null")
            holders = pod.mesh("ps", "pod", "--json")
            _, err = program.communicate("\n", timeout=2 * PATIENCE)
        assert program.returncode == 0, err
        assert found == [
            [first.address, "0", [0]],
            [first.address, "1", [1]],
            [second.address, "0", [0]],
            [second.address, "1", [1]],
            [first.address, "2,3", [2, 3]],
            "-1",
            "all",
        ]
        (row,) = json.loads(holders.out)
        assert sorted(row["devices"]) == sorted(
            [f"{first.address}:/dev/nvidia{number}" for number in range(4)]
            + [f"{second.address}:/dev/nvidia{number}" for number in range(2)]
        )
        assert eventually(lambda: nothing_is_there(lab))
