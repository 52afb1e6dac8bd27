"""Nodes on hosts that a firewall separates: their calls go through the client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.integration.test_attach import runs
from tests.integration.test_nodes import nothing_is_there
from tests.integration.test_program import pod_names
from tests.integration.test_run_directory import problems
from tests.lab import Lab, TestHost, eventually

pytestmark = [pytest.mark.root, pytest.mark.sshd]

SCRIPT = """
import json
import os
import signal
import sys

from mesh.program import NodeLost, Program, here, stop


class Server:
    def echo(self, value):
        return value

    def count(self, limit):
        yield from range(limit)

    def fail(self):
        raise KeyError("gone")

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Learner:
    def __init__(self, servers):
        self.servers = servers

    def run(self):
        first, second = self.servers
        data = os.urandom(3_000_000)
        found = [[server.echo(data) == data for server in self.servers], list(first.stream.count(100))]
        found.append([future.result() for future in [second.futures.echo(number) for number in range(300)]][-1])
        try:
            first.fail()
        except KeyError as error:
            found.append([error.label, error.host == first.host])
        try:
            second.kill()
        except NodeLost as error:
            found.append([error.label, error.host == second.host])
        found.append(first.echo("still there"))
        stop()
        return found


if __name__ == "__main__":
    program = Program("apart", cluster="pod", python=sys.argv[1])
    servers = program.add(Server, on=sys.argv[2], count=2, on_failure="ignore")
    program.add(Learner, servers, on=sys.argv[3])
    with program.launch() as running:
        result = running.wait(60)
        print(json.dumps(running.result("learner")))
    sys.exit(result.exit_code)
"""


def separate(one: TestHost, other: TestHost, how: str) -> None:
    """Let no packet of one host reach another one, while both reach this machine."""
    if how == "dropped":  # no answer comes back
        other.run("ip", "route", "add", "blackhole", one.address)
    else:
        one.run("ip", "route", "add", "unreachable", other.address)


def join(one: TestHost, other: TestHost) -> None:
    other.run("ip", "route", "del", "blackhole", one.address, check=False)
    one.run("ip", "route", "del", "unreachable", other.address, check=False)


@pytest.mark.parametrize("how", ["dropped", "rejected"])
def test_hosts_that_a_firewall_separates_call_each_other_through_the_client(pod: Home, lab: Lab, how: str) -> None:
    pod.files(apart__py=SCRIPT)
    there, own = pod_names(pod)[:2]
    separate(lab.hosts[1], lab.hosts[0], how)
    try:
        done = subprocess.run(
            [sys.executable, "apart.py", sys.executable, there, own],
            cwd=pod.project,
            env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
            check=False,
        )
    finally:
        join(lab.hosts[1], lab.hosts[0])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [True, True],
        list(range(100)),
        299,
        ["server/0", True],
        ["server/1", True],
        "still there",
    ]
    (directory,) = runs(pod).iterdir()
    assert problems(directory) == []
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    (relayed,) = [event for event in events if event["event"] == "pair-relayed"]
    assert (relayed["host"], relayed["label"], relayed["to"]) == (own, "learner", "server/0")
    assert relayed["why"] == ("no answer" if how == "dropped" else "No route to host")
    assert done.stderr.count("calls from learner/0 to server/0 go through this machine") == 1
    assert eventually(lambda: nothing_is_there(lab))
