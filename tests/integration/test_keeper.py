"""Connections that outlive a command, for the next one."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

NOTHING = "nothing is kept"


@pytest.fixture
def kept(pod: Home, lab: Lab) -> Iterator[Home]:
    """A user whose connections are kept, once an agent waits on every host."""
    pod.clusters(lab.cluster_yaml("pod", "keep: 60"))
    assert pod.mesh("exec", "pod", "true").status == 0
    wait(pod)
    yield pod
    pod.mesh("keep", "stop")
    assert told(pod) == NOTHING


def told(pod: Home) -> str:
    return pod.mesh("keep").out.decode().strip()


def wait(pod: Home) -> None:
    assert eventually(lambda: "an agent on 4 hosts" in told(pod)), told(pod)


def keeper(pod: Home) -> int:
    found = re.search(r"process (\d+)", told(pod))
    assert found
    return int(found.group(1))


def logins(lab: Lab) -> int:
    return sum(host.path("/var/log/sshd.log").read_text().count("Accepted publickey") for host in lab.hosts)


def test_the_next_command_logs_in_nowhere(kept: Home, lab: Lab) -> None:
    for number in range(3):
        before = logins(lab)
        done = kept.mesh("run", "pod", "sh", "-c", f"echo $RANK {number}; [ $RANK = 3 ] && exit {number}; true")
        assert done.status == number, done.err
        assert sorted(done.out.split(b"\n")[:-1]) == [b"[%d] %d %d" % (rank, rank, number) for rank in range(4)]
        wait(kept)
        assert logins(lab) == before + 4  # of those that wait for the next one
    assert b"kept for the next command" in kept.mesh("ps", "pod").out  # which has taken the agents itself


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
    rest, err = client.communicate(timeout=60)
    assert client.returncode == 0, err
    lines = [*first, *rest.splitlines(keepends=True)]
    expected = [b"[%d] line %d\n" % (rank, number) for rank in range(4) for number in range(1, 301)]
    assert sorted(lines) == sorted(expected)


def test_what_ended_meanwhile_is_started_again(kept: Home, lab: Lab) -> None:
    lab.end_all(lab.hosts[1])
    done = kept.mesh("exec", "pod", "echo", "up")
    assert (done.status, done.out.count(b"up")) == (0, 4), done.err
    wait(kept)


def test_nothing_waits_on_hosts_once_it_is_stopped(kept: Home, lab: Lab) -> None:
    assert all(host.processes() for host in lab.hosts)
    assert kept.mesh("keep", "stop").out == b"nothing is kept any more\n"
    assert all(eventually(lambda h=host: not h.processes()) for host in lab.hosts)  # type: ignore[misc]
    assert kept.mesh("keep", "stop").out == b"nothing is kept\n"


def test_it_ends_by_itself(pod: Home, lab: Lab) -> None:
    pod.environ["MESH_KEEP"] = "1"
    assert pod.mesh("exec", "pod", "true").status == 0
    assert eventually(lambda: told(pod) != NOTHING)
    assert eventually(lambda: told(pod) == NOTHING)


def test_it_can_be_forbidden(pod: Home, lab: Lab) -> None:
    pod.clusters(lab.cluster_yaml("pod", "keep: 60"))
    pod.environ["MESH_KEEP"] = "0"
    assert pod.mesh("exec", "pod", "true").status == 0
    assert told(pod) == NOTHING
    pod.environ["MESH_KEEP"] = "601"
    done = pod.mesh("exec", "pod", "true")
    assert done.status == 2
    assert "MESH_KEEP: expected seconds from 0 to 600, found 601" in done.err
