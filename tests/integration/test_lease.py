"""Ranks that outlive their client's interest: a host that was cut off, agents and guardians that do not answer."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.integration.test_supervision import ESCAPEES, connections, find, gone, groups
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

SILENT = 16.0  # seconds without a beat after which an agent waits for its lease, and not for 5 s
TALKS = "echo up; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done"


def start(pod: Home, *words: str, ranks: int = 4) -> subprocess.Popen[bytes]:
    """Start a run, and wait until every rank has printed a line. The rest of its output goes nowhere."""
    process = pod.popen(*words, stdout=subprocess.DEVNULL)
    logs = pod.path / ".local/state/mesh/runs"
    assert eventually(lambda: sum(bool(path.stat().st_size) for path in logs.glob("*/logs/rank-*.out")) == ranks)
    return process


def run_of(pod: Home) -> str:
    return min(path.name for path in (pod.path / ".local/state/mesh/runs").iterdir())


def lose_a_host(pod: Home, lab: Lab, *options: str) -> tuple[TestHost, str]:
    """Have a run end because a host is cut off; the host is back when its agent waits for its lease."""
    host = lab.hosts[1]
    process = start(pod, "run", "--grace", "1", "--host-grace", "12", *options, "pod", "sh", "-c", TALKS)
    host.cut()
    cut = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 76, err
    time.sleep(max(0.0, cut + SILENT - time.monotonic()))  # the fault itself takes time
    for pid in connections(host):  # or the kernel would still deliver beats that were on their way
        os.kill(pid, signal.SIGKILL)
    host.mend()
    assert any("echo line" in command for _, command in host.processes())
    return host, err.decode()


@pytest.fixture
def lost(pod: Home, lab: Lab) -> tuple[TestHost, str]:
    return lose_a_host(pod, lab, "--lease", "900")


def test_the_next_run_takes_over_a_host_that_was_cut_off(pod: Home, lab: Lab, lost: tuple[TestHost, str]) -> None:
    host, err = lost
    run = run_of(pod)
    (line,) = [line for line in err.splitlines() if f"{host.address}: connection lost" in line]
    told = rf"{host.address}: connection lost\. Its ranks end by \d\d:\d\d \(lease 15 min\); to end them sooner: "
    assert re.search(told + f"mesh stop {run}$", line), line
    done = pod.mesh("run", "pod", "sh", "-c", "echo mine")
    assert done.status == 0, done.err
    assert done.lines == [f"[{rank}] mine" for rank in range(4)]
    assert not any("echo line" in command for _, command in host.processes())
    assert gone(host)
    assert groups(pod) == []
    kept = journal(host, run)
    assert b'"type":"exited"' in kept
    assert b'"type":"gone"' in kept
    (log,) = pod.path.glob(f".local/state/mesh/runs/{run}/logs/rank-0001.out")
    last = int(log.read_bytes().split()[-1])
    assert b"line %d\n" % (last + 1) in kept  # it begins where the client has lost the connection


def journal(host: TestHost, run: str) -> bytes:
    """The journal of a run on a host: the frames in order."""
    (place,) = host.path("/root/.mesh/machines").glob(f"*/tape-{run}-1")
    pieces = sorted((path for path in place.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    return b"".join(path.read_bytes() for path in pieces)


def test_another_machine_is_told_when_the_lease_ends(
    pod: Home, lab: Lab, lost: tuple[TestHost, str], tmp_path: Path
) -> None:
    """It cannot know that the run has ended: `mesh stop` frees the host all the same."""
    host, _ = lost
    run = run_of(pod)
    elsewhere = Elsewhere(tmp_path / "elsewhere", pod.project, {**pod.environ, "HOME": str(tmp_path / "elsewhere")})
    elsewhere.clusters(lab.cluster_yaml())
    elsewhere.trust(lab)
    busy = elsewhere.mesh("run", "pod", "true")
    assert busy.status == 75, busy.err
    assert re.search(r"no sign of its client: its ranks end by \d\d:\d\d", busy.err)
    (line,) = json.loads(elsewhere.mesh("ps", "pod", "--json").out)
    assert (line["run"], line["state"], line["attached"]) == (run, "running", False)
    done = elsewhere.mesh("stop", run, "--cluster", "pod")
    assert (done.status, done.out.decode()) == (0, f"stopped {run}\n"), done.err
    assert not any("echo line" in command for _, command in host.processes())
    assert elsewhere.mesh("run", "pod", "true").status == 0
    assert pod.mesh("ps", "pod").status == 0  # the agent waits for its client, which is over
    assert gone(host)
    assert b'"type":"gone"' in journal(host, run)


class Elsewhere(Home):
    """The same user on another machine."""

    def argv(self, *words: str) -> list[str]:
        return ["unshare", "-u", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh", *super().argv(*words)]


def test_any_command_ends_the_ranks_of_a_host_that_was_cut_off(pod: Home, lost: tuple[TestHost, str]) -> None:
    host, _ = lost
    assert pod.mesh("exec", "pod", "true").status == 0
    assert gone(host)


def test_mesh_stop_frees_a_host_that_was_cut_off(pod: Home, lost: tuple[TestHost, str]) -> None:
    host, _ = lost
    done = pod.mesh("stop", run_of(pod))
    assert done.status == 0, done.err
    assert gone(host)


def test_mesh_clean_frees_a_host_that_was_cut_off(pod: Home, lost: tuple[TestHost, str]) -> None:
    host, _ = lost
    done = pod.mesh("clean", "pod")
    assert done.status == 0, done.err
    assert not any("echo line" in command for _, command in host.processes())
    assert gone(host)


def stop_processes(host: TestHost, whom: str) -> list[int]:
    """Stop a host's agent, guardian or both with SIGSTOP; returns their pids."""
    wanted = {"agent": [True], "guardian": [False], "both": [False, True]}[whom]
    pids = [find(host, agent=is_agent) for is_agent in wanted]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def finish(process: subprocess.Popen[bytes]) -> str:
    _, err = process.communicate(timeout=60)
    return err.decode()


