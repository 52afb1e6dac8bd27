"""A program on hosts whose Pythons are the oldest and the newest that mesh runs on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Home
from tests.lab import Lab, eventually
from tests.pythons import pythons

pytestmark = [pytest.mark.root, pytest.mark.sshd]
HIDDEN = ("/root", "/home", "/tmp", "/srv", "/mnt")  # directories that are empty on a host
SCRIPT = """
import json
import sys

from mesh.program import Program, here


class Strange(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Peer:
    def version(self):
        return list(sys.version_info[:2])

    def echo(self, value):
        return value

    def count(self, limit):
        yield from range(limit)

    def fail(self):
        raise Strange(1, 2)

    def meet(self, other):
        value = {"one": [1, 2.5, b"3", {4}, None], "bytes": bytes(200000)}
        found = [here().host, other.version(), other.echo(value) == value, list(other.stream.count(50))]
        try:
            other.fail()
        except Strange as error:
            found.append([str(error), error.label, "fail" in error.traceback])
        return found


if __name__ == "__main__":
    program = Program("mixed", cluster="pod")
    peers = program.add(Peer, on=sys.argv[1].split(","), per_host=1)
    with program.launch():
        first, second = peers
        print(json.dumps([first.meet(second), second.meet(first)]))
"""


def test_nodes_on_the_oldest_and_on_the_newest_python_call_each_other(home: Home) -> None:
    """`python3` is another version on each host. Values, streams and errors cross both ways."""
    found = sorted((tuple(map(int, version.split("."))), path) for version, path in pythons().items())
    (oldest, first), (newest, last) = found[0], found[-1]
    if oldest == newest:
        pytest.skip("there is one Python only")
    homes = {Path(path).resolve().parent.parent for path in (first, last)}
    with Lab(2, visible=[place for place in homes if str(place).startswith(HIDDEN)]) as lab:
        home.clusters(lab.cluster_yaml())
        home.trust(lab)
        home.files(mixed__py=SCRIPT)
        for host, path in zip(lab.hosts, (first, last), strict=True):
            host.run("ln", "-sf", str(Path(path).resolve()), "/usr/local/bin/python3")
        names = [host.address for host in lab.hosts]
        done = subprocess.run(
            [sys.executable, "mixed.py", ",".join(names)],
            cwd=home.project,
            env={**home.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [
            [names[0], [*newest], True, [*range(50)], ["1 and 2", "peer/1", True]],
            [names[1], [*oldest], True, [*range(50)], ["1 and 2", "peer/0", True]],
        ]
        assert all(eventually(lambda h=host: not h.processes()) for host in lab.hosts)
