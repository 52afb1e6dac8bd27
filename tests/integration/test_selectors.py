"""Selectors on real hosts: every command that takes a cluster takes some hosts of it, several, or hosts in no file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Home
from tests.lab import Lab, eventually


@pytest.fixture
def home(home: Home, lab: Lab) -> Home:
    """Two clusters of two hosts each, and keys for hosts in no file."""
    home.clusters(lab.cluster_yaml("pod", hosts=lab.hosts[:2]) + lab.cluster_yaml("more", hosts=lab.hosts[2:]))
    home.trust(lab)
    (home.path / ".ssh/config").write_text(f"Host *\n  IdentityFile {lab.identity}\n")
    return home


def addresses(lab: Lab, nodes: Sequence[int]) -> list[str]:
    return [lab.hosts[node].address for node in nodes]


def workspaces(lab: Lab) -> list[int]:
    """Return the hosts that have a workspace."""
    return [node for node, host in enumerate(lab.hosts) if host.path("/root/.mesh/workspaces").exists()]


@pytest.fixture
def detached(home: Home) -> Iterator[str]:
    """A detached run on hosts 1 and 2."""
    done = home.mesh(
        "run", "-d", "pod:1,more:0", "python3", "-c", "import time; print('up', flush=True); time.sleep(1000)"
    )
    assert done.status == 0, done.err
    run = done.out.decode().split()[-1]
    try:
        yield run
    finally:
        home.mesh("stop", run)


SELECTORS = {
    "pod": [0, 1],
    "pod:1": [1],
    "pod:1,0": [1, 0],
    "more:0-1,pod": [2, 3, 0, 1],
    "pod:1,more:1": [1, 3],
    "@{3},root@{0}:22": [3, 0],
    "more:{2},@{1}": [2, 1],
}


BOTH = ("pod:1,more:1", "more:{2},@{1}")  # for which exec is tried too


@pytest.mark.parametrize("selector", SELECTORS)
def test_run_and_exec(home: Home, lab: Lab, selector: str) -> None:
    written, nodes = selector.format(*addresses(lab, range(4))), SELECTORS[selector]
    for command in ("run", "exec") if selector in BOTH else ("run",):
        done = home.mesh(command, "--output", "rank0", written, "sh", "-c", "echo $WORLD_SIZE $MESH_HOSTS")
        assert done.status == 0, done.err
        assert done.out.decode().split() == [str(len(nodes)), ",".join(addresses(lab, nodes))]
    assert workspaces(lab) == sorted(nodes)


def test_push_pull_and_setup(home: Home, lab: Lab) -> None:
    home.files(a__txt="a", mesh__yaml="commands: ['touch /tmp/set-up']\n")
    done = home.mesh("push", "pod:1,more:1")
    assert done.status == 0, done.err
    assert workspaces(lab) == [1, 3]
    done = home.mesh("pull", "more:1,pod:1", "a.txt")
    assert done.status == 0, done.err
    assert sorted(path.name for path in (home.project / "pulled").glob("rank-*")) == ["rank-0000", "rank-0001"]
    done = home.mesh("setup", "pod:0")
    assert done.status == 0, done.err
    assert [host.path("/tmp/set-up").exists() for host in lab.hosts] == [True, False, False, False]


def test_check_and_ssh(home: Home, lab: Lab) -> None:
    done = home.mesh("check", "--json", "more:1,pod:0")
    assert [one["host"] for one in json.loads(done.out)] == addresses(lab, [3, 0]), done.err
    home.own_known_hosts()
    for target, node in (("more:1", 3), ("pod", 0), (f"@root@{lab.hosts[2].address}", 2)):
        done = home.mesh("ssh", target, "--", "echo", "$SSH_CONNECTION")
        assert done.out.decode().split()[2:3] == addresses(lab, [node]), done.err


def test_ps_and_stacks(home: Home, lab: Lab, detached: str) -> None:
    for selector, seen in (("pod:0", []), ("pod:1", [1]), ("more:0,pod:1", [2, 1])):
        done = home.mesh("ps", "--json", selector)
        hosts = [host for line in json.loads(done.out) for host in line["hosts"]]
        assert sorted(hosts) == sorted(addresses(lab, seen)), done.err
    for word in ("pod", "more:0", "pod:1,more:0"):
        done = home.mesh("stacks", "--json", word)
        assert json.loads(done.out)["run"] == detached, done.err
    assert "no run is on pod:0" in home.mesh("stacks", "pod:0").err


def test_logs_and_attach_take_a_cluster_for_its_newest_run(home: Home, lab: Lab, detached: str) -> None:
    assert home.mesh("run", "more:1", "echo", "other").status == 0
    for word in ("pod", "pod:1,more:0"):
        assert eventually(lambda word=word: home.mesh("logs", word).lines == ["[0] up", "[1] up"], 120.0)
    assert home.mesh("logs", "more").lines == ["[0] other"]
    process = home.popen("attach", "--from", "start", "pod")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"up\n")
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert "pod:7" in home.mesh("logs", "pod:7").err


def test_stop_takes_a_cluster_for_the_run_on_it(home: Home, lab: Lab, detached: str, tmp_path: Path) -> None:
    """It ends on all of its hosts, also on those that the word does not name, and from a machine that has no record."""
    second = home.popen("run", "more:1", "sh", "-c", "echo up; exec sleep 1000")
    assert second.stdout is not None
    assert second.stdout.readline().endswith(b"up\n")
    both = home.mesh("stop", "more")
    assert (both.status, "several runs are on more" in both.err) == (2, True), both.err
    home.environ["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
    done = home.mesh("stop", "pod:0-1,more:0")
    assert done.lines == [f"stopped {detached}"], done.err
    del home.environ["XDG_STATE_HOME"]
    assert home.mesh("stop", "more").status == 0
    second.communicate(timeout=PATIENCE)
    assert "no run is on more" in home.mesh("stop", "more").err


def test_hosts_that_are_named_twice_or_cannot_be_joined(home: Home, lab: Lab) -> None:
    first = lab.hosts[0].address
    assert f"host {first} is named twice" in home.mesh("exec", f"pod,@{first}", "true").err
    home.clusters(lab.cluster_yaml("pod", hosts=lab.hosts[:2]) + lab.cluster_yaml("more", "python: /usr/bin/python3"))
    refused = home.mesh("exec", "pod:0,more:3", "true")
    assert refused.status == 2
    assert "cannot be one cluster: python is python3 in pod and /usr/bin/python3 in more" in refused.err


def test_hosts_that_mesh_does_not_make(home: Home) -> None:
    for command in ("up", "down"):
        done = home.mesh(command, "pod")
        assert (done.status, done.out) == (2, b"")
        assert "pod: mesh neither makes nor deletes its hosts: they are listed in cluster.yaml" in done.err
