"""Connections that outlive a command, for the next one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.cli.reports import keeper_lines
from mesh.keeper.client import about_keepers
from tests.conftest import Home, new_home
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

NOTHING = "nothing is kept"
KEEP = "keep: 600"  # seconds: no test takes as long


@pytest.fixture
def kept(pod: Home, lab: Lab, own_place: Path) -> Iterator[Home]:
    """A user whose connections are kept, once an agent waits on every host."""
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    assert pod.mesh("exec", "pod", "true").status == 0
    wait(pod)
    yield pod
    pod.mesh("keep", "stop")
    assert told(pod) == NOTHING


def told(pod: Home) -> str:
    """Return what ``mesh keep`` shows to a user, without a process for each look."""
    with pytest.MonkeyPatch.context() as environ:
        for name in ("HOME", "XDG_RUNTIME_DIR"):
            environ.setenv(name, pod.environ[name])
        return "\n".join(keeper_lines(about_keepers())) or NOTHING


def shown(pod: Home) -> str:
    return pod.mesh("keep").out.decode().strip()


def wait(pod: Home) -> None:
    assert eventually(lambda: "an agent on 4 hosts" in told(pod)), told(pod)


def keeper(pod: Home) -> int:
    found = re.search(r"process (\d+)", told(pod))
    assert found
    return int(found.group(1))


def logins(lab: Lab) -> int:
    return sum(host.path("/var/log/sshd.log").read_text().count("Accepted publickey") for host in lab.hosts)


@contextlib.contextmanager
def without_logins(lab: Lab) -> Iterator[None]:
    """Within: nobody can log in anywhere; the connections that there are go on."""
    listeners = [
        pid for host in lab.hosts for pid, command in host.processes(with_sshd=True) if "[listener]" in command
    ]
    assert len(listeners) == len(lab.hosts)
    for pid in listeners:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in listeners:
            os.kill(pid, signal.SIGCONT)


def test_the_next_command_logs_in_nowhere(kept: Home, lab: Lab) -> None:
    show = "echo $RANK $MASTER_ADDR $MESH_HOSTS; [ $RANK = 3 ] && echo no >&2 && exit 9; true"
    direct = kept.mesh("run", "--keep-going", "pod", "sh", "-c", show, env={**kept.environ, "MESH_KEEP": "0"})
    with without_logins(lab):
        pushed = kept.mesh("push", "pod")
    assert pushed.status == 0, pushed.err
    wait(kept)
    for _ in range(2):
        before = logins(lab)
        with without_logins(lab):
            done = kept.mesh("run", "--keep-going", "pod", "sh", "-c", show)
        assert (done.status, sorted(done.out.split())) == (9, sorted(direct.out.split())), done.err
        assert "[3] no\n" in done.err
        wait(kept)
        assert logins(lab) == before + 4  # of those that wait for the next one


def test_a_name_that_means_another_host_now(home: Home, lab: Lab, own_place: Path) -> None:
    """What ssh_config says holds for each command; the hosts hear of an address, and of no alias."""
    home.trust(lab)
    home.clusters(f"pod:\n  user: root\n  identity_file: {lab.identity}\n  {KEEP}\n  hosts: [here]\n")
    for host in lab.hosts[:2]:
        (home.path / ".ssh/config").write_text(f"Host here\n  HostName {host.address}\n")
        for _ in range(2):
            done = home.mesh("run", "pod", "sh", "-c", "echo $(hostname) $MASTER_ADDR")
            assert done.out.decode().split() == ["[0]", host.name, host.address], done.err
            assert eventually(lambda: "an agent on" in told(home) and "on 0 hosts" not in told(home))
    home.mesh("keep", "stop")


def test_a_run_that_is_left_through_it(kept: Home, lab: Lab) -> None:
    wait_for = "while ! [ -e /tmp/over ]; do sleep 0.05; done"
    with without_logins(lab):
        started = kept.mesh("run", "-d", "pod", "sh", "-c", f"echo up; {wait_for}; echo done")
    assert started.status == 0, started.err
    kept.mesh("keep", "stop")
    for host in lab.hosts:
        host.path("/tmp/over").touch()
    attached = kept.mesh("attach", "--from", "start")
    assert (attached.status, attached.out.count(b"up"), attached.out.count(b"done")) == (0, 4, 4), attached.err


def test_it_is_stopped_while_a_command_is_at_work(kept: Home, lab: Lab) -> None:
    wait_for = "while ! [ -e /tmp/over ]; do sleep 0.05; done"
    client = kept.popen("exec", "pod", "sh", "-c", f"echo up; {wait_for}; echo done")
    assert client.stdout is not None
    assert all(client.stdout.readline() for _ in range(4))
    assert kept.mesh("keep", "stop").out == b"the keeper has ended\n"
    for host in lab.hosts:
        host.path("/tmp/over").touch()
    out, err = client.communicate(timeout=60)
    assert (client.returncode, out.count(b"done"), b"again" in err) == (0, 4, False), err
    wait(kept)


def test_the_next_command_imports_neither_fabric_nor_paramiko(kept: Home, lab: Lab) -> None:
    argv = [sys.executable, "-X", "importtime", "-m", "mesh", "exec", "pod", "echo", "up"]
    done = subprocess.run(argv, cwd=kept.project, env=kept.environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout.count(b"up")) == (0, 4), done.stderr
    imported = {line.rpartition(b"|")[2].strip() for line in done.stderr.splitlines()}
    assert b"mesh.keeper.client" in imported
    assert not imported & {b"fabric", b"invoke", b"paramiko", b"cryptography"}
    wait(kept)


def test_ssh_config_with_a_program_in_it(kept: Home, lab: Lab) -> None:
    """Each command works out anew how its hosts are reached, and finds the agents that wait."""
    kept.mesh("keep", "stop")
    (kept.path / ".ssh/config").write_text("Match exec true\n  ConnectTimeout 20\n")
    assert kept.mesh("exec", "pod", "true").status == 0
    wait(kept)
    with without_logins(lab):
        assert kept.mesh("exec", "pod", "true").status == 0
    wait(kept)


def test_the_keeper_uses_no_proxy_command(pod: Home, lab: Lab, own_place: Path) -> None:
    """It may ask a question, or need a terminal. Commands use it as ever."""
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    mark, relay = pod.path / "used", pod.path / "relay.py"
    relay.write_text(
        "import os, socket, sys, threading\n"
        f"print('used', file=open({str(mark)!r}, 'a'))\n"
        "there = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): there.sendall(data)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := there.recv(65536): os.write(1, data)\n"
    )
    (pod.path / ".ssh/config").write_text(f"Host *\n  ProxyCommand {sys.executable} {relay} %h %p\n")
    assert pod.mesh("exec", "pod", "true").status == 0
    assert eventually(lambda: told(pod) == NOTHING)
    assert mark.read_text() == "used\n" * 4


def test_a_killed_command_ends_its_run(kept: Home, lab: Lab) -> None:
    client = kept.popen("run", "--grace", "1", "pod", "sh", "-c", "echo up; exec sleep 4321")
    assert client.stdout is not None
    assert all(client.stdout.readline() for _ in range(4))
    client.kill()
    client.communicate()
    for host in lab.hosts:
        assert eventually(lambda h=host: not any("sleep 4321" in command for _, command in h.processes()))  # type: ignore[misc]


def test_a_killed_keeper_costs_no_line(kept: Home, lab: Lab) -> None:
    client = kept.popen("run", "pod", "sh", "-c", "for n in $(seq 300); do echo line $n; sleep 0.01; done")
    assert client.stdout is not None
    first = [client.stdout.readline() for _ in range(40)]
    os.kill(keeper(kept), signal.SIGKILL)
    rest = client.stdout.read()  # what communicate() reads passes over what readline() has read ahead
    _, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    lines = [*first, *rest.splitlines(keepends=True)]
    expected = [b"[%d] line %d\n" % (rank, number) for rank in range(4) for number in range(1, 301)]
    assert sorted(lines) == sorted(expected)


def test_what_ended_meanwhile_is_started_again(kept: Home, lab: Lab) -> None:
    lab.end_all(lab.hosts[1])
    done = kept.mesh("exec", "pod", "echo", "up")
    assert (done.status, done.out.count(b"up")) == (0, 4), done.err
    wait(kept)


def test_a_host_that_does_not_answer_is_logged_in_to_anew(kept: Home, lab: Lab) -> None:
    """The network drops the connection, and neither end is notified."""
    there = lab.hosts[1].processes(with_sshd=True)
    sessions = [pid for pid, command in there if command.startswith("sshd: root")]
    assert sessions, there
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    before = logins(lab)
    try:
        done = kept.mesh("exec", "pod", "echo", "up")
    finally:
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert (done.status, done.out.count(b"up")) == (0, 4), done.err
    wait(kept)
    assert logins(lab) == before + 1 + 4  # it, and those that wait for the next one


def test_a_command_that_is_given_up_takes_no_more_of_them(kept: Home, lab: Lab) -> None:
    """As by Ctrl-C, before the keeper hands them out, and meanwhile."""
    code = """