def test_ranks_of_a_stopped_agent_end_with_its_lease(pod: Home, lab: Lab) -> None:
    words = ["--grace", "1", "--lease", "10", "--host-grace", "10", "pod", "bash", "-c", ESCAPEES]
    process = start(pod, "run", *words)
    host = lab.hosts[1]
    stop_processes(host, "agent")
    assert "connection lost. Its ranks end by " in finish(process)
    assert process.returncode == 76
    assert gone(host)
    assert groups(pod) == []


def test_ranks_of_a_stopped_guardian_end_with_the_lease(pod: Home, lab: Lab) -> None:
    words = ["--grace", "1", "--lease", "10", "--host-grace", "10", "pod", "bash", "-c", ESCAPEES]
    process = start(pod, "run", *words)
    host = lab.hosts[1]
    (guardian,) = stop_processes(host, "guardian")
    host.cut()
    finish(process)
    assert process.returncode == 76
    assert eventually(lambda: [pid for pid, _ in host.processes()] == [guardian])
    host.mend()
    assert pod.mesh("run", "pod", "true").status == 0  # the stopped guardian does not hold the lock
    os.kill(guardian, signal.SIGCONT)
    assert gone(host)


@pytest.mark.parametrize("whom", ["agent", "guardian", "both"])
def test_mesh_stop_ends_an_agent_that_does_not_answer(pod: Home, lab: Lab, whom: str) -> None:
    process = start(pod, "run", "--grace", "1", "--lease", "900", "pod", "bash", "-c", ESCAPEES)
    host = lab.hosts[1]
    stopped = stop_processes(host, whom)
    done = pod.mesh("stop", "last")
    assert (done.status, done.out.decode()) == (0, f"stopped {run_of(pod)}\n"), done.err
    if whom == "guardian":  # its agent answers, and ends the ranks; nothing has to be done about the guardian
        assert eventually(lambda: [pid for pid, _ in host.processes()] == stopped)
        os.kill(stopped[0], signal.SIGCONT)
    else:
        assert eventually(lambda: host.processes() == [])  # the kernel takes a moment for a process that is killed
    finish(process)
    assert gone(*lab.hosts)
    assert groups(pod) == []
    assert pod.mesh("run", "pod", "true").status == 0


def test_the_next_run_ends_an_agent_and_a_guardian_that_do_not_answer(pod: Home, lab: Lab) -> None:
    words = ["--grace", "1", "--lease", "900", "--host-grace", "10", "pod", "bash", "-c", ESCAPEES]
    process = start(pod, "run", *words)
    host = lab.hosts[1]
    stop_processes(host, "both")
    finish(process)
    assert process.returncode == 76
    done = pod.mesh("run", "pod", "sh", "-c", "echo mine")
    assert done.status == 0, done.err
    assert done.lines == [f"[{rank}] mine" for rank in range(4)]
    assert gone(host)
    assert groups(pod) == []


def test_mesh_clean_names_a_run_that_it_could_not_ask(pod: Home, lab: Lab) -> None:
    process = start(pod, "run", "--grace", "1", "--host-grace", "60", "pod", "sh", "-c", TALKS)
    host = lab.hosts[1]
    stopped = stop_processes(host, "both")
    run = run_of(pod)
    for words in (["clean", "pod"], ["clean", "pod", "--dry-run"]):
        done = pod.mesh(*words)
        assert done.status == 1, done.err
        assert f"{host.address}: run {run}: its agent does not answer" in done.out.decode()
        assert "nothing is left" not in done.out.decode()
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert any("echo line" in command for _, command in host.processes())
    process.send_signal(signal.SIGINT)
    finish(process)
    assert process.returncode == 130
