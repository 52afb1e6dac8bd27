"""Ranks and nodes that move to a spare host of their cluster, on request and after the loss of their host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.core.errors import MeshError
from mesh.program import Handle, Program, connect
from tests.conftest import PATIENCE, Home
from tests.integration import program_nodes as nodes
from tests.integration.test_attach import elsewhere, runs
from tests.integration.test_lease import run_of
from tests.integration.test_nodes import nothing_is_there
from tests.integration.test_program import pod_names
from tests.integration.test_restart import has_printed
from tests.integration.test_run_directory import problems
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

# A rank with a daemon: a process with a session of its own, whose parent has ended.
WORK = """
import os, subprocess, sys, time
names = "RANK", "MESH_ATTEMPT", "NODE_RANK", "NNODES", "LOCAL_RANK"
subprocess.run(["sh", "-c", "setsid sleep 98763 & exit 0"])
print("up", *(os.environ[name] for name in names), os.getcwd().rpartition("-")[0] != "", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.05)
subprocess.run(["pkill", "-f", "sleep 98763"])
"""


def daemons(host: TestHost) -> list[int]:
    return [pid for pid, command in host.processes() if command.startswith("sleep 98763")]


def workers(host: TestHost) -> list[int]:
    return [pid for pid, command in host.processes() if "work.py" in command]


def test_a_rank_moves_to_a_spare_host_and_all_of_its_processes_have_ended_before(pod: Home, lab: Lab) -> None:
    pod.clusters(lab.cluster_yaml("pod", "spares: 2"))
    pod.files(work__py=WORK)
    client = pod.popen("run", "--env", "ENOUGH=/root/enough", "--grace", "1", "pod", "python3", "work.py")
    assert eventually(lambda: all(has_printed(pod, rank, "up") for rank in (0, 1)), PATIENCE)
    first = [workers(host) for host in lab.hosts]
    assert [len(there) for there in first] == [1, 1, 0, 0]
    spare = lab.hosts[2].address
    done = pod.mesh("restart", "last", "--rank", "1", "--on", spare)
    assert (done.status, done.out.startswith(f"rank 1 started again on {spare}".encode())) == (0, True), done.err
    assert eventually(lambda: has_printed(pod, 1, "up 1 1 1 2 0 True"), PATIENCE)
    assert [len(workers(host)) for host in lab.hosts] == [1, 0, 1, 0]
    assert daemons(lab.hosts[1]) == []
    assert eventually(lambda: [len(daemons(host)) for host in lab.hosts] == [1, 0, 1, 0])  # sh has not waited for it
    assert workers(lab.hosts[0]) == first[0]
    taken = pod.mesh("restart", "last", "--rank", "0", "--on", spare)
    assert (taken.status, f"{spare} has ranks of {lab.hosts[1].address} already" in taken.err) == (125, True), taken.err
    left = pod.mesh("detach", "last")
    assert (left.status, "it has spare hosts" in left.err) == (125, True), left.err
    again = pod.mesh("restart", "last", "--rank", "1", "--grace", "1")
    assert (again.status, spare in again.out.decode()) == (0, True), again.err
    assert eventually(lambda: has_printed(pod, 1, "up 1 2 1 2 0 True"), PATIENCE)
    for host in lab.hosts:
        host.script("touch enough")
    _, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 0, err
    assert f"rank 1: moves from {lab.hosts[1].address} to {spare}".encode() in err
    (directory,) = runs(pod).iterdir()
    about = json.loads((directory / "run.json").read_text())
    assert [rank["host"] for rank in about["ranks"]] == [lab.hosts[0].address, spare]
    assert problems(directory) == []
    for host in lab.hosts:
        assert eventually(lambda h=host: not h.processes(), PATIENCE), host.processes()


def test_a_client_that_is_killed_during_a_move_leaves_nothing(pod: Home, lab: Lab) -> None:
    pod.clusters(lab.cluster_yaml("pod", "spares: 1", hosts=lab.hosts[:2]))
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    client = pod.popen("run", "--grace", "1", "pod", "sh", "-c", stubborn)
    assert eventually(lambda: has_printed(pod, 0, "up"), PATIENCE)
    asking = pod.popen("restart", "last", "--rank", "0", "--on", lab.hosts[1].address, "--grace", "600")
    events = next(runs(pod).iterdir()) / "events.jsonl"
    assert eventually(lambda: '"moving"' in events.read_text(), PATIENCE)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    out, err = asking.communicate(timeout=PATIENCE)
    assert (asking.returncode, out) == (125, b""), err
    for host in lab.hosts[:2]:
        assert eventually(lambda h=host: not h.processes(), PATIENCE), host.processes()


def test_a_node_moves_on_request_and_after_the_loss_of_its_host_and_its_handles_go_on(
    pod: Home, lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(pod.path))
    monkeypatch.chdir(pod.project)
    pod.clusters(lab.cluster_yaml("pod", "spares: 2"))
    pod.files(moving_nodes__py=Path(str(nodes.__file__)).read_text())
    monkeypatch.syspath_prepend(pod.project)
    names = pod_names(pod)
    with contextlib.ExitStack() as stack:
        module = __import__("moving_nodes")
        stack.callback(sys.modules.pop, "moving_nodes")
        program = Program("moving", cluster="pod", python=sys.executable)
        server = program.add(
            module.Server, on=names[1], on_failure="restart", restarts=2, elsewhere=True, concurrency=3
        )
        caller = program.add(module.Caller, server, on=names[0], concurrency=2)
        program.add(module.waits, on=names[0])
        assert isinstance(server, Handle)
        assert isinstance(caller, Handle)
        running = stack.enter_context(program.launch())
        assert server.where()[:3] == ("server", names[1], 1)
        assert caller.where_there()[:3] == ("server", names[1], 1)
        with pytest.raises(MeshError, match="is no spare host"):
            running.restart(server, on=names[0])
        other = stack.enter_context(connect(running.run)).handle("server")
        assert isinstance(other, Handle)
        assert other.where()[:3] == ("server", names[1], 1)
        with monkeypatch.context() as context:
            context.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))  # a machine that knows nothing of the run
            far = stack.enter_context(connect("moving", cluster="pod")).handle("server")
            assert isinstance(far, Handle)
            assert far.where()[:3] == ("server", names[1], 1)
        pending = server.futures.hang()
        running.restart(server, on=names[2])
        assert "moves to another host" in str(pending.exception(PATIENCE))
        assert server.where()[:3] == ("server", names[2], 2)
        assert other.options(retries=1000, timeout=PATIENCE).where()[:3] == ("server", names[2], 2)
        with monkeypatch.context() as context:
            context.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
            assert far.options(retries=1000, timeout=PATIENCE).where()[:3] == ("server", names[2], 2)
        patient = server.options(retries=1000, timeout=PATIENCE)
        assert eventually(lambda: _answer(caller) == ("server", names[2], 2), PATIENCE)
        pending = server.futures.hang()
        for pid, command in lab.hosts[2].processes():
            if command.startswith("mesh-agent"):
                with contextlib.suppress(ProcessLookupError):  # it ended with the one that was killed before
                    os.kill(pid, signal.SIGKILL)
        assert "its host is lost" in str(pending.exception(PATIENCE))
        assert patient.where()[:3] == ("server", names[3], 3)
        assert eventually(lambda: _answer(caller) == ("server", names[3], 3), PATIENCE)
        assert [node.host for node in running.nodes if node.label == "server"] == [names[3]]
        result = running.stop()
    assert result.exit_code == 0
    assert eventually(lambda: nothing_is_there(lab))


def _answer(caller: Handle[object]) -> object:
    """Return the place of the server as another node finds it; None while that fails."""
    try:
        found = caller.options(timeout=PATIENCE).where_there()  # type: ignore[attr-defined]
    except Exception:
        return None
    return tuple(found[:3])


# Counts lines of each attempt, without an end, and on two streams.
COUNTS = """
import os, sys, time
place, number = "/root/said-{RANK}-{MESH_ATTEMPT}".format(**os.environ), 0
while True:
    number += 1
    line = "attempt {} line {}\\n".format(os.environ["MESH_ATTEMPT"], number).encode()
    for stream in (1, 2):
        os.write(stream, line)
    with open(place + ".new", "w") as file:
        file.write(str(number))
    os.replace(place + ".new", place)  # a signal may end this process at any time
    time.sleep(0.05)
