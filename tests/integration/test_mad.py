"""``mesh mad`` on hosts: the documented command on every node, what is looked at before, and how it ends."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Home
from tests.integration.test_logins import files_with
from tests.lab import Lab, TestHost, eventually
from tests.unit.test_mad import ADVANCED, BASIC, BY_PASSWORD, SECRET, context

pytestmark = [pytest.mark.root, pytest.mark.sshd]
MODEL = "pyt_megatron_lm_train_llama2_7b"
RECORDER = "#!/usr/bin/env python3\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv]))\n"


def install(host: TestHost, program: str, place: str = "/root/.local/bin/madengine") -> None:
    host.script(f"mkdir -p {shlex.quote(str(Path(place).parent))}")
    host.path(place).write_text(program)
    host.path(place).chmod(0o755)


@pytest.fixture
def nodes(home: Home, lab: Lab) -> Iterator[list[TestHost]]:
    """Hosts with a madengine that tells how it was called."""
    home.trust(lab)
    (home.path / ".ssh/id_rsa").write_text(lab.identity.read_text())
    (home.path / ".ssh/cluster_key").write_text(lab.identity.read_text())
    for host in lab.hosts:
        install(host, RECORDER)
        host.script("mkdir -p /nfs/data /mnt/nfs/datasets")
    # Another address of the first host, as a network of its own for the ranks would have it.
    lab.hosts[0].script("ip addr add 192.168.0.1/32 dev eth0")
    for host in lab.hosts[1:]:
        host.script("ip route add 192.168.0.1/32 dev eth0")
    yield lab.hosts
    lab.hosts[0].script("ip addr del 192.168.0.1/32 dev eth0")
    for host in lab.hosts:
        host.script("rm -rf /nfs; ip route del 192.168.0.1/32 dev eth0 2>/dev/null || true")


def on(line: str, home: Home, hosts: list[TestHost]) -> list[str]:
    """A documented line, with these hosts for its nodes and their user."""
    given = re.search(r"--nodes (\S+)", line)
    assert given is not None
    for name, host in zip(given.group(1).split(","), hosts, strict=False):
        line = re.sub(rf"{re.escape(name)}(?=[\s,]|$)", host.address, line)
    line = re.sub(r"--ssh-user \S+", "--ssh-user root", line)
    return ["mad", *shlex.split(line.replace("~", str(home.path)))]


def recorded(out: bytes) -> dict[int, list[str]]:
    """What each rank's madengine told: its directory and its words."""
    found = re.findall(r"^\[(\S+):(\d+)\] (\[.*)$", out.decode(), re.MULTILINE)
    return {int(rank): json.loads(told) for _, rank, told in found}


