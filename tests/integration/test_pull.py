"""Files from real sshd hosts: beside a run, over links that are cut, and what is missing is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.workspace.pulled import part_of
from tests.agent.conftest import PYTHONS
from tests.conftest import Home, read_until
from tests.lab import Lab, TestHost, eventually, is_agent

MB = 1_000_000


@contextmanager
def slow(lab: Lab, rate: str = "20mbit") -> Iterator[None]:
    """What comes from all hosts together takes its time."""
    qdisc = ["tc", "qdisc", "add", "dev", "up0", "root", "tbf", "rate", rate, "burst", "64k", "latency", "50ms"]
    lab.in_switch(*qdisc)
    try:
        yield
    finally:
        lab.in_switch("tc", "qdisc", "del", "dev", "up0", "root")


def workspace(host: TestHost) -> Path:
    (found,) = [path for path in host.path("/root/.mesh/workspaces").iterdir() if not path.name.startswith(".")]
    return found


def unfinished(home: Home, node: int) -> Path:
    """Where out/big is as long as it is not complete."""
    return home.project / f"pulled/rank-{node:04d}/.mesh-parts" / os.fsdecode(part_of(b"out/big"))


@pytest.fixture
def made(pod: Home, lab: Lab) -> Home:
    """A run was there, and has left a big file and two small ones in ``out`` on every host."""
    script = "mkdir -p out/d && head -c 8000000 /dev/urandom >out/big && echo $RANK | tee out/a.txt >out/d/b.txt"
    assert pod.mesh("run", "pod", "-c", script).status == 0
    return pod


def same(home: Home, lab: Lab, path: str, into: str = "pulled") -> bool:
    """Compare by diff and not by our own means."""
    return not any(
        subprocess.run(
            ["diff", "-r", "--no-dereference", workspace(host) / path, home.project / f"{into}/rank-{n:04d}/{path}"],
            check=False,
        ).returncode
        for n, host in enumerate(lab.hosts)
    )


@pytest.mark.root
@pytest.mark.sshd
def test_from_every_host(made: Home, lab: Lab) -> None:
    done = made.mesh("pull", "pod", "out")
    assert (done.status, done.out) == (0, b"")
    assert re.fullmatch(r"==> pulled 12 files from 4 hosts into pulled: 32.0 MB, [0-9.]+ s\n", done.said), done.err
    assert same(made, lab, "out")
    done = made.mesh("pull", "pod", "out/*.txt", "--into", "elsewhere", "out/d/b.txt", "--ranks", "1,2")
    assert done.status == 0, done.err
    texts = {path: path.read_text() for path in (made.project / "elsewhere").glob("*/out/**/*.txt")}
    assert {str(path.relative_to(made.project / "elsewhere")): text.strip() for path, text in texts.items()} == {
        f"rank-{n:04d}/out/{name}": str(n + 1) for n in (0, 1) for name in ("a.txt", "d/b.txt")
    }
    assert "elsewhere is in the workspace: the next run sends it" in done.err
    again = made.mesh("pull", "pod", "out")
    assert "pulled 12 files (12 unchanged) from 4 hosts into pulled: 0 B" in again.err


@pytest.mark.root
@pytest.mark.sshd
def test_what_was_pulled_is_not_sent_by_the_next_run(made: Home) -> None:
    made.mesh("pull", "pod", "out")
    assert made.mesh("push", "--list").out.decode().split() == ["0", "B", "0", "files", "in", "all"]


@pytest.mark.root
@pytest.mark.sshd
def test_beside_a_run(pod: Home, lab: Lab) -> None:
    """Without its lock; a log that the run is writing comes as far as it is."""
    step = "n=$((n+1)); echo line $n; [ $n = 500 ] && echo written >&2; [ $n -lt 500 ] || sleep 0.02"
    loop = f"n=0; while :; do {step}; done >log"
    run = pod.popen("run", "pod", "-c", loop)
    try:
        for _ in lab.hosts:
            read_until(run.stderr, b"written")
        done = pod.mesh("pull", "pod", "log")
        assert done.status == 0, done.err
        assert run.poll() is None
        for number, host in enumerate(lab.hosts):
            text = (pod.project / f"pulled/rank-{number:04d}/log").read_bytes()
            with (workspace(host) / "log").open("rb") as whole:
                assert whole.read(len(text)) == text
            assert text.startswith(b"line 1\nline 2\n")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)


@pytest.mark.root
@pytest.mark.sshd
def test_it_is_seen_and_can_be_stopped(made: Home, lab: Lab) -> None:
    with slow(lab):
        pull = made.popen("pull", "pod", "out")
        try:
            assert eventually(lambda: all(unfinished(made, node).exists() for node in range(4)))
            (line,) = json.loads(made.mesh("ps", "--json", "pod").out)
            assert (line["command"], line["state"], len(line["hosts"])) == ("mesh pull", "pulling", 4)
        finally:
            pull.send_signal(signal.SIGINT)
            _, err = pull.communicate(timeout=60)
    assert pull.returncode == 130
    assert b"ended by SIGINT: the same command goes on from there" in err
    assert made.mesh("pull", "pod", "out").status == 0
    assert same(made, lab, "out")
    assert not list(made.project.rglob(".mesh-parts"))


@pytest.mark.root
@pytest.mark.sshd
def test_a_link_that_is_cut_for_a_while(made: Home, lab: Lab) -> None:
    """The same command goes on over another connection, and nothing comes twice."""
    with slow(lab):
        pull = made.popen("pull", "--json", "pod", "out")
        part = unfinished(made, 1)
        assert eventually(lambda: part.exists() and part.stat().st_size > 100_000, 30.0)
        lab.hosts[1].cut()
        time.sleep(17)  # longer than what is called silent
        lab.hosts[1].mend()
        out, err = pull.communicate(timeout=60)
    assert pull.returncode == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["rank"] for event in events if event["event"] == "reconnected"} == {1}
    assert [event["bytes"] for event in events if event["event"] == "pulled" and event["rank"] == 1] == [8_000_004]
    assert same(made, lab, "out")


@pytest.mark.root
@pytest.mark.sshd
def test_a_host_that_is_lost_and_the_next_pull_goes_on(made: Home, lab: Lab) -> None:
    made.environ["MESH_HOST_GRACE"] = "10"
    with slow(lab):
        pull = made.popen("pull", "pod", "out")
        part = unfinished(made, 1)
        assert eventually(lambda: part.exists() and part.stat().st_size > 500_000, 30.0)
        lab.hosts[1].cut()
        _, err = pull.communicate(timeout=60)
    assert pull.returncode == 76, err
    name = lab.hosts[1].address
    assert b"pulled 9 files from 3 of 4 hosts into pulled" in err
    assert f"error: host {name} lost: silent for 10 s".encode() in err
    had = part.stat().st_size
    assert had > 500_000
    lab.hosts[1].mend()
    lab.end_all(lab.hosts[1])
    del made.environ["MESH_HOST_GRACE"]
    done = made.mesh("pull", "--json", "pod", "out")
    assert done.status == 0, done.err
    (event,) = [one for one in map(json.loads, done.out.splitlines()) if one["event"] == "pulled" and one["rank"] == 1]
    assert event["bytes"] <= 8_000_004 - had
    assert same(made, lab, "out")


@pytest.mark.root
@pytest.mark.sshd
def test_an_agent_that_is_killed_is_a_lost_host(made: Home, lab: Lab) -> None:
    with slow(lab):
        pull = made.popen("pull", "pod", "out")
        part = unfinished(made, 2)
        assert eventually(part.exists, 30.0)
        for pid, command in lab.hosts[2].processes():
            if is_agent(command):
                with contextlib.suppress(ProcessLookupError):  # it ends when another of them has ended
                    os.kill(pid, signal.SIGKILL)
        _, err = pull.communicate(timeout=60)
    assert pull.returncode == 76, err
    assert b"from 3 of 4 hosts" in err
    assert made.mesh("pull", "pod", "out").status == 0


@pytest.mark.root
@pytest.mark.sshd
def test_a_client_that_is_killed_leaves_nothing(made: Home, lab: Lab) -> None:
    with slow(lab):
        pull = made.popen("pull", "pod", "out")
        assert eventually(lambda: bool(list(made.project.rglob(".mesh-parts/*"))), 30.0)
        pull.kill()
        pull.communicate(timeout=60)
    for host in lab.hosts:
        assert eventually(lambda h=host: not h.processes())  # type: ignore[misc]
        assert not list(host.path("/root/.mesh/machines").glob("*/spool*"))
    assert made.mesh("pull", "pod", "out").status == 0
    assert same(made, lab, "out")


@pytest.mark.root
@pytest.mark.sshd
def test_what_is_missing_is_named(made: Home, lab: Lab) -> None:
    (workspace(lab.hosts[1]) / "only").write_text("here")
    made.clusters(lab.cluster_yaml("pod", hosts=lab.hosts[:3]) + "    - 127.0.0.1:1\n")
    done = made.mesh("pull", "pod", "only", "out/a.txt")
    assert done.status == 125
    names = [host.address for host in lab.hosts]
    assert f"2 hosts ({names[0]}, {names[2]}): only: No such file or directory" in done.err
    assert "127.0.0.1: cannot connect to root@127.0.0.1 port 1: Connection refused" in done.err
    assert "==> pulled 4 files from 3 of 4 hosts into pulled" in done.err
    assert (made.project / "pulled/rank-0001/only").read_text() == "here"
    assert not (made.project / "pulled/rank-0003").exists()


@pytest.mark.root
@pytest.mark.sshd
def test_a_full_disk_here(made: Home, lab: Lab) -> None:
    place = made.project / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(place)], check=True)
    try:
        done = made.mesh("pull", "--into", "small", "pod", "out")
        assert done.status == 125
        assert "cannot be written here: No space left on device" in done.err
        assert "the next pull goes on where this one has ended" in done.err
        for file in place.rglob("big"):
            assert file.stat().st_size == 8_000_000
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
@pytest.mark.sshd
def test_a_slow_link_does_not_fill_the_disk_of_the_host(made: Home, lab: Lab) -> None:
    """What waits for the client is not read yet."""
    with slow(lab, "2mbit"):
        pull = made.popen("pull", "pod", "out")
        try:
            assert eventually(lambda: bool(list(made.project.rglob(".mesh-parts/*"))), 30.0)
            time.sleep(3)
            for host in lab.hosts:
                assert not list(host.path("/root/.mesh").rglob("spool*"))
                agents = [pid for pid, command in host.processes() if is_agent(command)]
                assert agents
                for pid in agents:
                    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                    assert found
                    assert int(found[1]) < 40_000
        finally:
            pull.send_signal(signal.SIGINT)
            pull.communicate(timeout=60)


@pytest.mark.parametrize("version", PYTHONS)
def test_the_built_in_cluster(home: Home, version: str) -> None:
    """Also with every Python that hosts may have."""
    programs = home.path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(PYTHONS[version])
    home.environ["PATH"] = f"{programs}:{home.environ['PATH']}"
    assert home.mesh("run", "local", "sh", "-c", "mkdir -p o; echo $RANK >o/f; ln -s f o/l").status == 0
    done = home.mesh("pull", "local", "--into", "here", "--", "o", "none*")
    assert done.status == 125, done.err
    assert "2 hosts (local-0, local-1): none*: nothing matches" in done.err
    for rank in range(2):
        place = home.project / f"here/rank-{rank:04d}/o"
        assert ((place / "f").read_text(), os.readlink(place / "l")) == (f"{rank}\n", "f")


def test_special_mode_bits_that_are_dropped_are_counted_once(home: Home) -> None:
    assert home.mesh("run", "local", "-c", "mkdir d; touch d/a d/b; chmod 4755 d/a; chmod 2755 d/b").status == 0
    done = home.mesh("pull", "local", "d")
    assert done.status == 0, done.err
    assert done.err.count("4 paths: setuid, setgid and sticky bits were not kept") == 1
    events = [json.loads(line) for line in home.mesh("pull", "--json", "local", "d").out.splitlines()]
    assert [event["special_modes"] for event in events if event["event"] == "pulled"] == [2, 2]


def test_wrong_words(home: Home) -> None:
    for words, message in [
        ([], "error: no cluster was named"),
        (["local"], "error: no path was named"),
        (["local", ""], "error: an empty path"),
        (["local", "x", "--into"], "error: --into needs a value"),
        (["local", "x", "--inot", "y"], "error: unknown option --inot; did you mean '--into'"),
        (["lokal", "x"], "error: no cluster 'lokal'"),
    ]:
        done = home.mesh("pull", *words)
        assert (done.status, done.err.startswith(message)) == (2, True), done.err
    home.files(file="x")
    home.mesh("run", "local", "true")
    done = home.mesh("pull", "local:1", "file", "--into", "file")
    assert done.status == 125
    assert f"cannot pull into {home.project}/file: " in done.err
    assert not (home.project / "pulled").exists()
