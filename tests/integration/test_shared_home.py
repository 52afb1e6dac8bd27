"""Hosts that share one home directory: what mesh keeps is each machine's own, and the workspace is written once."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

COUNT = (
    "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; [ $((i % 100)) != 0 ] || sleep 0.1; done; "
    "until [ -e /tmp/finish ]; do sleep 0.1; done"
)
# Until it is told to end; what it has printed by then is known.
ON_AND_ON = "i=0; until [ -e /tmp/finish ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo $i >/tmp/wrote"
LINES = b"".join(b"line %d\n" % number for number in range(1, 2001))
IN_CREATE = 0x100  # linux/inotify.h


@pytest.fixture(scope="module")
def module_lab() -> Iterator[Lab]:
    with Lab(3, shared_home=True) as lab:
        yield lab


@pytest.fixture
def shared(module_lab: Lab, home: Home, nothing_is_left: None) -> Iterator[Home]:
    """A user who knows three hosts with one home directory as ``pod``. A test that leaves a process there fails."""
    home.clusters(module_lab.cluster_yaml())
    home.trust(module_lab)
    yield home
    try:
        assert gone(module_lab), [host.processes() for host in module_lab.hosts]
    finally:
        module_lab.reset()


@pytest.fixture
def hosts(module_lab: Lab) -> list[TestHost]:
    return module_lab.hosts


def gone(lab: Lab) -> bool:
    return eventually(lambda: not any(host.processes() for host in lab.hosts))


def kept(hosts: list[TestHost]) -> set[str]:
    """What is below ~/.mesh, less what is in the workspaces, and meshrun, which stays for the next run."""
    root = hosts[0].path("/root/.mesh")
    found = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() and path.name != "meshrun.py"}
    return {name for name in found if not name.startswith("workspaces/") or name.count("/") == 1}


def wait_for_lines(process: subprocess.Popen[bytes], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline()


def logs(home: Home) -> list[bytes]:
    return [path.read_bytes() for path in sorted(home.path.glob(".local/state/mesh/runs/*/logs/rank-*.out"))]


def finished(home: Home, process: subprocess.Popen[bytes], host: TestHost) -> bool:
    """Let ON_AND_ON end; whether it did, with every line in one of the logs."""
    host.path("/tmp/finish").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    count = int(host.path("/tmp/wrote").read_text())
    return b"".join(b"line %d\n" % number for number in range(1, count + 1)) in logs(home)


class Created:
    """What is made in a directory, by whichever host: they all share this kernel."""

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert libc.inotify_add_watch(self._events, os.fsencode(directory), IN_CREATE) > 0

    def names(self) -> list[str]:
        try:
            data = os.read(self._events, 1 << 16)
        except BlockingIOError:
            return []
        names = []
        while data:
            *_, size = struct.unpack_from("iIII", data)
            names.append(data[16 : 16 + size].rstrip(b"\0").decode())
            data = data[16 + size :]
        return names

    def close(self) -> None:
        os.close(self._events)


def test_every_machine_has_a_lock_of_its_own(shared: Home, hosts: list[TestHost]) -> None:
    """Two runs on disjoint hosts go on side by side; a third one is told whose the host is."""
    first = shared.popen("run", "--ranks", "0-1", "--grace", "1", "pod", "sh", "-c", "echo up; sleep 5000")
    second = shared.popen("run", "--ranks", "2", "pod", "sh", "-c", ON_AND_ON)
    wait_for_lines(first, 2)
    wait_for_lines(second, 1)
    for number in range(3):
        refused = shared.mesh("run", "--ranks", str(number), "pod", "true")
        assert refused.status == 75, refused.err
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 143, err
    assert eventually(lambda: not hosts[0].processes() and not hosts[1].processes())
    assert shared.mesh("run", "--ranks", "0-1", "pod", "true").status == 0
    assert finished(shared, second, hosts[2])
    locks = {f"machines/{path.name}/lock" for path in hosts[0].path("/root/.mesh/machines").iterdir()}
    assert eventually(lambda: {name for name in kept(hosts) if name.startswith("machines/")} == locks), kept(hosts)
    assert len(list(hosts[0].path("/root/.mesh/machines").iterdir())) == 3


def test_the_workspace_is_written_once(shared: Home, hosts: list[TestHost]) -> None:
    shared.files(main__py="print(1)", data__txt="old")
    assert shared.mesh("run", "pod", "true").status == 0
    shared.files(main__py="print(2)", other__py="print(3)")
    (shared.project / "data.txt").unlink()
    created = Created(hosts[0].path("/root/.mesh/workspaces"))
    try:
        done = shared.mesh("run", "pod", "sh", "-c", "ls; cat main.py; echo")
        made = [name for name in created.names() if ".new-" in name]
    finally:
        created.close()
    assert done.status == 0, done.err
    assert len(made) == 1, made  # the place where one host put everything before it put it in place
    assert done.lines == sorted(f"[{rank}] {text}" for rank in range(3) for text in ("main.py", "other.py", "print(2)"))


def test_prerun_with_inputs_runs_on_one_host_after_the_other(shared: Home, hosts: list[TestHost]) -> None:
    """What it makes may be each host's own, so that every one runs it; in a directory that they share, by turns."""
    one_at_a_time = "mkdir busy && sleep 0.2 && rmdir busy && echo ran >>ran && touch /tmp/made"
    shared.files(mesh__yaml=f"prerun:\n  - run: {one_at_a_time}\n    inputs: [mesh.yaml]\n")
    for skipped in (False, True, True):
        done = shared.mesh("run", "pod", "sh", "-c", "test -e /tmp/made && wc -l <ran")
        assert done.status == 0, done.err
        assert done.lines == [f"[{rank}] 3" for rank in range(3)]
        assert ("skipped on 3 hosts: its inputs have not changed" in done.err) == skipped


