"""Two Unix users on one machine: each has locks of its own, and learns of the other one by notes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home, new_home
from tests.lab import Lab, TestHost, eventually, make_key

pytestmark = [pytest.mark.root, pytest.mark.sshd]
UP = ["sh", "-c", "echo up; exec sleep 1000"]


@pytest.fixture(scope="module")
def machine() -> Iterator[Lab]:
    """Two hosts with the users ana and ben."""
    with Lab(2) as lab:
        make_key(lab.directory / "ana and ben", "key")
        for host in lab.hosts:
            for user in ("ana", "ben"):
                host.run("useradd", "-m", "-s", "/bin/bash", user)
                host.run("usermod", "-p", "*", user)
            public = (lab.directory / "ana and ben.pub").read_text()
            host.path("/etc/ssh/authorized_keys").write_text(public)
        yield lab


def user(tmp_path: Path, lab: Lab, name: str) -> Home:
    """A client whose runs are those of one of the users."""
    (tmp_path / name).mkdir()
    home = new_home(tmp_path / name)
    home.trust(lab)
    listed = "".join(f"    - {host.address}\n" for host in lab.hosts)
    home.clusters(f"pod:\n  user: {name}\n  identity_file: {lab.directory}/ana and ben\n  hosts:\n{listed}")
    return home


@pytest.fixture
def ana(tmp_path: Path, machine: Lab) -> Home:
    return user(tmp_path, machine, "ana")


@pytest.fixture
def ben(tmp_path: Path, machine: Lab) -> Iterator[Home]:
    yield user(tmp_path, machine, "ben")
    for host in machine.hosts:
        assert eventually(lambda host=host: not host.processes()), host.processes()


def notes(*hosts: TestHost) -> list[str]:
    return [
        path.name for host in hosts for place in ("/tmp", "/run/lock") for path in host.path(place).glob("mesh-*-*")
    ]


def start(home: Home) -> subprocess.Popen[bytes]:
    process = home.popen("run", "pod", *UP)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().endswith(b"up\n")
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def run_of(home: Home) -> str:
    return max(path.name for path in (home.path / ".local/state/mesh/runs").iterdir())


def test_a_run_names_the_other_user_of_its_hosts(ana: Home, ben: Home, machine: Lab) -> None:
    first = start(ana)
    names = ", ".join(host.address for host in machine.hosts)
    done = ben.mesh("run", "pod", "true")
    assert done.status == 0, done.err
    assert re.search(rf"==> {names} are also used by ana since \d\d:\d\d \(run {run_of(ana)}\)\n", done.err)
    (line,) = [line for line in done.err.splitlines() if "ana" in line]
    assert "ben" not in line
    assert "also used" not in ben.mesh("exec", "pod", "true").err
    stop(first)
    assert notes(*machine.hosts) == []
    assert "also used" not in ben.mesh("run", "pod", "true").err


def test_exclusive_refuses_hosts_with_a_run_of_another_user(ana: Home, ben: Home, machine: Lab) -> None:
    first = start(ana)
    done = ben.mesh("run", "--exclusive", "pod", "touch", "started")
    assert done.status == 75, done.err
    assert re.search(rf"busy with ana since \d\d:\d\d \(run {run_of(ana)}\)", done.err)
    assert "--exclusive" in done.err
    assert not list(machine.hosts[0].path("/home/ben").glob(".mesh/workspaces/*/started"))
    waiting = ben.popen("run", "--exclusive", "--wait", "240", "pod", "touch", "started")
    assert waiting.stderr is not None
    assert any(b"busy with ana" in line for line in waiting.stderr)
    stop(first)
    waiting.communicate(timeout=240)
    assert waiting.returncode == 0
    assert list(machine.hosts[0].path("/home/ben").glob(".mesh/workspaces/*/started"))


def test_a_killed_agent_keeps_no_other_user_from_a_host(ana: Home, ben: Home, machine: Lab) -> None:
    first = start(ana)
    for host in machine.hosts:
        machine.end_all(host)
    first.communicate(timeout=60)
    done = ben.mesh("run", "--exclusive", "pod", "true")
    assert done.status == 0, done.err
    assert ana.mesh("run", "--exclusive", "pod", "true").status == 0
    assert notes(*machine.hosts) == []


def test_check_names_the_other_user(ana: Home, ben: Home, machine: Lab) -> None:
    def users() -> list[str]:
        reports = json.loads(ben.mesh("check", "--json", "pod").out)
        return [one["detail"] for report in reports for one in report["checks"] if one["name"] == "users"]

    assert users() == ["no run of another user; mesh's lock counts for one Unix user alone"] * 2
    first = start(ana)
    assert [told[:22] for told in users()] == ["also used by ana since"] * 2
    stop(first)


def test_exclusive_is_for_a_run_with_a_lock(ben: Home) -> None:
    assert ben.mesh("run", "--exclusive", "--share", "pod", "true").status == 2
    assert ben.mesh("exec", "--exclusive", "pod", "true").status == 2
