"""Runs, keepers and run directories of the version before, which is installed beside this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, REPOSITORY, Done, Home
from tests.integration.test_attach import left
from tests.integration.test_keeper import KEEP, NOTHING, shown, told, wait, without_logins
from tests.integration.test_lock import run_of, start
from tests.integration.test_supervision import connections
from tests.lab import Lab, TestHost, eventually, is_agent

pytestmark = [pytest.mark.root, pytest.mark.sshd]

OLDER_COMMIT = "69040be"
OLDER_SILENCE_S = 16.0  # agents of OLDER_COMMIT take a client that ends within 15 s of its last beat for killed
SLEEP = ["sh", "-c", "echo up; exec sleep 1000"]
UNTIL_OVER = ["sh", "-c", "echo up; while ! [ -e /tmp/over ]; do sleep 0.05; done; echo down; exit 3"]
HOW = pytest.mark.parametrize("how", ["attached", "detached"])


@pytest.fixture(scope="session")
def older_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the version before, from git's history. Without it the tests fail, as nobody would see a skip."""
    archive = ["git", "-C", str(REPOSITORY), "archive", OLDER_COMMIT, "mesh"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        pytest.fail(f"commit {OLDER_COMMIT} is not in this clone ({why}): run `git fetch --unshallow`", pytrace=False)
    tree = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archived:
        archived.extractall(tree)
    return tree


@pytest.fixture
def older(pod: Home, older_tree: Path) -> Home:
    """The same user, who calls the version before."""
    home = replace(pod, environ={**pod.environ, "PYTHONPATH": str(older_tree)})
    assert imported_mesh(home).startswith(str(older_tree))
    return home


def imported_mesh(home: Home) -> str:
    argv = [home.argv()[0], "-c", "import mesh; print(mesh.__file__)"]
    return subprocess.check_output(argv, cwd=home.project, env=home.environ, text=True)


def begin(older: Home, how: str, *words: str) -> tuple[str, subprocess.Popen[bytes] | None]:
    """Start a run of the version before on all hosts; return its id, and its client while there is one."""
    if how == "detached":
        return left(older, *words), None
    client = start(older, "run", *words)
    return run_of(older), client


def listed(home: Home) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(home.mesh("ps", "pod", "--json").out)
    return rows


def ended(done: Done, run: str) -> bool:
    return (done.status, done.out.decode()) == (0, f"stopped {run}\n")


def cleaned(home: Home) -> list[Mapping[str, Any]]:
    """Clean the hosts; return what was found there, without control groups, which all labs of this machine share."""
    done = home.mesh("clean", "pod", "--json")
    assert done.status == 0, done.err
    return [found for found in json.loads(done.out) if "/sys/fs/cgroup/" not in found["what"]]


def are_empty(lab: Lab) -> bool:
    return eventually(lambda: not any(host.processes() for host in lab.hosts))


def finish(lab: Lab) -> None:
    for host in lab.hosts:
        host.path("/tmp/over").touch()


@HOW
def test_a_run_of_the_version_before_is_listed_spared_respected_and_stopped(
    pod: Home, older: Home, lab: Lab, how: str
) -> None:
    run, client = begin(older, how, "pod", *SLEEP)
    (row,) = listed(pod)
    assert (row["run"], row["ranks"], row["hosts"]) == (run, 4, [host.address for host in lab.hosts])
    assert (row["command"], row["state"]) == ("sh -c 'echo up; exec sleep 1000'", "running")
    assert row["detached"] == (how == "detached")
    assert cleaned(pod) == []
    is_refused(pod, run)
    assert [row["run"] for row in listed(pod)] == [run]
    assert all(any("sleep 1000" in command for _, command in host.processes()) for host in lab.hosts)
    assert ended(pod.mesh("stop", run), run)
    has_ended(client)
    assert are_empty(lab)
    assert pod.mesh("ps", "pod").out == b"no run is there\n"
    (line,) = [line for line in pod.mesh("runs").out.decode().splitlines() if run in line]
    assert " stopped " in line
    assert pod.mesh("run", "pod", "true").status == 0


@HOW
def test_the_version_before_respects_a_run_of_this_one(pod: Home, older: Home, lab: Lab, how: str) -> None:
    run, client = begin(pod, how, "pod", *SLEEP)
    is_refused(older, run)
    assert [row["run"] for row in listed(older)] == [run]
    assert ended(older.mesh("stop", run), run)
    has_ended(client)
    assert are_empty(lab)
    assert older.mesh("run", "pod", "true").status == 0


def is_refused(home: Home, run: str) -> None:
    """Look that hosts which are busy with a run refuse another one."""
    refused = home.mesh("run", "pod", "echo", "started")
    assert (refused.status, refused.out) == (75, b"")
    assert "busy with root on " in refused.err
    assert f"(run {run}" in refused.err


def has_ended(client: subprocess.Popen[bytes] | None) -> None:
    """Look that the client of a stopped run ends by itself; a detached run has none."""
    if client is not None:
        _, err = client.communicate(timeout=60)
        assert client.returncode == 143, err


def without_records(pod: Home, tmp_path: Path) -> Home:
    """Return the same user in a home that has no record of a run."""
    return replace(pod, environ={**pod.environ, "XDG_STATE_HOME": str(tmp_path / "state")})


def test_stop_from_another_home_ends_a_run_of_the_version_before(
    pod: Home, older: Home, lab: Lab, tmp_path: Path
) -> None:
    run, client = begin(older, "attached", "pod", *SLEEP)
    elsewhere = without_records(pod, tmp_path)
    assert ended(elsewhere.mesh("stop", run[:-2], "--cluster", "pod", "--grace", "1"), run)
    assert client is not None
    client.communicate(timeout=60)
    assert are_empty(lab)


def test_clean_ends_what_killed_agents_of_the_version_before_have_left(pod: Home, older: Home, lab: Lab) -> None:
    script = "setsid sleep 4321 >/dev/null 2>&1 & echo up; wait"
    run, client = begin(older, "attached", "pod", "sh", "-c", script)
    assert client is not None
    first = lab.hosts[0]
    kill_agents(first)
    client.kill()
    client.communicate()
    assert ["orphaned" in row["state"] for row in listed(pod)] == [True]
    found = [item["what"] for item in cleaned(pod) if item["host"] == first.address]
    assert any("sleep 4321" in what and run in what for what in found), found
    assert are_empty(lab)
    assert cleaned(pod) == []


def kill_agents(host: TestHost) -> None:
    """Kill agents and guardians at once, so that none of them ends what the others leave."""
    agents = [pid for pid, command in host.processes() if is_agent(command)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def test_clean_ends_a_run_of_the_version_before_on_a_host_that_was_cut_off(pod: Home, older: Home, lab: Lab) -> None:
    """The host was cut off for so long that its agent waits for the end of the lease."""
    options = ["--grace", "1", "--host-grace", "15", "--lease", "300"]
    run, client = begin(older, "attached", *options, "pod", *SLEEP)
    assert client is not None
    first = lab.hosts[0]
    first.cut()
    cut_at = time.monotonic()
    client.communicate(timeout=60)
    assert client.returncode == 76
    time.sleep(max(0.0, cut_at + OLDER_SILENCE_S - time.monotonic()))
    for pid in connections(first):  # or the kernel would still deliver beats that were on their way
        os.kill(pid, signal.SIGKILL)
    first.mend()
    assert [row["hosts"] for row in listed(pod)] == [[first.address]]
    assert [item["what"] for item in cleaned(pod)][:1] == [f"run {run}, whose client is over"]
    assert are_empty(lab)


def test_the_next_run_ends_that_of_a_killed_client_of_the_version_before(pod: Home, older: Home, lab: Lab) -> None:
    _, client = begin(older, "attached", "--lease", "300", "pod", *SLEEP)
    assert client is not None
    client.kill()
    client.communicate()
    done = pod.mesh("run", "pod", "echo", "mine")
    assert (done.status, done.lines) == (0, [f"[{rank}] mine" for rank in range(4)]), done.err
    assert are_empty(lab)


@pytest.mark.parametrize("words", [["attach", "--from", "start"], ["logs", "-f"]], ids=["attach", "logs"])
def test_a_detached_run_of_the_version_before_is_followed_to_its_end(
    pod: Home, older: Home, lab: Lab, tmp_path: Path, words: list[str]
) -> None:
    """Here, and from another home, which brings all of its output."""
    run = left(older, "--keep-going", "pod", *UNTIL_OVER)
    elsewhere = without_records(pod, tmp_path)
    assert eventually(lambda: pod.mesh("logs", run).lines == [f"[{rank}] up" for rank in range(4)], PATIENCE)
    clients = [start(home, *words, "--cluster", "pod", run) for home in (pod, elsewhere)]
    finish(lab)
    for client in clients:
        out, err = client.communicate(timeout=60)
        assert sorted(out.decode().splitlines()) == [f"[{rank}] down" for rank in range(4)], err
        assert client.returncode == (3 if words[0] == "attach" else 0)
    assert pod.mesh("attach", "--output", "none", run).status == 3
    (line,) = [line for line in pod.mesh("runs").out.decode().splitlines() if run in line]
    assert " exit 3 " in line
    assert are_empty(lab)
    assert {item["what"].rpartition("/")[2] for item in cleaned(pod)} == {f"tape-{run}-{node}" for node in range(4)}


def test_attach_leaves_a_detached_run_of_the_version_before_and_another_home_stops_it(
    pod: Home, older: Home, lab: Lab, tmp_path: Path
) -> None:
    run = left(older, "pod", *SLEEP)
    client = start(pod, "attach", "--from", "start", run)
    client.send_signal(signal.SIGTERM)  # it leaves, and the run goes on
    client.communicate(timeout=60)
    assert [row["run"] for row in listed(pod)] == [run]
    elsewhere = without_records(pod, tmp_path)
    assert ended(elsewhere.mesh("stop", run[:-2], "--cluster", "pod", "--grace", "1"), run)
    assert are_empty(lab)


def test_an_attached_run_of_the_version_before_is_looked_into_and_detached(pod: Home, older: Home, lab: Lab) -> None:
    run, client = begin(older, "attached", "--keep-going", "pod", *UNTIL_OVER)
    assert client is not None
    stacks = pod.mesh("stacks", run)
    assert stacks.status == 0, stacks.err
    assert b"sleep" in stacks.out
    assert pod.mesh("detach", run).status == 0
    client.communicate(timeout=60)
    assert client.returncode == 0
    finish(lab)
    attached = pod.mesh("attach", run)
    assert (attached.status, attached.lines) == (3, [f"[{rank}] down" for rank in range(4)]), attached.err
    assert are_empty(lab)


def test_run_directories_of_the_version_before_are_listed_shown_and_pruned(pod: Home, older: Home) -> None:
    script = "echo out $RANK; echo err $RANK >&2; exit 9"
    assert older.mesh("run", "--keep-going", "pod", "sh", "-c", script).status == 9
    run = run_of(older)
    (line,) = pod.mesh("runs").out.decode().splitlines()[1:]
    assert line.split()[:2] == [run, "pod"]
    assert " exit 9 " in line
    (about,) = [json.loads(text) for text in pod.mesh("runs", "--json").out.splitlines()]
    assert (about["run"], about["exit_code"], len(about["ranks"])) == (run, 9, 4)
    shown = pod.mesh("logs", run)
    assert (shown.lines, shown.err.count("err ")) == ([f"[{rank}] out {rank}" for rank in range(4)], 4)
    assert pod.mesh("logs", "--rank", "2", "--stderr", "--grep", "err").said == "[2] err 2\n"
    assert run.encode() in pod.mesh("runs", "prune", "--keep", "0", "--older-than", "0").out
    assert not (pod.path / ".local/state/mesh/runs" / run).exists()


def test_a_keeper_of_the_version_before_is_replaced_and_leaves_nothing(
    pod: Home, lab: Lab, own_place: Path, older_tree: Path
) -> None:
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    older = replace(pod, environ={**pod.environ, "PYTHONPATH": str(older_tree)})
    assert older.mesh("exec", "pod", "true").status == 0
    wait(older)
    before = set(os.listdir(own_place))
    processes = {host.name: set(host.processes()) for host in lab.hosts}
    assert before
    assert all(processes.values())
    done = pod.mesh("exec", "pod", "echo", "up")
    assert (done.status, done.out.count(b"up")) == (0, 4), done.err
    wait(pod)
    assert eventually(lambda: not before & set(os.listdir(own_place))), os.listdir(own_place)
    for host in lab.hosts:
        assert eventually(lambda h=host: not processes[h.name] & set(h.processes()))  # type: ignore[misc]
    assert len(told(pod).splitlines()) == 1
    assert pod.mesh("keep", "stop").status == 0
    assert told(pod) == NOTHING


def test_a_command_through_a_keeper_of_the_version_before_goes_on_when_that_is_replaced(
    pod: Home, lab: Lab, own_place: Path, older_tree: Path
) -> None:
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    older = replace(pod, environ={**pod.environ, "PYTHONPATH": str(older_tree)})
    assert older.mesh("exec", "pod", "true").status == 0
    wait(older)
    with without_logins(lab):
        client = start(older, "exec", "pod", *UNTIL_OVER)
    assert pod.mesh("exec", "pod", "true").status == 0
    wait(pod)
    finish(lab)
    out, err = client.communicate(timeout=60)
    assert (client.returncode, b"down" in out) == (3, True), err
    assert pod.mesh("keep", "stop").status == 0  # the older command may have begun another keeper at its end
    assert told(pod) == NOTHING


def test_keep_stop_ends_a_keeper_of_the_version_before(
    pod: Home, lab: Lab, own_place: Path, older_tree: Path, tmp_path: Path
) -> None:
    pod.clusters(lab.cluster_yaml("pod", KEEP))
    older = replace(pod, environ={**pod.environ, "PYTHONPATH": str(older_tree)})
    assert older.mesh("exec", "pod", "true").status == 0
    wait(older)
    assert "an agent on 4 hosts" in shown(pod)
    another = replace(pod, environ={**pod.environ, "HOME": str(tmp_path)})
    assert another.mesh("keep", "stop").out == b"nothing is kept\n"
    assert pod.mesh("keep", "stop").out == b"the keeper has ended\n"
    assert (shown(older), shown(pod)) == (NOTHING, NOTHING)


def test_workspace_and_meshrun_go_on_where_the_version_before_has_left_them(pod: Home, older: Home) -> None:
    """jax.py stands in the place of JAX, and prints what it is called with."""
    pod.files(
        jax__py="class config:\n    jax_platforms = 'cpu'\n"
        "class distributed:\n    def initialize(**given): print(sorted(given), given['process_id'], flush=True)\n",
        main__py="import meshrun\nmeshrun.initialize_jax()\nprint(open('data.txt').read())\n",
    )
    for home, text in ((older, "one"), (pod, "two"), (older, "three"), (pod, "four")):
        pod.files(data__txt=text)
        done = home.mesh("run", "pod", "python3", "main.py")
        assert done.status == 0, done.err
        given = ["coordinator_address", "num_processes", "process_id"]
        assert done.lines == sorted(line for n in range(4) for line in (f"[{n}] {given} {n}", f"[{n}] {text}"))
