"""``backend: command``: hosts that are entered by a command, here the namespaces of the test hosts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import Lab, eventually, is_agent

pytestmark = [pytest.mark.root]
ENTER = 'nsenter, -t, "{name}", -m, -u, -i, -n, -p, -w, --, env, -i, HOME=/root, "PATH=/usr/local/bin:/usr/bin:/bin"'


@pytest.fixture
def entered(home: Home, lab: Lab) -> Home:
    """A user who knows two hosts as the cluster ``pod``, by the process that has their namespaces."""
    hosts = "".join(f'    - {{host: "{host.pid}", internal_ip: {host.address}}}\n' for host in lab.hosts[:2])
    home.clusters(f"pod:\n  backend: command\n  command: [{ENTER}]\n  hosts:\n{hosts}")
    return home


def entering(lab: Lab) -> list[str]:
    """Return what runs on this machine to enter a host."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"nsenter" and words[2] in [b"%d" % host.pid for host in lab.hosts]:
            found.append(b" ".join(words).decode())
    return found


def test_run_sync_and_exec(entered: Home, lab: Lab) -> None:
    entered.files(a__txt="sent\n")
    done = entered.mesh("run", "pod", "sh", "-c", "cat a.txt; hostname; echo $MASTER_ADDR $WORLD_SIZE")
    assert done.status == 0, done.err
    first = lab.hosts[0]
    for rank, host in enumerate(lab.hosts[:2]):
        shown = [line for line in done.lines if line.startswith(f"[{rank}] ")]
        assert shown == sorted([f"[{rank}] sent", f"[{rank}] {host.name}", f"[{rank}] {first.address} 2"])
    done = entered.mesh("exec", "--fold", "exact", "pod", "hostname")
    assert (done.status, sorted(done.lines)) == (0, ["[0] h00", "[1] h01"]), done.err
    assert entered.mesh("exec", "pod", "sh", "-c", "exit 3").status == 3
    assert eventually(lambda: not any(is_agent(command) for host in lab.hosts for _, command in host.processes()))


def test_detach_and_attach(entered: Home) -> None:
    started = entered.mesh("run", "-d", "pod", "sh", "-c", "until [ -e /tmp/go ]; do sleep 0.1; done; echo on $RANK")
    assert started.status == 0, started.err
    run = started.out.decode().strip()
    assert run in entered.mesh("ps", "pod").out.decode()
    done = entered.mesh("exec", "pod", "touch", "/tmp/go")
    assert done.status == 0, done.err
    done = entered.mesh("attach", "--from", "start", run)
    assert (done.status, sorted(done.lines)) == (0, ["[0] on 0", "[1] on 1"]), done.err


def test_nothing_survives_a_killed_client(entered: Home, lab: Lab) -> None:
    process = entered.popen(
        "run", "--grace", "1", "pod", "bash", "-c", "trap '' TERM; setsid sleep 4321 & echo up; sleep 4321"
    )
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    process.kill()
    process.communicate()
    assert eventually(lambda: not [host.processes() for host in lab.hosts[:2] if host.processes()])
    assert eventually(lambda: not entering(lab)), entering(lab)


def test_a_lost_agent_is_named(entered: Home, lab: Lab) -> None:
    process = entered.popen("run", "--grace", "0.5", "pod", "sh", "-c", "echo up; exec sleep 4321")
    assert process.stdout is not None
    for _ in range(2):
        process.stdout.readline()
    agents = [pid for pid, command in lab.hosts[1].processes() if is_agent(command)]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none reports how another ended
        for pid in agents:
            os.kill(pid, number)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 76, err
    assert f"host {lab.hosts[1].pid}".encode() in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("[no-such-program, x]", "cannot start 'no-such-program' here: No such file or directory"),
        (
            '[sh, -c, "echo no container {name} >&2; exit 1"]',
            "ended before mesh's agent started (exit 1): no container a",
        ),
        ("[env, -i, PATH=/nowhere]", "no python3 there"),
    ],
    ids=["no such program", "the program fails", "no Python"],
)
def test_a_command_that_reaches_no_host_is_explained(home: Home, command: str, message: str) -> None:
    home.clusters(f"pod:\n  backend: command\n  command: {command}\n  hosts: [a]\n")
    done = home.mesh("exec", "pod", "true")
    assert done.status == 125
    assert message in done.err


def test_a_command_that_starts_no_agent_is_given_up(home: Home) -> None:
    home.clusters("pod:\n  backend: command\n  command: [sh, -c, exec sleep 999]\n  hosts: [a]\n")
    done = home.mesh("exec", "--connect-timeout", "1", "pod", "true")
    assert done.status == 125
    assert "did not start mesh's agent within 1 s" in done.err


def test_check_shows_the_steps_that_there_are(entered: Home) -> None:
    done = entered.mesh("check", "--json", "pod")
    assert done.status == 0, done.out.decode() + done.err
    names = {one["name"] for report in json.loads(done.out) for one in report["checks"]}
    assert {"reachable", "python3", "network"} <= names
    assert not {"host key", "login"} & names


def test_a_shell_and_a_plan(entered: Home, lab: Lab) -> None:
    done = entered.mesh("ssh", "pod:1", "hostname")
    assert (done.status, done.out) == (0, b"h01\n"), done.err
    plan = entered.mesh("run", "--dry-run", "pod", "true").out.decode()
    assert f"(nsenter -t {lab.hosts[0].pid} " in plan
