"""Every command that shows or changes a run, on one program: its nodes have their labels everywhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.integration.test_attach import runs
from tests.integration.test_nodes import nothing_is_there
from tests.integration.test_run_directory import problems
from tests.lab import Lab, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]
SCRIPT = """
import signal
import sys

from mesh.program import Options, Program, here, wait_for_stop


class Server:
    def __init__(self):
        print("serves", here().index, flush=True)

    def echo(self, value):
        return value


def waits_here(server):
    signal.signal(signal.SIGUSR1, lambda *_: print("got the signal", flush=True))
    print("waits", server.echo(7), flush=True)
    wait_for_stop()


if __name__ == "__main__":
    program = Program("walk", cluster="pod", options=Options(detach=True))
    servers = program.add(Server, on=sys.argv[1], count=2)
    program.add(waits_here, servers[1], on=sys.argv[2], label="waiter")
    running = program.launch()
    print(running.wait().reason, running.run)
"""
LABELS = {"server", "waiter"}


def launched(pod: Home, *hosts: str) -> str:
    """Launch the program from a process that leaves it; return its run."""
    pod.files(walk__py=SCRIPT)
    done = subprocess.run(
        [sys.executable, "walk.py", *hosts],
        cwd=pod.project,
        env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason, run = done.stdout.split()
    assert reason == "detached"
    return run


def test_every_command_has_the_labels_of_a_program(pod: Home, lab: Lab) -> None:
    first, second = (host.address for host in lab.hosts[:2])
    run = launched(pod, first, second)
    (listed,) = json.loads(pod.mesh("ps", "pod", "--json").out)
    assert (listed["run"], listed["hosts"]) == (run, [first, second])
    assert "walk" in json.dumps(listed)
    assert b"walk" in pod.mesh("ps", "pod").out

    def waiter() -> list[str]:
        return pod.mesh("logs", run, "--rank", "waiter", "--cluster", "pod").lines

    assert eventually(lambda: waiter() == ["[waiter/0] waits 7"], PATIENCE), waiter()

    def servers() -> list[str]:
        return pod.mesh("logs", run, "--rank", "server/*", "--cluster", "pod").lines

    # The one that the waiter has not called may be starting still.
    assert eventually(lambda: servers() == ["[server/0] serves 0", "[server/1] serves 1"], PATIENCE), servers()
    assert "its labels are server, waiter" in pod.mesh("logs", run, "--rank", "critic", "--cluster", "pod").err

    def stacks() -> str:
        return pod.mesh("stacks", run).out.decode()

    def names_all(shown: str) -> bool:
        return "[waiter/0] waits_here at walk.py:" in shown and "[server/0-1] " in shown

    assert eventually(lambda: names_all(stacks()), PATIENCE), stacks()  # a busy machine may need a second look
    assert "waits_here" not in pod.mesh("stacks", run, "--rank", "server/*").out.decode()

    assert pod.mesh("signal", run, "USR1", "--rank", "critic").status == 2
    done = pod.mesh("signal", run, "USR1", "--rank", "waiter")
    assert (done.status, done.lines) == (0, ["signalled rank 2 (waiter/0)"]), done.err
    assert eventually(lambda: waiter() == ["[waiter/0] got the signal", "[waiter/0] waits 7"], PATIENCE), waiter()

    attached = pod.popen("attach", run, "--from", "start", "--json")
    assert attached.stdout is not None
    events = [json.loads(attached.stdout.readline())]
    stopped = pod.mesh("stop", run)
    assert stopped.status == 0, stopped.err
    events += map(json.loads, attached.stdout)
    attached.communicate(timeout=PATIENCE)
    lines = {(event["label"], event["text"]) for event in events if event["event"] == "line"}
    assert lines >= {
        ("server", "serves 0"),
        ("server", "serves 1"),
        ("waiter", "waits 7"),
        ("waiter", "got the signal"),
    }
    assert {event["label"] for event in events if event["event"] == "rank-ready"} == LABELS
    assert {event["label"] for event in events if event["event"] == "exited"} == LABELS
    assert b"walk" in pod.mesh("runs").out

    directory = runs(pod) / run
    assert problems(directory) == []
    about = json.loads((directory / "run.json").read_text())
    assert [(group["label"], group["hosts"]) for group in about["groups"]] == [
        ("server", [first]),
        ("waiter", [second]),
    ]
    assert [rank["label"] for rank in about["ranks"]] == ["server", "server", "waiter"]
    assert {path.name for path in (directory / "logs").glob("*.out")} >= {
        "server-0.out",
        "server-1.out",
        "waiter-0.out",
    }
    assert eventually(lambda: nothing_is_there(lab))
