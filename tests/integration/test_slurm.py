"""Runs on nodes of real allocations: Debian's Slurm with four nodes, each with a process tree and files of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Home
from tests.lab import eventually
from tests.slurmcluster import NODES, SETTLE_S, SRUN_PORTS, SlurmCluster, is_installed

pytestmark = [
    pytest.mark.root,
    pytest.mark.sshd,
    pytest.mark.skipif(not is_installed(), reason="needs slurmctld, slurmd, slurm-client and munge"),
]
PATIENT_S = 120.0  # for what takes seconds, on a machine with much to do
SLEEP = "sleep 4567"
HELD = "hold: 10m"  # longer than from one command to the next, on a machine with much to do
LOCAL_FILES = "cd /tmp/mesh-slurm-*/workspaces/project-* && ls"
STUBBORN = f"trap '' TERM; (setsid {SLEEP} &); exec {SLEEP}"  # two processes, one outside of the rank's session


@pytest.fixture(scope="module")
def session_slurm() -> Iterator[SlurmCluster]:
    visible = (Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)
    with SlurmCluster(visible=visible) as cluster:
        yield cluster


@pytest.fixture
def slurm(session_slurm: SlurmCluster, home: Home, nothing_is_left: None) -> Iterator[SlurmCluster]:
    """The cluster without jobs, and its login node in cluster.yaml as ``big``, four nodes, reached over SSH."""
    home.trust(session_slurm.lab)
    home.own_known_hosts()
    home.clusters(described(session_slurm))
    yield session_slurm

    def left() -> dict[str, list[tuple[int, str]]]:
        return {host.name: found for host in session_slurm.lab.hosts if (found := session_slurm.processes(host))}

    try:  # an agent or a login may be on its way out
        assert eventually(lambda: session_slurm.jobs() or not left(), SETTLE_S), left()
    finally:
        session_slurm.clear()


def described(slurm: SlurmCluster, *more: str) -> str:
    """Return a cluster.yaml. more: lines below ``slurm:``"""
    lines = [f"nodes: {NODES}", "hold: 5s", "start_timeout: 60s", *more]
    login = f"  gateway: {slurm.login.address}\n  user: root\n  identity_file: {slurm.lab.identity}\n"
    return f"big:\n{login}  slurm:\n" + "".join(f"    {line}\n" for line in lines)


def sleepers(slurm: SlurmCluster) -> list[str]:
    """Return a line for each process of the ranks that sleeps, without the shells that are about to."""
    return [command for host in slurm.nodes for _, command in slurm.processes(host) if command.startswith(SLEEP)]


def start(home: Home, slurm: SlurmCluster, *words: str, count: int = NODES) -> subprocess.Popen[bytes]:
    """Start a command, and wait until its ranks run."""
    client = home.popen(*words)
    assert eventually(lambda: len(sleepers(slurm)) >= count or client.poll() is not None, PATIENT_S)
    assert client.poll() is None, client.communicate()
    return client


def logged(home: Home, lines: list[str]) -> bool:
    """Return True once `mesh logs` shows these lines of the last run, which goes on."""
    return eventually(lambda: sorted(home.mesh("logs", "last", within=PATIENT_S).lines) == lines, PATIENT_S)


def all_gone(slurm: SlurmCluster) -> bool:
    return not any(slurm.processes(host) for host in slurm.nodes)


def test_an_allocation_is_asked_for_used_again_and_ends_itself(slurm: SlurmCluster, home: Home) -> None:
    asked = described(slurm, "time: 2:00:00", "local: true")
    home.clusters(asked.replace("hold: 5s", HELD))
    program = "import os; print(open('data').read(), [name for name in os.environ if 'SLURM' in name])"
    home.files(train__py=program, data="x")
    first = home.mesh("run", "-q", "big", "python3", "train.py", within=PATIENT_S)
    assert (first.status, first.lines, first.err) == (0, [f"[{rank}] x []" for rank in range(NODES)], "")
    (job,) = slurm.jobs()
    port = slurm.run("squeue", "-h", "-o", "%k").rpartition(":")[2]
    assert SRUN_PORTS[0] <= int(port) <= SRUN_PORTS[1]
    assert [host.run("sh", "-c", LOCAL_FILES).splitlines() for host in slurm.nodes] == [["data", "train.py"]] * NODES
    late = home.mesh("exec", "--timeout", "3h", "big", "true", within=PATIENT_S)
    assert (late.status, f"--timeout: Slurm ends job {job} of big at" in late.err) == (2, True), late.err
    printed = home.mesh("exec", "--slurm-env", "big", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_PROCID", within=PATIENT_S)
    assert printed.lines == [f"[{rank}] {job} {rank}" for rank in range(NODES)]
    second = home.mesh("exec", "big", "hostname", within=PATIENT_S)
    assert second.lines == [f"[{n}] {host.name}" for n, host in enumerate(slurm.nodes)]
    assert slurm.jobs() == [job]
    assert f"job {job}" in home.mesh("clusters").out.decode()
    assert home.mesh("down", "big", within=PATIENT_S).status == 0
    home.clusters(asked)
    assert home.mesh("exec", "big", "true", within=PATIENT_S).status == 0
    assert eventually(lambda: not slurm.jobs() and all_gone(slurm), PATIENT_S)
    last = max(slurm.run("squeue", "-h", "--states=all", "-o", "%i").split(), key=int)
    assert "Comment=mesh ended: nobody has used it for 5 s" in slurm.run("scontrol", "show", "job", last)
    assert not [place for host in slurm.nodes for place in host.path("/tmp").glob("mesh-slurm-*")]


def test_a_detached_run_holds_its_allocation_and_is_found_from_elsewhere(slurm: SlurmCluster, home: Home) -> None:
    home.clusters(described(slurm).replace("hold: 5s", HELD))
    run = home.mesh("run", "-d", "big", "sh", "-c", f"echo rank $RANK; exec {SLEEP}", within=PATIENT_S)
    assert run.status == 0, run.err
    assert logged(home, [f"[{n}] rank {n}" for n in range(NODES)])
    assert home.mesh("stacks", "last", within=PATIENT_S).status == 0
    for record in (home.path / ".local/state/mesh/allocations").glob("*.json"):
        record.unlink()  # as on another machine: the batch script has the key
    listed = home.mesh("ps", "big", within=PATIENT_S)
    assert SLEEP in listed.out.decode()
    assert "running, detached" in listed.out.decode()
    (job,) = slurm.jobs()
    refused = home.mesh("down", "big", within=PATIENT_S)
    assert (refused.status, slurm.jobs()) == (75, [job])
    shown = home.mesh("ssh", "big:2", "hostname", within=PATIENT_S)
    assert shown.out.decode().strip() == slurm.nodes[2].name, shown
    assert home.mesh("stop", "last", within=PATIENT_S).status == 0
    assert home.mesh("attach", "last", within=PATIENT_S).status == 128 + signal.SIGTERM
    assert home.mesh("down", "big", within=PATIENT_S).status == 0
    assert slurm.jobs() == []


def test_a_cancelled_allocation_is_the_verdict(slurm: SlurmCluster, home: Home) -> None:
    client = start(home, slurm, "run", "--grace", "1", "big", "sh", "-c", STUBBORN, count=2 * NODES)
    (job,) = slurm.jobs()
    slurm.run("scancel", job)
    _, errors = client.communicate(timeout=PATIENT_S)
    assert client.returncode == 76
    assert f"allocation {job}: it was cancelled" in errors.decode()
    assert "killall" not in errors.decode()
    assert eventually(lambda: all_gone(slurm), PATIENT_S)


def test_killed_clients_leave_nothing_and_an_allocation_that_was_there_stays(slurm: SlurmCluster, home: Home) -> None:
    slurm.run("salloc", "--nodes=2", "--exclusive", "--no-shell")
    (theirs,) = slurm.jobs()
    login = described(slurm).partition("  slurm:")[0].replace("big:", "mine:")
    made = described(slurm).replace(f"nodes: {NODES}", "nodes: 2")
    near = login.replace("mine:", "near:")
    home.clusters(
        f"{made}{login}  slurm: {{jobid: {theirs}, hold: 8s}}\n{near}  slurm: {{jobid: {theirs}, reach: ssh}}\n"
    )
    done = home.mesh("exec", "near", "hostname", within=PATIENT_S)
    assert done.lines == [f"[{number}] {host.name}" for number, host in enumerate(slurm.nodes[:2])], done.err
    for _ in range(2):  # the second one finds the first one's step
        done = home.mesh("exec", "mine", "hostname", within=PATIENT_S)
        assert done.lines == [f"[{number}] {host.name}" for number, host in enumerate(slurm.nodes[:2])]
    words = ("run", "--grace", "1")
    clients = [
        start(home, slurm, *words, "mine", "sh", "-c", STUBBORN, count=4),
        start(home, slurm, *words, "big", "sh", "-c", STUBBORN, count=8),
    ]
    for client in clients:
        client.kill()
        client.communicate()
    assert eventually(lambda: all_gone(slurm) and not slurm.processes(slurm.login), PATIENT_S)
    assert eventually(lambda: slurm.jobs() == [theirs], PATIENT_S)


def test_a_login_node_that_forwards_nothing_and_whose_shell_prints(slurm: SlurmCluster, home: Home) -> None:
    slurm.login.path("/root/.bashrc").write_text("echo Welcome to the login node; echo no module >&2\n")
    config = slurm.login.path("/etc/ssh/sshd_config")
    before = config.read_text()
    config.write_text(f"AllowTcpForwarding no\n{before}")
    slurm.login.reload_sshd()
    try:
        done = home.mesh("exec", "big", "head", "-c", "300000", "/dev/zero", within=PATIENT_S)
    finally:
        config.write_text(before)
        slurm.login.reload_sshd()
    assert done.status == 0, done.err
    assert done.out.count(b"\0") == NODES * 300000


def test_a_login_node_names_jobs_without_a_file(slurm: SlurmCluster) -> None:
    slurm.run("salloc", "--nodes=2", "--exclusive", "--no-shell")
    (theirs,) = slurm.jobs()

    slurm.login.path("/root/p").mkdir()

    def printed(*words: str, **environ: str) -> list[str]:
        environ["PYTHONPATH"] = str(REPOSITORY)
        client = slurm.popen(sys.executable, "-m", "mesh", *words, cwd="/root/p", **environ)
        out, errors = client.communicate(timeout=PATIENT_S)
        assert client.returncode == 0, errors.decode()
        return sorted(out.decode().splitlines())

    names = [host.name for host in slurm.nodes]
    assert printed("exec", f"slurm:{theirs}:1", "hostname") == [f"[0] {names[1]}"]
    within = {"SLURM_JOB_ID": theirs, "SLURM_NTASKS": "7", "SLURM_TIME_FORMAT": "relative"}  # of a shell of salloc
    assert printed("exec", "slurm:", "hostname", **within) == [f"[0] {names[0]}", f"[1] {names[1]}"]
    file = slurm.login.path("/root/.config/mesh/cluster.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(f"big: {{slurm: {{nodes: 1, {HELD}}}}}\n")
    asked = ("--nodes", "2", "--slurm", "comment=mine")
    assert printed("run", *asked, "big", "hostname") == [f"[0] {names[2]}", f"[1] {names[3]}"]
    assert slurm.run("squeue", "-h", "-n", "mesh-big", "-o", "%k").split()[-1] == "mine"


def test_a_shell_on_a_node_keeps_the_allocation(slurm: SlurmCluster, home: Home) -> None:
    client = start(home, slurm, "exec", "big", *SLEEP.split())
    shell = home.popen("ssh", "big:2", "--", "sh", "-c", "echo up; sleep 10; hostname")  # longer than `hold`
    assert shell.stdout is not None
    said = shell.stdout.readline()
    assert said == b"up\n", shell.communicate(timeout=PATIENT_S)
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=PATIENT_S)
    out, errors = shell.communicate(timeout=PATIENT_S)
    assert out.decode().strip() == slurm.nodes[2].name, errors.decode()


# The command of a part of an allocation, and the words of the verdict after its death.
PARTS = {
    "srun": ("srun --overlap", "its step has ended (srun was killed by signal 9)"),
    "holder": ("python3 -I -S -c import sys; exec(compile(", "its holder has failed"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_an_allocation_that_is_killed_is_the_verdict(slurm: SlurmCluster, home: Home, part: str) -> None:
    begin, words = PARTS[part]
    client = start(home, slurm, "run", "--grace", "1", "big", "sh", "-c", STUBBORN, count=2 * NODES)
    found = [pid for host in slurm.nodes for pid, command in slurm.processes(host) if command.startswith(begin)]
    assert found
    for pid in found:
        with contextlib.suppress(ProcessLookupError):  # srun has two processes
            os.kill(pid, signal.SIGKILL)
    _, errors = client.communicate(timeout=PATIENT_S)
    assert (client.returncode, words in errors.decode()) == (76, True), errors.decode()
    assert eventually(lambda: all_gone(slurm) and not slurm.jobs(), PATIENT_S)


def test_a_job_that_waits_is_cancelled_by_ctrl_c_and_no_other_one(slurm: SlurmCluster, home: Home) -> None:
    slurm.run("salloc", f"--nodes={NODES}", "--exclusive", "--no-shell")
    (theirs,) = slurm.jobs()
    client = home.popen("run", "big", "true")
    assert eventually(lambda: len(slurm.jobs()) == 2, PATIENT_S)
    client.send_signal(signal.SIGINT)
    _, errors = client.communicate(timeout=PATIENT_S)
    assert client.returncode in (130, 128 + signal.SIGINT, -signal.SIGINT), errors
    assert eventually(lambda: slurm.jobs() == [theirs], PATIENT_S)
    home.clusters(described(slurm).replace("start_timeout: 60s", "start_timeout: 1s"))
    late = home.mesh("run", "big", "true", within=PATIENT_S)
    assert late.status == 125
    assert "has not begun after 1 s: it waits for nodes to be free (Resources)" in late.err
    assert eventually(lambda: slurm.jobs() == [theirs], PATIENT_S)


# Lines below `slurm:`, exit status, words of the message.
REFUSED = {
    "an unknown partition": ("partition: nowhere", 125, "sbatch: invalid partition specified: nowhere"),
    "too many nodes": (
        "nodes: 9",
        125,
        "cannot begin: it asks for more nodes than its partition allows (PartitionNodeLimit)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_slurms_own_words_are_shown(slurm: SlurmCluster, home: Home, name: str) -> None:
    line, status, words = REFUSED[name]
    text = described(slurm).replace(f"nodes: {NODES}", line) if "nodes" in line else described(slurm, line)
    home.clusters(text)
    done = home.mesh("run", "big", "true", within=PATIENT_S)
    assert (done.status, words in done.err, done.err.count("error:")) == (status, True, 1), done.err
    assert slurm.jobs() == []


def test_a_check_asks_slurm_and_which_nodes_connect_once_there_are_some(slurm: SlurmCluster, home: Home) -> None:
    done = home.mesh("check", "big", within=PATIENT_S)
    shown = done.out.decode()
    assert "proctrack/linuxproc" in shown, done.err
    assert "not checked: switchboard: unknown until an allocation is there" in shown
    assert slurm.jobs() == []
    home.clusters(described(slurm).replace("hold: 5s", HELD))
    assert home.mesh("exec", "big", "true", within=PATIENT_S).status == 0
    (report, *_) = json.loads(home.mesh("check", "--json", "big", within=PATIENT_S).out)
    (found,) = [one for one in report["checks"] if one["name"] == "switchboard"]
    assert (found["verdict"], found["detail"].partition(" to ")[0]) == ("ok", "4 of 4 nodes have connected")


def test_a_link_to_the_login_node_that_stays_cut_ends_the_run_by_its_rules(slurm: SlurmCluster, home: Home) -> None:
    words = ("run", "--grace", "1", "--lease", "12", "--host-grace", "12")
    counts = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done"
    client = home.popen(*words, "big", "sh", "-c", counts, stdout=subprocess.DEVNULL)
    logs = home.path / ".local/state/mesh/runs"

    def printed() -> int:
        return sum(b"line 9\n" in one.read_bytes() for one in logs.glob("*/logs/rank-*.out"))

    assert eventually(lambda: printed() == NODES, PATIENT_S)
    slurm.login.cut()
    try:
        _, errors = client.communicate(timeout=PATIENT_S)
    finally:
        slurm.login.mend()
    assert client.returncode == 76, errors.decode()
    assert "connection lost" in errors.decode()
    for log in logs.glob("*/logs/rank-*.out"):
        lines = log.read_bytes().splitlines()
        assert lines == [b"line %d" % number for number in range(1, len(lines) + 1)]

    def ranks() -> list[str]:
        return [one for host in slurm.nodes for _, one in slurm.processes(host) if "echo line" in one]

    assert eventually(lambda: not ranks(), PATIENT_S), ranks()


def test_an_allocation_whose_nodes_are_reached_by_ssh_stays_while_a_run_is_on(slurm: SlurmCluster, home: Home) -> None:
    home.clusters(described(slurm, "reach: ssh"))
    words = ("sh", "-c", f"echo $MESH_ALLOCATION; (setsid {SLEEP} &); exec {SLEEP}")
    started = home.mesh("run", "-d", "--grace", "1", "big", *words, within=PATIENT_S)
    assert started.status == 0, started.err
    (job,) = slurm.jobs()
    assert logged(home, [f"[{n}] {job}" for n in range(NODES)])
    assert eventually(lambda: len(sleepers(slurm)) == 2 * NODES, PATIENT_S)
    refused = home.mesh("down", "big", within=PATIENT_S)
    assert (refused.status, slurm.jobs()) == (75, [job]), refused.err
    slurm.run("scancel", job)
    assert eventually(lambda: all_gone(slurm) and not slurm.jobs(), PATIENT_S)
    done = home.mesh("exec", "big", "hostname", within=PATIENT_S)
    assert done.lines == [f"[{n}] {host.name}" for n, host in enumerate(slurm.nodes)], done.err
    assert eventually(lambda: not slurm.jobs() and all_gone(slurm), PATIENT_S)