def test_spools_do_not_meet(shared: Home, hosts: list[TestHost]) -> None:
    """While the client is away, every machine keeps the output of its own ranks."""
    script = "until test -e /tmp/go; do sleep 0.07; done; seq 400000; touch /tmp/ended"
    process = shared.popen("run", "pod", "sh", "-c", script, stdout=subprocess.DEVNULL)
    assert eventually(lambda: all(any("until test" in c for _, c in host.processes()) for host in hosts))
    process.send_signal(signal.SIGSTOP)
    for host in hosts:
        host.path("/tmp/go").touch()
    ended = [host.path("/tmp/ended") for host in hosts]
    assert eventually(lambda: all(path.exists() for path in ended))
    machines = hosts[0].path("/root/.mesh/machines")
    assert len({path.parent.parent for path in machines.glob("*/spool-*/*")}) == 3
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert logs(shared) == [b"".join(b"%d\n" % number for number in range(1, 400_001))] * 3
    assert not list(machines.glob("*/spool-*"))


def test_every_client_finds_its_own_agents_again(shared: Home, hosts: list[TestHost]) -> None:
    """Two runs at once, all connections reset: each goes on at its own doors."""
    first = shared.popen("run", "--ranks", "0-1", "pod", "sh", "-c", COUNT, stdout=subprocess.DEVNULL)
    second = shared.popen("run", "--ranks", "2", "pod", "sh", "-c", COUNT, stdout=subprocess.DEVNULL)
    assert eventually(lambda: all(any("sleep 0.1" in c for _, c in host.processes()) for host in hosts))
    for host in hosts:
        for pid, command in host.processes(with_sshd=True):
            if "notty" in command:
                os.kill(pid, signal.SIGKILL)
    for host in hosts:
        host.path("/tmp/finish").touch()
    for process in (first, second):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert b"connected again, nothing was lost" in err
    assert logs(shared) == [LINES] * 3


def test_what_a_killed_client_leaves_is_its_own(shared: Home, module_lab: Lab) -> None:
    """The run beside it goes on; a new one gets the hosts; nothing of it stays in the directory that all share."""
    hosts = module_lab.hosts
    beside = shared.popen("run", "--ranks", "2", "pod", "sh", "-c", ON_AND_ON)
    wait_for_lines(beside, 1)
    process = shared.popen("run", "--ranks", "0-1", "--grace", "1", "pod", "sh", "-c", "echo up; setsid sleep 5000")
    wait_for_lines(process, 2)
    process.kill()
    process.communicate()
    again = shared.mesh("run", "--ranks", "0-1", "pod", "true")
    assert again.status == 0, again.err
    # An agent may still be on its way out, with its memory given back already.
    assert eventually(lambda: not hosts[0].processes() and not hosts[1].processes())
    assert finished(shared, beside, hosts[2])
    assert gone(module_lab)
    (project,) = [path.name for path in hosts[0].path("/root/.mesh/workspaces").iterdir() if path.is_dir()]
    beside_it = {f"workspaces/.{project}.{what}" for what in ("record", "record.plan", "sync")}
    locks = {f"machines/{path.name}/lock" for path in hosts[0].path("/root/.mesh/machines").iterdir()}
    # The journal of the killed run may stay, with what its client had not acknowledged.
    journals = {path for path in kept(hosts) if "/tape-" in path}
    assert kept(hosts) - journals == beside_it | locks
    runs = {path.split("/")[2].removeprefix("tape-").rpartition("-")[0] for path in journals}
    assert len(runs) <= 1, runs
