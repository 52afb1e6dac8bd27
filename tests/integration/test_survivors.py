"""Agents that are killed: only the processes that they have left are ended, and the verdict names the host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually, is_agent

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
    assert "(rank 1)" in told
    assert "lost contact with" in told
    assert "rank 0 stopped by mesh" in told


EVERY_PYTHON = [("pkill", "python"), ("pkill", "-f", "python"), ("killall", "python3")]


@pytest.mark.root
@pytest.mark.parametrize("words", EVERY_PYTHON, ids=" ".join)
def test_command_that_kills_every_python_spares_agents(pod: Home, words: tuple[str, ...]) -> None:
    pod.files(mesh__yaml=f"prerun: ['{' '.join(words)}; true']\n")
    done = pod.mesh("run", "pod", *words)
    assert done.status == 1, done.err  # no process matched


KILL_AGENTS = (
    "for pid in /proc/[0-9]*; do read -r name <$pid/comm; case $name in {}) kill -{} ${{pid#/proc/}};; esac; done"
)
# Goes on until all hosts are told together, and kills the agent here also where mesh ends the run before.
DEAF_UNTIL_TOLD = (
    "trap is_over=1 TERM; touch ~/ready; until [ -e ~/told ]; do sleep 0.02; done; {}; "
    '[ -z "$is_over" ] || exit 143; trap - TERM; exec sleep 4567'
)
DEATHS = {
    "SIGTERM for all": ("mesh-*", 15, "by signal 15"),
    "SIGKILL for agents": ("mesh-agent", 9, "by signal 9"),
    "SIGKILL for all": ("mesh-*", 9, "by a signal"),
}


def tell_all(process: subprocess.Popen[bytes], lab: Lab) -> str:
    """Have the ranks of all hosts go on at the same time, once all are ready; return what mesh wrote to its end."""
    assert eventually(lambda: all(host.path("/root/ready").exists() for host in lab.hosts))
    for host in lab.hosts:
        host.path("/root/told").touch()
    _, err = process.communicate(timeout=60)
    return err.decode()


@pytest.mark.root
@pytest.mark.parametrize("how", DEATHS)
def test_verdict_names_likely_cause_of_death_of_every_agent(pod: Home, lab: Lab, how: str) -> None:
    name, number, by = DEATHS[how]
    kill = f"{KILL_AGENTS.format(name, number)} 2>&1"
    process = pod.popen("run", "--grace", "20", "pod", "-c", DEAF_UNTIL_TOLD.format(kill))
    err = tell_all(process, lab)
    assert process.returncode == 76, err
    assert f"every agent was killed {by} within" in err
    assert "Likely cause: the command or prerun runs pkill, killall" in err


@pytest.mark.root
@pytest.mark.parametrize("how", ["SIGTERM for all", "SIGKILL for agents"])
def test_likely_cause_is_named_for_prerun_whose_log_exists(pod: Home, lab: Lab, how: str) -> None:
    name, number, by = DEATHS[how]
    (pod.project / "kill.sh").write_text(DEAF_UNTIL_TOLD.format(KILL_AGENTS.format(name, number)) + "\n")
    pod.files(mesh__yaml="prerun: [bash kill.sh]\n")
    process = pod.popen("run", "--grace", "20", "pod", "true")
    err = tell_all(process, lab)
    assert process.returncode == 125, err
    assert f"every agent was killed {by} within" in err
    assert "not verified" not in err
    (logs,) = (pod.path / ".local/state/mesh/runs").glob("*/logs")
    for host in lab.hosts:
        assert "agent" in (logs / f"prerun-{host.address}.log").read_text()


@pytest.mark.root
def test_host_is_not_verified_where_agent_and_guardian_are_killed_in_prerun(pod: Home, lab: Lab) -> None:
    kill = KILL_AGENTS.format("mesh-*", 9)
    (pod.project / "kill.sh").write_text(f"sleep 0.5; [ $RANK != 2 ] || {{ {kill}; }}; sleep 4567\n")
    pod.files(mesh__yaml="prerun: [sh kill.sh]\n")
    done = pod.mesh("run", "--grace", "1", "pod", "true")
    assert done.status == 125, done.err
    assert f"not verified: {lab.hosts[2].address}: " in done.err
    lab.end_all(lab.hosts[2])


@pytest.mark.root
def test_likely_cause_is_not_named_for_one_host_of_several(pod: Home, lab: Lab) -> None:
    kill = KILL_AGENTS.format("mesh-agent", 9)
    done = pod.mesh("run", "--grace", "1", "pod", "-c", f"sleep 0.5; [ $RANK != 2 ] || {kill}; sleep 4567")
    assert done.status == 76, done.err
    assert f"lost contact with {lab.hosts[2].address} (rank 2)" in done.err
    assert "Likely cause" not in done.err


@pytest.fixture(scope="module")
def session_plain_user_lab() -> Iterator[Lab]:
    with Lab(2, user="plain") as lab:
        yield lab


@pytest.fixture
def plain_user_pod(home: Home, session_plain_user_lab: Lab) -> Iterator[Home]:
    """A user who logs in as a plain user to two hosts, and may make no control group there."""
    home.clusters(session_plain_user_lab.cluster_yaml())
    home.trust(session_plain_user_lab)
    yield home
    session_plain_user_lab.reset()


CLOSED = "</dev/null >/dev/null 2>&1"
HIDDEN = {
    "holds the output": "cd /; env -i setsid -f sleep 4567",
    "holds stderr only": "cd /; env -i setsid -f sleep 4567 </dev/null >/dev/null",
    "is in the session": f"cd /; env -i sleep 4567 {CLOSED} &",
    "is below one that holds the output": f"cd /; env -i setsid -f sh -c 'sleep 4567 {CLOSED}; true'",
    "is in the session of one that is marked": f"setsid -f sh -c '(cd /; env -i sleep 4567 & sleep 4568 &) {CLOSED}'",
}
INVISIBLE = f"cd /; env -i setsid -f sleep 4567 {CLOSED}"


def sleeps(host: TestHost) -> bool:
    """Return True once the hidden process is what it is to be: it begins as a copy of its parent."""
    return any(command.startswith("sleep 4567") for _, command in host.processes())


def end_by_killing_an_agent(home: Home, lab: Lab, script: str) -> str:
    """Run a script as each rank, kill agent and guardian of rank 1, and return what mesh wrote at the end."""
    process = home.popen("run", "--grace", "1", "pod", "sh", "-c", f"{script}\necho up; sleep 4569")
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().endswith(b"up\n")
    assert eventually(lambda: sleeps(lab.hosts[1]))
    kill_together(*(pid for pid, command in lab.hosts[1].processes() if is_agent(command)))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 76, err.decode()
    return err.decode()


@pytest.mark.root
@pytest.mark.parametrize("how", HIDDEN)
def test_hidden_process_of_killed_agent_is_ended_for_a_plain_user(
    plain_user_pod: Home, session_plain_user_lab: Lab, how: str
) -> None:
    told = end_by_killing_an_agent(plain_user_pod, session_plain_user_lab, HIDDEN[how])
    assert "not verified" not in told
    for host in session_plain_user_lab.hosts:
        assert eventually(lambda host=host: not host.processes(), 20.0), host.processes()


@pytest.mark.root
def test_process_that_cannot_be_told_from_others_is_named(plain_user_pod: Home, session_plain_user_lab: Lab) -> None:
    host = session_plain_user_lab.hosts[1]
    earlier = ["setpriv", "--reuid", "plain", "--clear-groups", "setsid", "-f", "sleep", "4566"]
    host.run("sh", "-c", f"{' '.join(earlier)} {CLOSED}")
    told = end_by_killing_an_agent(plain_user_pod, session_plain_user_lab, INVISIBLE)
    assert f"not verified: {host.address}: its agent is gone, and left there perhaps pid" in told
    assert "(sleep 4567), user 34567, started since the run began" in told
    assert "sleep 4566" not in told
    left = ["sleep 4566", "sleep 4567"]
    assert eventually(lambda: sorted(command.strip() for _, command in host.processes()) == left), host.processes()


@pytest.mark.root
def test_stop_ends_hidden_process_whose_client_and_agent_were_killed(
    plain_user_pod: Home, session_plain_user_lab: Lab
) -> None:
    host = session_plain_user_lab.hosts[1]
    words = ["--ranks", "1", "--lease", "10", "--grace", "1", "pod", "sh", "-c"]
    process = plain_user_pod.popen("run", *words, f"{HIDDEN['holds the output']}\necho up; sleep 4569")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"up\n")
    assert eventually(lambda: sleeps(host))
    agents = [pid for pid, command in host.processes() if is_agent(command)]
    for pid in agents:  # none of them ends the run of the killed client
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.communicate()
    kill_together(*agents)
    assert eventually(lambda: not any(is_agent(command) for _, command in host.processes()), 20.0)
    assert any("sleep 4567" in command for _, command in host.processes())
    listed = plain_user_pod.mesh("ps", "pod")
    assert b"orphaned" in listed.out
    (run,) = (plain_user_pod.path / ".local/state/mesh/runs").iterdir()
    stopped = plain_user_pod.mesh("stop", run.name)
    assert stopped.status == 0, stopped.err
    assert not [command for _, command in host.processes() if not is_agent(command)]
    assert not list(host.path("/tmp").glob("mesh-*/.note-*"))
