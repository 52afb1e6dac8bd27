"""Whatever dies: the run goes on where it can, byte for byte, and otherwise nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Home, read_until
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]

COUNT = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; [ $((i % 100)) != 0 ] || sleep 0.1; done"
COUNT_UNTIL_TOLD = f"{COUNT}; until [ -e /root/told ]; do sleep 0.1; done"
ESCAPEES = (
    "(setsid sh -c 'trap \"\" TERM HUP; exec env -i sleep 5000' &) ; trap '' TERM; echo up; while :; do sleep 1; done"
)


COUNTED = 400_000  # lines, far more than a pipe takes
LINES, WIDTH = 60_000, 800  # 48 MB; the queue to the terminal takes 32 MB, if they come in large pieces


def start(pod: Home, *words: str) -> subprocess.Popen[bytes]:
    """Start a run and wait until every rank has said something."""
    process = pod.popen(*words)
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    return process


def find(host: TestHost, *, agent: bool) -> int:
    """The pid of a host's agent or guardian, seen from here."""
    ours = {pid: int(_stat(pid)[1]) for pid, command in host.processes() if is_agent(command)}
    (found,) = [pid for pid, parent in ours.items() if (parent in ours) is agent]
    return found


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def connections(host: TestHost) -> list[int]:
    found = [pid for pid, command in host.processes(with_sshd=True) if "notty" in command]
    assert found
    return found


def gone(*hosts: TestHost) -> bool:
    return eventually(lambda: not any(host.processes() for host in hosts))


def groups(pod: Home) -> list[Path]:
    """Control groups of this user's runs; all hosts have this machine's."""
    runs = [path.name for path in pod.path.glob(".local/state/mesh/runs/*")]
    return [path for run in runs for path in Path("/sys/fs/cgroup").glob(f"*/mesh-{run}-*")]


def tell(lab: Lab) -> None:
    """Let ranks end that wait until they are told."""
    for host in lab.hosts:
        host.path("/root/told").touch()


def logs(pod: Home) -> list[bytes]:
    return [path.read_bytes() for path in sorted(pod.path.glob(".local/state/mesh/runs/*/logs/rank-*.out"))]


def test_connections_that_are_reset_lose_nothing(pod: Home, lab: Lab) -> None:
    script = f"{COUNT_UNTIL_TOLD}; exit $RANK"
    process = pod.popen("run", "--keep-going", "pod", "sh", "-c", script, stdout=subprocess.DEVNULL)
    for round_ in range(4):
        host = lab.hosts[round_]
        assert eventually(lambda host=host: any("sleep" in command for _, command in host.processes()))
        for pid in connections(host):
            os.kill(pid, signal.SIGKILL)
    tell(lab)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (1, 2, 3), err
    # Hosts that come back at about the same time are one line.
    back = [line for line in err.decode().splitlines() if line.endswith("connected again, nothing was lost")]
    for host in lab.hosts:
        assert sum(f"{host.address}:" in line or f"{host.address}," in line for line in back) == 1, back
    assert logs(pod) == [b"".join(b"line %d\n" % n for n in range(1, 3001))] * 4
    assert gone(*lab.hosts)


def test_a_cable_that_is_out_for_a_while_loses_nothing(pod: Home, lab: Lab) -> None:
    process = pod.popen("run", "pod", "sh", "-c", COUNT_UNTIL_TOLD, stdout=subprocess.DEVNULL)
    host = lab.hosts[2]
    assert eventually(lambda: any("sleep" in command for _, command in host.processes()))
    host.cut()
    time.sleep(2.0)  # the fault itself takes time
    host.mend()
    tell(lab)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert logs(pod) == [b"".join(b"line %d\n" % n for n in range(1, 3001))] * 4


@pytest.mark.parametrize("whom", ["agent", "guardian", "both"])
def test_a_killed_agent_or_guardian_is_a_lost_host_at_once(pod: Home, lab: Lab, whom: str) -> None:
    process = start(pod, "run", "--grace", "1", "pod", "bash", "-c", ESCAPEES)
    host = lab.hosts[1]
    agent, guardian = find(host, agent=True), find(host, agent=False)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither sees the end of the other
        for pid in {"agent": [agent], "guardian": [guardian], "both": [guardian, agent]}[whom]:
            os.kill(pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 76, err
    assert f"lost contact with {host.address} (rank 1)".encode() in err
    assert b"not verified" not in err
    assert gone(*lab.hosts)
    assert groups(pod) == []


def starters(host: TestHost) -> set[int]:
    """What the login shells of a host's connections have become."""
    return {child for pid in connections(host) for child in children(pid)}


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("is_parent", [False, True])
def test_who_only_brings_a_channel_may_be_killed(pod: Home, lab: Lab, is_parent: bool) -> None:
    process = start(pod, "run", "pod", "sh", "-c", "echo up; until [ -e /root/told ]; do sleep 0.1; done")
    host = lab.hosts[0]
    for pid in connections(host):
        os.kill(pid, signal.SIGKILL)
    assert process.stderr is not None
    assert any(b"connected again, nothing was lost" in line for line in process.stderr)
    (parent,) = starters(host)
    (child,) = children(parent)
    os.kill(parent if is_parent else child, signal.SIGKILL)
    assert any(b"connected again, nothing was lost" in line for line in process.stderr)
    tell(lab)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert gone(*lab.hosts)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_client_that_ends_leaves_nothing(pod: Home, lab: Lab, number: int) -> None:
    process = start(pod, "run", "--grace", "1", "pod", "bash", "-c", ESCAPEES)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:  # agents may be on their way out, but nothing of the run
        commands = [command for host in lab.hosts for _, command in host.processes()]
        assert all(map(is_agent, commands)), commands
    assert gone(*lab.hosts)


def test_a_client_that_leaves_has_the_hosts_finish(pod: Home, lab: Lab) -> None:
    """The third Ctrl-C."""
    process = start(pod, "run", "--grace", "1", "pod", "bash", "-c", f"trap '' INT; {ESCAPEES}")
    for hosts in lab.hosts:
        os.kill(find(hosts, agent=True), signal.SIGSTOP)
    for said in (b"stopping 4 ranks", b"killing"):
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, said)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"not waited for; its agent ends the run there" in err
    for hosts in lab.hosts:
        os.kill(find(hosts, agent=True), signal.SIGCONT)
    assert gone(*lab.hosts)


