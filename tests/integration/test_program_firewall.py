"""Nodes on hosts that a firewall separates from each other, or from the client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

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
import socket
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

    def port(self):
        number = json.loads(os.environ["MESH_NODE_SOCKETS"])["tcp"]
        with socket.socket(fileno=os.dup(number)) as own:
            return own.getsockname()[1]


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
        ports = servers.port()
        result = running.wait(60)
        print(json.dumps([ports, *running.result("learner")]))
    sys.exit(result.exit_code)
"""
PORTS = range(41000, 41004)


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
    pod.clusters(lab.cluster_yaml("pod", f"ports: {PORTS[0]}-{PORTS[-1]}"))
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
    ports, *found = json.loads(done.stdout.splitlines()[-1])
    assert len({*ports} & {*PORTS}) == 2  # the servers listen where a firewall may let others in
    assert found == [
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


UNREACHABLE = """
import os
import sys
import time

from mesh.program import Program, here, stop


class Log:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)
        return len(self.lines)


class Actor:
    def act(self, step):
        return step + here().index


class Learner:
    def __init__(self, actors, log):
        self.actors, self.log = actors, log

    def run(self):
        total = sum(sum(self.actors.act(step)) for step in range(20))
        count = self.log.write(here().label)
        print("up", flush=True)
        while not os.path.exists(os.path.expanduser("~/go")):
            time.sleep(0.05)
        stop()
        return total, count


if __name__ == "__main__":
    program = Program("impala", cluster="pod")
    *hosts, last = sys.argv[1].split(",")
    actors = program.add(Actor, on=hosts, per_host=2)
    program.add(Learner, actors, program.add(Log, on="client"), on=last)
    with program.launch() as running:
        result = running.wait(600)
        print("FOUND", running.result("learner"))
    sys.exit(result.exit_code)
"""
NODE = "mesh.program.runtime.node"
LISTENS = "0A"  # linux/tcp_states.h


def listening(host: TestHost) -> set[int]:
    """Return the TCP ports on which something listens on a host, as the kernel has them."""
    rows = [
        row.split() for kind in ("tcp", "tcp6") for row in Path(f"/proc/{host.pid}/net/{kind}").read_text().splitlines()
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS}


def private_sockets(host: TestHost) -> list[str]:
    """Return the Unix sockets of mesh on a host, as the kernel has them."""
    rows = Path(f"/proc/{host.pid}/net/unix").read_text().splitlines()
    return [row for row in rows if "/mesh-" in row]


def secrets_of(hosts: list[TestHost]) -> set[bytes]:
    """Return what nothing but memory may have: the middle of the run's key, and the payloads of all nodes."""
    found = set()
    for host in hosts:
        for pid, command in host.processes():
            for path in Path(f"/proc/{pid}/fd").iterdir() if NODE in command else ():
                with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                    name = os.readlink(path)
                    if name.startswith("/memfd:key.pem"):
                        found.add(path.read_bytes().splitlines()[1][8:56])
                    elif name.startswith("/memfd:payload-"):
                        found.add(path.read_bytes())
    return found


def places_with(secrets: set[bytes], hosts: list[TestHost], home: Path) -> list[str]:
    """Return the command lines, environments and files of hosts that have a secret, and the files of the client."""
    texts = [
        Path(f"/proc/{pid}/{name}")
        for host in hosts
        for pid, _ in host.processes(with_sshd=True)
        for name in ("cmdline", "environ")
    ]
    # -xdev: what is mounted there belongs to this machine.
    find = 'find /tmp /var/tmp /dev/shm /run "$HOME" -xdev -type f -size -1000k 2>/dev/null || true'
    texts += [host.path(name) for host in hosts for name in host.script(find).splitlines()]
    texts += [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    found = []
    for path in texts:
        with contextlib.suppress(OSError):  # a process that has ended, a file that is gone
            data = path.read_bytes()
            found += [str(path)] if any(secret in data for secret in secrets) else []
    return found


def test_hosts_without_a_route_to_the_client_run_a_program_and_keep_nothing_of_it(pod: Home, lab: Lab) -> None:
    """The client is behind a gateway, as a laptop is; what is left is counted by the kernel's tables, from outside."""
    *hosts, gateway = lab.hosts
    client = f"{gateway.address.rpartition('.')[0].rpartition('.')[0]}.0.1"
    pod.clusters(lab.cluster_yaml("pod", f"gateway: root@{gateway.address}"))
    (pod.path / ".ssh/config").write_text(f"Host *\n  IdentityFile {lab.identity}\n")  # for the gateway
    pod.files(train__py=UNREACHABLE)
    before, shared = [listening(host) for host in lab.hosts], [host.script("ls -A /dev/shm") for host in lab.hosts]

    def there() -> list[tuple[int, int]]:
        """The processes of nodes and the ports that they have opened, of each host."""
        counts = [sum(NODE in command for _, command in host.processes()) for host in lab.hosts]
        opened = [len(listening(host) - ports) for host, ports in zip(lab.hosts, before, strict=True)]
        return list(zip(counts, opened, strict=True))

    for host in hosts:
        host.run("ip", "route", "add", "unreachable", client)
    process = subprocess.Popen(
        [sys.executable, "train.py", ",".join(pod_names(pod))],
        cwd=pod.project,
        env={**pod.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        up = next((line for line in process.stdout if line.endswith("up\n")), "")
        assert eventually(lambda: there() == [(2, 2), (2, 2), (2, 2), (1, 1)]), there()
        secrets = secrets_of(hosts)
        assert len(secrets) >= 2  # the key, and at least one payload
        assert places_with(secrets, lab.hosts, pod.path) == []
        gateway.script("touch go")
        out, err = process.communicate(timeout=4 * PATIENCE)
    finally:
        process.kill()
        process.wait()
        for host in hosts:
            host.run("ip", "route", "del", "unreachable", client)
    assert (up, process.returncode) == ("[learner/0] up\n", 0), err
    assert f"FOUND ({20 * 15 + 6 * 190}, 1)" in out
    for host, ports, files in zip(lab.hosts, before, shared, strict=True):
        assert eventually(lambda h=host: not h.processes()), host.processes()
        # A process that has given back its memory still has its sockets for a moment.
        assert eventually(lambda h=host, p=ports: (listening(h), private_sockets(h)) == (p, []))
        assert host.script("ls -A /dev/shm") == files
    assert eventually(lambda: nothing_is_there(lab))
