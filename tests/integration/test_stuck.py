"""Stopped agents and guardians, for users without privileges: no rank outlives the lease, or `mesh stop`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import eventually

# What leaves its session, ignores SIGTERM and keeps its environment: a plain user has no control group.
ESCAPEE = "setsid sh -c 'trap \"\" TERM; echo escapee $$; exec sleep 5001'"
FAMILY = f"({ESCAPEE} &); trap '' TERM; echo agent $PPID; while :; do sleep 1; done"


class Stuck:
    """A run on one host, and the processes of its first rank."""

    def __init__(self, home: Home, *words: str) -> None:
        self.process = home.popen(*words, "bash", "-c", FAMILY, stdout=subprocess.DEVNULL)
        logs = home.path / ".local/state/mesh/runs"
        pattern = "*/logs/rank-0000.out"
        assert eventually(lambda: any(len(path.read_bytes().splitlines()) == 2 for path in logs.glob(pattern)))
        (log,) = logs.glob(pattern)
        self.run = log.parent.parent.name
        told = dict(line.split() for line in log.read_text().splitlines())
        self.agent, escapee = int(told["agent"]), int(told["escapee"])
        self.guardian = parent(self.agent)
        assert eventually(lambda: "escapee" not in command(escapee))  # it is another program now
        (rank,) = [pid for pid in descendants(self.agent) if "escapee" in command(pid)]
        self.ranks = [rank, escapee]

    def stop(self, whom: str) -> None:
        for pid in {"agent": [self.agent], "guardian": [self.guardian], "both": [self.guardian, self.agent]}[whom]:
            os.kill(pid, signal.SIGSTOP)

    def gone(self, *pids: int, within: float = 30.0) -> bool:
        wanted = pids or (self.agent, self.guardian, *self.ranks)
        return eventually(lambda: not any(lives(pid) for pid in wanted), within)

    def close(self) -> None:
        """End all of it, also where the test has failed."""
        for pid in (self.agent, self.guardian, *self.ranks):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [*children, *(below for child in children for below in descendants(child))]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.sshd
@pytest.mark.parametrize("whom", ["agent", "both"])
def test_mesh_stop_ends_what_does_not_answer(plain_pod: Home, whom: str) -> None:
    stuck = Stuck(plain_pod, "run", "--grace", "1", "--lease", "900", "--ranks", "0", "pod")
    try:
        stuck.stop(whom)
        done = plain_pod.mesh("stop", stuck.run)
        assert (done.status, done.out.decode()) == (0, f"stopped {stuck.run}\n"), done.err
        assert stuck.gone(within=0.0)
        stuck.process.wait(60)
        assert plain_pod.mesh("run", "--ranks", "0", "pod", "true").status == 0
    finally:
        stuck.close()


@pytest.mark.sshd
@pytest.mark.parametrize("whom", ["agent", "guardian"])
def test_nothing_outlives_the_lease_of_a_stopped_agent_or_guardian(plain_pod: Home, whom: str) -> None:
    words = ["--grace", "1", "--lease", "10", "--host-grace", "10", "--ranks", "0", "pod"]
    stuck = Stuck(plain_pod, "run", *words)
    try:
        stuck.stop(whom)
        os.kill(stuck.process.pid, signal.SIGSTOP)  # the client is silent from now on
        pids = [stuck.agent, *stuck.ranks, *([stuck.guardian] if whom == "agent" else [])]
        assert stuck.gone(*pids, within=60.0)
        assert lives(stuck.guardian) is (whom == "guardian")
    finally:
        os.kill(stuck.process.pid, signal.SIGCONT)
        stuck.close()


@pytest.mark.sshd
def test_the_next_run_takes_a_host_from_an_agent_and_a_guardian_that_are_stopped(plain_pod: Home) -> None:
    stuck = Stuck(plain_pod, "run", "--grace", "1", "--lease", "900", "--host-grace", "10", "--ranks", "0", "pod")
    try:
        stuck.stop("both")
        _, err = stuck.process.communicate(timeout=60)
        assert stuck.process.returncode == 76
        told = rb"connection lost\. Its ranks end by \d\d:\d\d \(lease 15 min\); to end them sooner: mesh stop "
        assert re.search(told + stuck.run.encode(), err)
        done = plain_pod.mesh("run", "--ranks", "0", "pod", "echo", "mine")
        assert (done.status, done.lines) == (0, ["[0] mine"]), done.err
        assert stuck.gone()
    finally:
        stuck.close()


def test_a_host_that_takes_nothing_is_lost_alone(home: Home) -> None:
    """Its connection blocks who sends: the other host gets its beats all the same."""
    words = ["--stdin", "all", "--grace", "1", "--host-grace", "18", "--lease", "30", "local:2"]
    # More than a host that is stopped takes, and not all that the processor can make.
    source = subprocess.Popen(
        ["sh", "-c", "while head -c 2000000 /dev/zero; do sleep 0.3; done"], stdout=subprocess.PIPE
    )
    script = "echo $PPID; exec cat >/dev/null"
    process = home.popen("run", *words, "sh", "-c", script, stdin=source.stdout)
    try:
        assert source.stdout is not None
        assert process.stdout is not None
        source.stdout.close()
        agents = dict(process.stdout.readline().split() for _ in range(2))
        agent = int(agents[b"[1]"])
        guardian = parent(agent)
        os.kill(agent, signal.SIGSTOP)
        _, err = process.communicate(timeout=90)
        assert process.returncode == 76, err
        assert b"lost contact with local-1 (rank 1)" in err
        assert b"local-0" not in err
        assert eventually(lambda: not lives(agent) and not lives(guardian))
    finally:
        source.kill()
        source.wait()
        process.kill()
        process.communicate()