def test_a_terminal_that_is_closed(pod: Home, lab: Lab) -> None:
    with pod.terminal("run", "--output", "all", "--grace", "1", "pod", "bash", "-c", ESCAPEES) as terminal:
        terminal.expect(b"[3] up")
    assert gone(*lab.hosts)


def test_ctrl_z_is_refused(pod: Home, lab: Lab) -> None:
    with pod.terminal(
        "run", "--output", "all", "pod", "sh", "-c", "echo up; until [ -e /root/told ]; do sleep 0.1; done; echo done"
    ) as terminal:
        terminal.expect(b"[3] up")
        terminal.type(b"\x1a")
        terminal.expect(b"not suspended")
        tell(lab)
        assert terminal.end() == 0
        assert terminal.shown.count(b"done\r\n") == 4


def test_a_failure_behind_a_paused_reader_stops_the_others(pod: Home, lab: Lab) -> None:
    """Nobody reads our stdout: what ranks print waits, and what happens to them is known all the same."""
    wait = "until [ -e /root/told ]; do sleep 0.1; done"
    script = f"test $RANK = 2 || exec sleep 5000; {wait}; seq {COUNTED}; exit 7"
    process = pod.popen("run", "--grace", "1", "pod", "sh", "-c", script)
    sleeping = lambda: [c for host in lab.hosts for _, c in host.processes() if c.startswith("sleep 5000")]  # noqa: E731
    assert eventually(lambda: len(sleeping()) == 3)
    tell(lab)
    assert eventually(lambda: not sleeping())
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7
    assert b"failed first: exit 7" in err
    assert b"not verified" not in err
    assert out.count(b"\n") == COUNTED
    assert logs(pod)[2] == b"".join(b"%d\n" % n for n in range(1, COUNTED + 1))


def test_a_slow_reader_never_slows_a_rank(pod: Home, lab: Lab) -> None:
    """The rank ends while nobody has read what it printed, more than is queued here; all of it comes in the end."""
    process = pod.popen("run", "--ranks", "0", "pod", "sh", "-c", f"seq -f %0{WIDTH}.0f {LINES}; touch ~/ended")
    assert eventually(lab.hosts[0].path("/root/ended").exists, PATIENCE)
    spools = lab.hosts[0].path("/root/.mesh/machines")
    assert len(list(spools.glob("*/spool-*/*"))) > 4  # of 256 KiB each
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == b"".join(b"[0] %0*d\n" % (WIDTH, n) for n in range(1, LINES + 1))
    assert not list(spools.glob("*/spool-*"))


def test_a_stopped_client_comes_back(pod: Home, lab: Lab) -> None:
    process = pod.popen("run", "pod", "sh", "-c", COUNT_UNTIL_TOLD, stdout=subprocess.DEVNULL)
    assert eventually(lambda: any("sleep" in command for _, command in lab.hosts[0].processes()))
    process.send_signal(signal.SIGSTOP)
    for host in lab.hosts[:2]:  # as sshd does with a client that is silent
        for pid in connections(host):
            os.kill(pid, signal.SIGKILL)
    time.sleep(2.0)  # the fault itself takes time
    process.send_signal(signal.SIGCONT)
    tell(lab)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert logs(pod) == [b"".join(b"line %d\n" % n for n in range(1, 3001))] * 4


def test_out_of_memory_is_recognised(home: Home, tmp_path: Path) -> None:
    """A rank that the kernel kills in a memory control group of its own."""
    group = Path(f"/sys/fs/cgroup/memory/mesh-test-{os.getpid()}")
    limit = "memory.limit_in_bytes"
    if not group.parent.is_dir():
        group, limit = Path(f"/sys/fs/cgroup/mesh-test-{os.getpid()}"), "memory.max"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no memory cgroup is ours")
    try:
        (group / limit).write_text(str(100 << 20))
        eat = f"echo $$ >{group}/cgroup.procs; exec python3 -c 'b = bytearray(400 << 20); print(len(b))'"
        done = home.mesh("run", "local:1", "sh", "-c", eat)
        assert done.status == 137
        assert "rank 0 on local-0 failed first: killed by the kernel: out of memory" in done.err
        run = next(home.path.glob(".local/state/mesh/runs/*/run.json"))
        assert json.loads(run.read_text())["first"]["oom"] is True
    finally:
        assert eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_host_whose_login_prints_without_end_is_lost_when_it_must_be_reached_again(pod: Home, lab: Lab) -> None:
    quick = ("--host-grace", "12", "--connect-timeout", "6", "--grace", "1")
    process = start(pod, "run", *quick, "pod", "sh", "-c", "echo up; exec sleep 600")
    host = lab.hosts[2]
    host.path("/root/.bashrc").write_text("while :; do printf x || exit; sleep 0.1; done\n")
    for pid in connections(host):
        os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 76, err
    assert host.address.encode() in err
    host.path("/root/.bashrc").unlink()
    assert gone(*[other for other in lab.hosts if other is not host])
    lab.end_all(host)
