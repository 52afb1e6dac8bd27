"""Machines of the tests' cluster: one with the control plane and two nodes, each a set of namespaces.

Nothing of a machine outlives it: its files are in memory, its processes in a PID namespace whose first process ends
with the test process. What the kernel keeps by name (a bridge, control groups) is removed, also that of a killed run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.lab import LabError, eventually, sh

BRIDGE, CGROUP = "mesh-kube", "mesh-kube"
NETWORK = "10.83"
SERVER = f"{NETWORK}.0.1"  # the bridge's own address
CGROUPS = Path("/sys/fs/cgroup")
CPU_SHARES = 16 * 1024  # as 16 processes have together
GONE_S = 30.0  # for processes that were killed to be gone

# $1: its directory here. The first process of a machine ends when its standard input does.
INIT = r"""
set -e
mount -t proc proc /proc
echo ready
cat >/dev/null
"""

# The settings of the kernel that a kubelet would change, as it wants them. They are the whole machine's.
KERNEL = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
NODE = r"""
set -e
mount -t proc proc /proc
for place in /run /var/lib /var/log /mnt; do mount -t tmpfs -o mode=755 tmpfs $place; done
cd "$1/kernel"
find . -type f | while read -r file; do mount --bind "$file" "/proc/sys/$file"; done
cd /
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
cat >/dev/null
"""


class Machine:
    """A PID and a mount namespace, and a network one for a node."""

    def __init__(self, name: str, directory: Path, *, is_node: bool) -> None:
        self.name, self.directory, self.is_node = name, directory / name, is_node
        self.directory.mkdir()
        self.pid = 0  # of its first process, here
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the namespaces. Raises LabError."""
        for file, text in KERNEL.items() if self.is_node else ():
            place = self.directory / "kernel" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{text}\n")
        kinds = ["-m", "-p", *(["-n", "-u", "-i"] if self.is_node else [])]
        words = ["unshare", *kinds, "-f", "--kill-child", "sh", "-c", NODE if self.is_node else INIT]
        self._process = subprocess.Popen(
            [*words, "sh", str(self.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise LabError(f"machine {self.name} was not made")
        children = f"/proc/{self._process.pid}/task/{self._process.pid}/children"
        self.pid = int(Path(children).read_text().split()[0])

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command there; return what it printed. Raises LabError."""
        kinds = ["-m", "-p", *(["-n", "-u", "-i"] if self.is_node else [])]
        return sh("nsenter", "-t", str(self.pid), *kinds, "--", *argv, check=check)

    def begin(self, name: str, argv: Sequence[str]) -> int:
        """Start a program that outlives this call; return its id there. Its output goes to NAME.log."""
        text = f'setsid "$@" </dev/null >>{self.directory}/{name}.log 2>&1 & echo $!'
        return int(self.run("sh", "-c", text, "sh", *argv))

    def kill(self, pid: int) -> None:
        """Kill a process by its id there, and wait until it is gone."""
        self.run("kill", "-9", str(pid), check=False)
        assert eventually(lambda: not self.run("sh", "-c", f"kill -0 {pid} 2>/dev/null && echo y", check=False), GONE_S)

    def log(self, name: str) -> str:
        """Return the end of a program's output."""
        with contextlib.suppress(OSError):
            return (self.directory / f"{name}.log").read_text(errors="replace")[-3000:]
        return ""

    def stop(self) -> None:
        """End all processes there."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.kill()  # with it goes the first process, and with that all others
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
            eventually(lambda: not Path(f"/proc/{self.pid}").exists(), GONE_S)
            self._process = None


def connect(nodes: Sequence[Machine]) -> None:
    """Make the bridge and the cables of the nodes, each with a network of pods behind it."""
    sh("ip", "link", "add", BRIDGE, "type", "bridge")
    sh("ip", "addr", "add", f"{SERVER}/24", "dev", BRIDGE)
    sh("ip", "link", "set", BRIDGE, "up")
    for number, node in enumerate(nodes, 1):
        cable = f"{BRIDGE}{number}"
        sh("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
        sh("ip", "link", "set", cable, "master", BRIDGE, "up")
        node.run("ip", "addr", "add", f"{address(number)}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        node.run("ip", "route", "add", "default", "via", SERVER)
        sh("ip", "route", "add", f"{NETWORK}.{number}.0/24", "via", address(number))  # from a server of a test to pods
        for other in range(1, len(nodes) + 1):
            if other != number:
                node.run("ip", "route", "add", f"{NETWORK}.{other}.0/24", "via", address(other))


def address(number: int) -> str:
    """Return the address of a node. Nodes are counted from 1."""
    return f"{NETWORK}.0.{10 + number}"


def make_cgroups(names: Sequence[str]) -> None:
    """Make the control groups in which nodes keep their pods, in all hierarchies."""
    for hierarchy in _hierarchies():
        top = hierarchy / CGROUP
        for place in (top, *(top / name for name in names)):
            place.mkdir(exist_ok=True)
            _hand_on(place.parent)
            if (place / "cpu.shares").exists():  # a group has those of one process, and shall have those of its pods
                (place / "cpu.shares").write_text(str(CPU_SHARES))
            for file in ("cpuset.cpus", "cpuset.mems"):  # a new group has none
                if (place / file).exists() and not (place / file).read_text().strip():
                    (place / file).write_text((place.parent / file).read_text())


def clear() -> None:
    """Remove what the kernel keeps of a cluster by name; kill what still runs in its control groups."""
    for link in Path("/sys/class/net").glob(f"{BRIDGE}*"):  # cables too: the network of a killed node ends later
        sh("ip", "link", "del", link.name, check=False)
    deadline = time.monotonic() + GONE_S
    for hierarchy in _hierarchies():
        while (hierarchy / CGROUP).exists() and time.monotonic() < deadline:
            for directory, _, _ in os.walk(hierarchy / CGROUP, topdown=False):
                with contextlib.suppress(OSError):
                    for pid in Path(directory, "cgroup.procs").read_text().split():
                        os.kill(int(pid), 9)
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
            time.sleep(0.02 if (hierarchy / CGROUP).exists() else 0.0)


def _hand_on(group: Path) -> None:
    """Give the groups below a group its controllers, as version 2 of control groups asks for."""
    with contextlib.suppress(OSError):
        for controller in (group / "cgroup.controllers").read_text().split():
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _hierarchies() -> list[Path]:
    """Return the roots of all hierarchies of control groups; the only one, where there is version 2 alone."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [place for place in CGROUPS.iterdir() if (place / "cgroup.procs").exists() and not place.is_symlink()]
