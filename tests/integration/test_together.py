"""Hosts that keep a run without a client end it together, by what their agents tell each other."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Home
from tests.integration.test_attach import left
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]

LOST_S = 10  # that a host may be silent, where one falls silent
GRACE = 120  # the same where none does: a host with much to do is not lost
GENEROUS_S = 120.0
TRIES_MAX = 5  # of a kill that comes in time
# What comes from anywhere but the client is dropped; the local table must come after that.
BLOCK = (
    "ip rule add pref 3 lookup local; ip rule del pref 0; ip rule add pref 1 from {} lookup local; "
    "ip rule add pref 2 iif eth0 ipproto tcp blackhole"
)
UNBLOCK = "ip rule add pref 0 lookup local; ip rule del pref 1; ip rule del pref 2; ip rule del pref 3"
WAIT = "while ! [ -e /tmp/fail ]; do sleep 0.05; done; exit 7"


@pytest.fixture(scope="module")
def session_eight() -> Iterator[Lab]:
    with Lab(8, visible=[Path(sys.prefix), Path(sys.base_prefix), REPOSITORY]) as lab:
        yield lab


@pytest.fixture
def eight(session_eight: Lab, home: Home) -> Iterator[Lab]:
    home.clusters(session_eight.cluster_yaml())
    home.trust(session_eight)
    yield session_eight
    try:
        for host in session_eight.hosts:
            assert eventually(lambda h=host: not h.processes(), 20.0), f"left on {host.name}: {host.processes()}"
    finally:
        session_eight.in_switch("ip", "link", "set", "up0", "up")
        session_eight.reset()


def started(home: Home, lab: Lab, host_grace: int = GRACE) -> str:
    """A run that nobody looks after any more: every link of the client's machine is cut."""
    run = left(home, f"--host-grace={host_grace}", "--grace=1", "pod", "sh", "-c", WAIT)
    lab.in_switch("ip", "link", "set", "up0", "down")
    return run


def are_done(hosts: list[TestHost]) -> bool:
    return eventually(lambda: not any(host.processes() for host in hosts), GENEROUS_S)


def test_a_failed_rank_ends_the_others(home: Home, eight: Lab) -> None:
    run = started(home, eight)
    eight.hosts[5].path("/tmp/fail").touch()
    assert are_done(eight.hosts)
    eight.in_switch("ip", "link", "set", "up0", "up")
    come_back = home.mesh("attach", run)
    assert come_back.status == 7, come_back.err
    assert f"rank 5 on {eight.hosts[5].address} failed first: exit 7" in come_back.err
    assert "ranks 0-4,6-7 stopped by mesh" in come_back.err


def test_a_lost_hub_ends_the_others(home: Home, eight: Lab) -> None:
    """Rank 0's host is gone without a word; afterwards it is found as if it had been started anew."""
    first, *others = eight.hosts
    run = started(home, eight, LOST_S)
    first.cut()
    assert are_done(others)
    assert are_done([first])  # it believes that the others are lost
    first.mend()
    eight.in_switch("ip", "link", "set", "up0", "up")
    come_back = home.mesh("attach", run)
    assert come_back.status == 76, come_back.err
    assert f"silent for {LOST_S} s" in come_back.err


@pytest.mark.parametrize("how", ["all that runs there is killed", "its agent is told to end, as when a host goes down"])
def test_a_killed_agent_is_a_lost_host(home: Home, eight: Lab, how: str) -> None:
    run = started(home, eight)
    third = eight.hosts[3]
    if "told" in how:
        for pid in [pid for pid, command in third.processes() if is_agent(command)]:
            with contextlib.suppress(ProcessLookupError):  # it ends when another of them has ended
                os.kill(pid, signal.SIGTERM)
    else:
        eight.end_all(third)
    assert are_done(eight.hosts)
    eight.in_switch("ip", "link", "set", "up0", "up")
    come_back = home.mesh("attach", run)
    assert come_back.status == 76, come_back.err
    assert f"lost contact with {third.address} (rank 3)" in come_back.err


def test_a_link_that_is_cut_for_a_while_changes_nothing_and_success_is_told(home: Home, eight: Lab) -> None:
    """Ranks that end well at different times: nobody who has left is missed."""
    wait = "while ! [ -e /tmp/done ]; do sleep 0.05; done; echo well"
    run = left(home, f"--host-grace={GRACE}", "pod", "sh", "-c", wait)
    eight.hosts[0].path("/tmp/done").touch()
    fourth = eight.hosts[4]
    fourth.cut()
    for host in eight.hosts[1:4]:
        host.path("/tmp/done").touch()
    assert are_done(eight.hosts[1:4])
    fourth.mend()
    for host in eight.hosts[4:]:
        host.path("/tmp/done").touch()
    assert are_done(eight.hosts)
    come_back = home.mesh("attach", run)
    assert come_back.status == 0, come_back.err
    assert come_back.out.count(b"well\n") == 8


def test_a_firewall_between_them_is_told_at_the_start_and_who_comes_back_ends_them(home: Home, eight: Lab) -> None:
    first = eight.hosts[0]
    client = ".".join(first.address.split(".")[:2]) + ".0.1"
    first.script(BLOCK.format(client))
    try:
        done = home.mesh("run", "-d", f"--host-grace={GRACE}", "--grace=1", "pod", "sh", "-c", WAIT)
        assert done.status == 0, done.err
        assert f"cannot reach {first.address}" in done.err
        run = done.out.decode().strip()
        eight.hosts[5].path("/tmp/fail").touch()
        assert are_done([eight.hosts[5]])
        assert eight.hosts[6].processes()
        come_back = home.mesh("attach", run)
        assert come_back.status == 7, come_back.err
        assert are_done(eight.hosts)
    finally:
        first.script(UNBLOCK)


def test_a_client_that_is_killed_before_the_agents_have_met_leaves_no_rank(home: Home, eight: Lab) -> None:
    """A firewall keeps the agents from meeting: the client stays for some seconds once the hosts have detached."""
    first = eight.hosts[0]
    client = ".".join(first.address.split(".")[:2]) + ".0.1"
    first.script(BLOCK.format(client))
    try:
        for _ in range(TRIES_MAX):
            run = home.popen("run", "-d", "--grace=1", "pod", "sh", "-c", f"touch /tmp/begun; {WAIT}")
            assert eventually(lambda: all(host.path("/tmp/begun").exists() for host in eight.hosts), GENEROUS_S)
            run.kill()
            run.communicate()
            if run.returncode == -signal.SIGKILL:
                break
            # It was gone before, because this test stood still for longer than it stays.
            assert home.mesh("stop", "last").status == 0
            for host in eight.hosts:
                host.path("/tmp/begun").unlink()
        assert run.returncode == -signal.SIGKILL
        assert are_done(eight.hosts)
    finally:
        first.script(UNBLOCK)