"""


def numbers(text: bytes) -> list[tuple[int, int]]:
    """Return attempt and number of each whole line that COUNTS has printed."""
    lines = text[: text.rfind(b"\n") + 1].split(b"\n")
    return [(int(line.split()[1]), int(line.split()[3])) for line in lines if line.startswith(b"attempt ")]


def has_no_gap(found: list[tuple[int, int]], attempts: int) -> bool:
    """Return True if the lines of all attempts follow each other, each once."""
    counts = [sum(attempt == one for attempt, _ in found) for one in range(attempts)]
    return all(counts) and found == [(one, n + 1) for one in range(attempts) for n in range(counts[one])]


def test_every_line_of_a_rank_that_moved_twice_is_fetched_after_its_client_was_away(
    pod: Home, lab: Lab, tmp_path: Path
) -> None:
    pod.clusters(lab.cluster_yaml("pod", "spares: 1", hosts=lab.hosts[:3]))
    pod.files(counts__py=COUNTS)
    home, spare = lab.hosts[1], lab.hosts[2]
    client = pod.popen("run", "--lease", "15", "--grace", "1", "pod", "python3", "counts.py", stdout=subprocess.DEVNULL)
    for attempt, host in enumerate((spare, home, spare), 1):
        assert eventually(lambda a=attempt: has_printed(pod, 1, f"attempt {a - 1} line 5"), PATIENCE)
        done = pod.mesh("restart", "last", "--rank", "1", "--on", host.address, "--grace", "0")
        assert done.status == 0, done.err
    assert eventually(lambda: has_printed(pod, 1, "attempt 3 line 5"), PATIENCE)
    client.send_signal(signal.SIGSTOP)
    for host in lab.hosts[:3]:
        assert eventually(lambda h=host: not h.processes(), PATIENCE), host.processes()
    client.send_signal(signal.SIGKILL)
    client.communicate()
    said = {(rank, a): int(lab.hosts[h].path(f"/root/said-{rank}-{a}").read_text()) for rank, a, h in SAID}
    other = elsewhere(pod, tmp_path / "elsewhere")
    far = other.mesh("attach", run_of(pod), "--cluster", "pod", "--quiet")
    assert b"is not on this host" not in far.err.encode(), far.err
    (directory,) = runs(pod).iterdir()
    forget_last_move(directory / "run.json", home.address)  # as if the client had been killed before it wrote it
    done = pod.mesh("attach", "last", "--quiet")
    assert done.status not in (0, 125), done.err
    for rank, attempts in ((0, 1), (1, 4)):
        for stream in ("out", "err"):
            found = numbers((directory / f"logs/rank-{rank:04d}.{stream}").read_bytes())
            assert has_no_gap(found, attempts), found
            last = dict(found)
            assert all(last[a] >= said[rank, a] for a in range(attempts)), (last, said)
    about = json.loads((directory / "run.json").read_text())
    assert [rank["host"] for rank in about["ranks"]] == [lab.hosts[0].address, spare.address]
    assert [rank.get("signal") for rank in about["ranks"]] == [signal.SIGTERM] * 2
    assert about["moved"] == {"1": spare.address}
    assert problems(directory) == []
    there = json.loads((runs(other) / directory.name / "run.json").read_text())
    assert [rank.get("signal") for rank in there["ranks"]] == [signal.SIGTERM] * 2
    assert there["ranks"][1]["host"] == spare.address
    for stream in ("out", "err"):
        whole = (directory / f"logs/rank-0001.{stream}").read_bytes()
        assert whole.endswith((runs(other) / directory.name / f"logs/rank-0001.{stream}").read_bytes())


def forget_last_move(path: Path, host: str) -> None:
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "moves": about["moves"][:-1], "moved": {"1": host}}))


SAID = ((0, 0, 0), (1, 0, 1), (1, 1, 2), (1, 2, 1), (1, 3, 2))  # rank, attempt and index of the host