import math, os
from mesh.api.choosing import selected
from mesh.hosts.interfaces import Purpose
from mesh.backends.ssh.passwords import Passwords
from mesh.keeper.channel import KeptChannel
from mesh.keeper.client import KeptBackend
from mesh.remote.blob import start_command

cluster = selected("pod", "", Purpose.RUN)
early, late = (KeptBackend(cluster, Passwords("", {}), math.inf, os.environ) for _ in range(2))
early.close()
none = list(early.open(cluster.hosts, start_command(cluster.python)))
coming = late.open(cluster.hosts, start_command(cluster.python))
first = next(coming).result
assert isinstance(first, KeptChannel)
late.close()
print(none, list(coming), first.receive())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=kept.project, env=kept.environ, capture_output=True, check=False
    )
    assert done.stdout == b"[] [] b''\n", done.stderr
    assert all(eventually(lambda h=host: not h.processes()) for host in lab.hosts)  # type: ignore[misc]


def test_nothing_waits_on_hosts_once_it_is_stopped(kept: Home, lab: Lab) -> None:
    assert all(host.processes() for host in lab.hosts)
    assert "an agent on 4 hosts" in shown(kept)
    assert kept.mesh("keep", "stop").out == b"the keeper has ended\n"
    assert all(eventually(lambda h=host: not h.processes()) for host in lab.hosts)  # type: ignore[misc]
    assert kept.mesh("keep", "stop").out == b"nothing is kept\n"
    assert shown(kept) == NOTHING


