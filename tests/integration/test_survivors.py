"""Agents that are killed: only the processes that they have left are ended, and the verdict names the host."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Home

pytestmark = [pytest.mark.sshd]


def agents_of(process: subprocess.Popen[bytes], count: int) -> dict[int, int]:
    """Read the line ``up PID`` of every rank, where PID is that of the rank's agent; return these by rank."""
    assert process.stdout is not None
    found = {}
    for _ in range(count):
        label, _, pid = process.stdout.readline().split()
        found[int(label.strip(b"[]"))] = int(pid)
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_together(*pids: int) -> None:
    """Kill processes so that none of them sees the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_lost_agent_leaves_ranks_of_another_host_on_the_same_machine(plain_pod: Home, *, detached: bool) -> None:
    """Hosts that share a PID namespace: each sees the processes of the others."""
    words = ["--grace", "0.5", "pod", "sh", "-c", "echo up $PPID; exec sleep 4567"]
    if detached:
        started = plain_pod.mesh("run", "-d", *words)
        assert started.status == 0, started.err
        process = plain_pod.popen("attach", started.out.decode().strip())
    else:
        process = plain_pod.popen("run", *words)
    agent = agents_of(process, 2)[1]
    kill_together(parent_of(agent), agent)
    _, err = process.communicate(timeout=60)
    told = err.decode()
    assert process.returncode == 76, told
    assert "host 127.0.0.3" in told
    assert "(rank 1) was lost first" in told
    assert "rank 0 stopped by mesh" in told