def test_the_lines_of_the_document(home: Home, nodes: list[TestHost]) -> None:
    done = home.mesh(*on(BASIC, home, nodes))
    assert done.status == 0, done.err
    found = recorded(done.out)
    assert sorted(found) == [0, 1]
    for rank, (directory, program, *words) in found.items():
        assert directory.startswith("/root/.mesh/workspaces/project-")
        assert program == "/root/.local/bin/madengine"
        assert words[:4] == ["run", "--tags", MODEL, "--additional-context"]
        assert context(["", *words]) == {
            "RUNNER": "torchrun",
            "MASTER_ADDR": "192.168.0.1",
            "MASTER_PORT": "4000",
            "NNODES": "2",
            "NODE_RANK": str(rank),
            "NCCL_SOCKET_IFNAME": "eth0",  # the route's
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        assert words[5:] == ["--force-mirror-local", "/nfs/data"]
    table = done.out.decode().splitlines()[-4:]
    assert table[0].split() == ["node", "rank", "result"]
    assert table[1].split() == [nodes[0].address, "0", "exit", "0"]
    assert table[3] == "Successful nodes: 2/2"

    done = home.mesh(*on(ADVANCED.replace("eth0", "lo", 1), home, nodes))
    assert done.status == 0, done.err
    for rank, (_, _, *words) in recorded(done.out).items():
        told = context(["", *words])
        assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == (nodes[0].address, "5000")
        assert (told["NNODES"], told["NODE_RANK"]) == ("3", str(rank))
        assert (told["NCCL_SOCKET_IFNAME"], told["GLOO_SOCKET_IFNAME"]) == ("lo", "eth0")
        assert words[5:] == ["--force-mirror-local", "/mnt/nfs/datasets", "--some-extra-flag"]
    assert done.out.decode().splitlines()[-1] == "Successful nodes: 3/3"


def test_what_is_missing_is_told_of_all_nodes_before_anything_starts(home: Home, nodes: list[TestHost]) -> None:
    nodes[0].script("rm ~/.local/bin/madengine")
    nodes[1].script("rmdir /nfs/data")
    done = home.mesh(*on(BASIC, home, nodes))
    assert done.status == 125
    assert f"{nodes[0].address}: program: madengine: not found on the PATH" in done.err
    assert "pip install git+https://github.com/ROCm/madengine.git" in done.err
    assert f"{nodes[1].address}: path: /nfs/data is not there" in done.err
    assert recorded(done.out) == {}
    assert done.out.decode().splitlines()[-1] == "Successful nodes: 0/2"
    assert not nodes[0].path("/root/.mesh/workspaces").exists()  # nothing was sent either

    # What prerun does to PATH and the directory counts: the program is looked for after it.
    home.files(mesh__yaml="prerun:\n  - export PATH=$HOME/venv/bin:$PATH\n")
    nodes[1].script("mkdir /nfs/data")
    nodes[1].script("rm ~/.local/bin/madengine")
    install(nodes[0], RECORDER, "/root/venv/bin/madengine")
    for host in nodes[:2]:
        host.script("mkdir MAD")
    done = home.mesh(*on(BASIC, home, nodes), "--working-directory", "MAD")
    assert done.status == 125
    assert f"{nodes[1].address}: prerun" in done.err
    assert "madengine is not found here" in done.err
    assert recorded(done.out) == {}
    install(nodes[1], RECORDER, "/root/venv/bin/madengine")
    done = home.mesh(*on(BASIC, home, nodes), "--working-directory", "MAD")
    assert done.status == 0, done.err
    assert {tuple(told[:2]) for told in recorded(done.out).values()} == {("/root/MAD", "/root/venv/bin/madengine")}


def test_one_node_fails(home: Home, nodes: list[TestHost]) -> None:
    place = "/root/mad engine/madengine"
    install(nodes[0], "#!/bin/sh\nexec sleep 12345\n", place)
    install(nodes[1], "#!/bin/sh\necho no such model >&2\nexit 9\n", place)
    done = home.mesh(*on(BASIC, home, nodes), "--madengine-path", place, "--json")
    assert done.status == 9
    assert "no such model" in done.err
    assert all(json.loads(line)["event"] for line in done.out.splitlines())
    assert json.loads(done.out.splitlines()[-1])["exit_code"] == 9
    line = [*on(BASIC, home, nodes), "--madengine-path", place, "--timeout", "0.5", "--nodes", nodes[0].address]
    done = home.mesh(*line)
    assert done.status == 124
    assert done.out.decode().splitlines()[-1] == "Successful nodes: 0/1"


def test_by_password(home: Home) -> None:
    with Lab(2, sshd=["PasswordAuthentication yes"]) as lab:
        home.trust(lab)
        for host in lab.hosts:
            host.run("useradd", "-m", "-s", "/bin/bash", "ana")
            host.run("chpasswd", text=f"ana:{SECRET}\n")
            install(host, RECORDER, "/usr/local/bin/madengine")
            host.script("mkdir -p /shared/data")
        line = on(BY_PASSWORD.replace(f" {SECRET}", ""), home, lab.hosts)
        line[line.index("root")] = "ana"
        with home.terminal(*line) as terminal:
            terminal.expect(b"Password for ana")
            terminal.type(f"{SECRET}\n".encode())
            assert terminal.end() == 0, terminal.shown
            assert b"Successful nodes: 2/2" in terminal.shown
            assert SECRET.encode() not in terminal.shown
        home.environ["POD"] = SECRET
        by_variable = [*line[: line.index("--ssh-password")], "--password-env", "POD"]
        done = home.mesh(*by_variable, "--shared-data-path", "/shared/data")
        assert done.status == 0, done.err
        assert SECRET not in done.out.decode() + done.err
        assert files_with(SECRET, home.path, *(host.path("/home/ana") for host in lab.hosts)) == []
        assert eventually(lambda: not [one for host in lab.hosts for one in host.processes()])