def test_one_that_has_only_begun_is_stopped(pod: Home, lab: Lab, own_place: Path) -> None:
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    begun = "from mesh import api; api.exec(['true'], cluster='pod', quiet=True)"
    stop = "print(api.stop_keepers(), api.about_keepers())"
    done = subprocess.run(
        [sys.executable, "-c", f"{begun}; {stop}"], cwd=pod.project, env=pod.environ, capture_output=True, check=False
    )
    assert done.stdout == b"1 []\n", done
    assert eventually(lambda: not os.listdir(own_place))


def test_keeper_of_another_home_is_not_stopped(kept: Home, lab: Lab, tmp_path: Path) -> None:
    """Two homes of one user share the directory of their sockets."""
    (tmp_path / "other").mkdir()
    other = new_home(tmp_path / "other")
    other.environ["XDG_RUNTIME_DIR"] = kept.environ["XDG_RUNTIME_DIR"]
    other.trust(lab)
    assert told(other) == NOTHING
    assert other.mesh("keep", "stop").out == b"nothing is kept\n"
    other.clusters(lab.cluster_yaml("pod", KEEP))
    assert other.mesh("exec", "pod", "true").status == 0
    wait(other)
    assert keeper(other) != keeper(kept)
    assert other.mesh("keep", "stop").out == b"the keeper has ended\n"
    assert told(other) == NOTHING
    with without_logins(lab):
        assert kept.mesh("exec", "pod", "true").status == 0
    wait(kept)


def test_it_ends_by_itself(pod: Home, lab: Lab, own_place: Path) -> None:
    pod.environ["MESH_KEEP"] = "1"
    before = logins(lab)
    assert pod.mesh("exec", "pod", "true").status == 0
    assert eventually(lambda: logins(lab) == before + 2 * len(lab.hosts))  # of the command, and of those that wait
    assert eventually(lambda: told(pod) == NOTHING)


def test_it_can_be_forbidden(pod: Home, lab: Lab, own_place: Path) -> None:
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    pod.environ["MESH_KEEP"] = "0"
    assert pod.mesh("exec", "pod", "true").status == 0
    assert told(pod) == NOTHING
    pod.environ["MESH_KEEP"] = "601"
    done = pod.mesh("exec", "pod", "true")
    assert done.status == 2
    assert "MESH_KEEP: expected seconds from 0 to 600, found 601" in done.err


def test_one_that_hangs_keeps_no_command(kept: Home, lab: Lab) -> None:
    """Too many wait for it already to take another one."""
    number = keeper(kept)
    place = Path(kept.environ["XDG_RUNTIME_DIR"])
    (path,) = [file for file in place.iterdir() if ".mesh-keeper" in file.name and file.suffix != ".lock"]
    os.kill(number, signal.SIGSTOP)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
                    visitor.setblocking(False)
                    visitor.connect(str(path))
        done = kept.mesh("exec", "pod", "echo", "up")
    finally:
        os.kill(number, signal.SIGCONT)
    assert (done.status, done.out.count(b"up")) == (0, 4), done.err


def test_what_is_connected_while_it_is_stopped_waits_nowhere(kept: Home, lab: Lab) -> None:
    first, *others = [host.address for host in lab.hosts]
    wait_for = "echo up; while ! [ -e /tmp/over ]; do sleep 0.05; done"
    client = kept.popen("exec", "--hosts", first, "pod", "sh", "-c", wait_for)
    assert client.stdout is not None
    assert client.stdout.readline()
    with without_logins(lab):
        kept.mesh("exec", "--hosts", ",".join(others), "pod", "true")
        kept.mesh("keep", "stop")
    try:
        assert all(eventually(lambda h=host: not h.processes()) for host in lab.hosts[1:])  # type: ignore[misc]
    finally:
        lab.hosts[0].path("/tmp/over").touch()
        client.communicate(timeout=60)
