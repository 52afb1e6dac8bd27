"""Containers are children of a daemon: they are labelled when they are started, and stopped by the label."""

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

from mesh.agent.process.containers import Containers
from mesh.core.events import Lost, Output, Ready
from tests import docker
from tests.agent.conftest import Open, Run
from tests.conftest import REPOSITORY
from tests.lab import eventually


@pytest.fixture
def sock(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "docker.sock"
    daemon = subprocess.Popen([sys.executable, "-m", "tests.docker", str(path)], cwd=REPOSITORY)
    assert eventually(lambda: answers(str(path)), 60.0)
    yield str(path)
    daemon.terminate()
    daemon.wait()


@pytest.fixture
def run(opener: Open, any_python: str, tmp_path: Path, sock: str) -> Run:
    """A host with docker, and a run that is ready to start its ranks."""
    (tmp_path / "programs").mkdir()
    docker.install(tmp_path / "programs", Path(sock))
    run = opener(any_python, grace=1.0)
    given = {"PATH": f"{tmp_path}/programs:{os.environ['PATH']}", "MESH_RUN_ID": "x"}
    assert isinstance(run.prepare(env=given), Ready)
    return run


def answers(sock: str) -> bool:
    """Return True once the daemon takes connections: its socket is there before."""
    with contextlib.suppress(OSError):
        return docker.ask(sock, do="ps", labels=[]) == []
    return False


def running(sock: str) -> list[str]:
    found = docker.ask(sock, do="ps", labels=[])
    assert isinstance(found, list)
    return found


def scripts(remote_dir: Path) -> list[Path]:
    return list(remote_dir.glob("machines/*/bin-*"))


@pytest.mark.parametrize(
    "how",
    [
        "docker run -d image sleep 1000",
        "docker --context c -H unix:///x container run -d --name n image sleep 1000",
        "docker start $(docker create image sleep 1000)",
        "exec docker run image sh -c 'trap \"\" TERM; echo; sleep 1000' &",
    ],
)
def test_no_container_outlives_the_run(run: Run, sock: str, remote_dir: Path, how: str) -> None:
    run.start("sh", "-c", f"{how}\nsleep 1000")
    assert eventually(lambda: len(running(sock)) == 1)
    assert run.finish(grace=1.0).left == ()
    assert running(sock) == []
    assert scripts(remote_dir) == []


def test_one_that_is_being_started_when_its_client_is_killed(run: Run, sock: str) -> None:
    docker.ask(sock, do="slow", seconds=1.0)
    run.start("sh", "-c", "docker run image sleep 1000 & sleep 1000")
    assert eventually(lambda: docker.ask(sock, do="starting"))
    assert run.finish(grace=0.0).left == ()
    assert running(sock) == []
    assert docker.ask(sock, do="ps", labels=["status=created"]) == []


def test_a_script_that_prerun_hides_stands_in_front_again(
    opener: Open, any_python: str, tmp_path: Path, sock: str
) -> None:
    (tmp_path / "programs").mkdir()
    docker.install(tmp_path / "programs", Path(sock))
    run = opener(any_python)
    assert isinstance(run.prepare([f"PATH={tmp_path}/programs:$PATH"]), Ready)
    run.start("sh", "-c", "docker run -d image sleep 1000; sleep 1000")
    assert eventually(lambda: len(running(sock)) == 1)
    assert run.finish(grace=0.0).left == ()
    assert running(sock) == []


@pytest.mark.parametrize("shell", [["sh"], ["bash", "--posix"]], ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    ("words", "marked"),
    {
        ("run",): 1,
        ("create", "a"): 1,
        ("container", "run", "-it", "a"): 2,
        ("-H", "tcp://h:1", "--tls", "-D", "run", "a"): 5,
        ("--host=tcp://h:1", "create", "a b"): 2,
        ("--context", "run", "create", "a"): 3,
        ("--config", "create", "ps"): 0,
        ("run", "-e", "X=a\nb", "", "'q\"$x`*\\", "\udcff"): 1,
        (): 0,
        ("ps", "run"): 0,
        ("image", "create"): 0,
        ("container", "ls", "run"): 0,
        ("--version",): 0,
    }.items(),
)
def test_only_run_and_create_are_labelled(
    tmp_path: Path, shell: list[str], words: tuple[str, ...], marked: int
) -> None:
    """marked: after that many words comes the label; 0: nothing does, and nothing is noted."""
    place = tmp_path / "the real one's"
    place.mkdir()
    real = place / "docker"
    told = "import os, sys; print(ascii(sys.argv[1:]), os.environ['n'], os.environ['word'])"
    real.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{told}" "$@"\n')
    real.chmod(0o755)
    containers = Containers(str(tmp_path / "it's ours"), "R-1")
    path = containers.cover(os.fsencode(f"{place}:{os.environ['PATH']}"))
    assert containers.cover(path) == path
    script = os.fsdecode(path).split(":")[0] + "/docker"
    environment = {**os.environ, "n": "5", "word": "w"}
    done = subprocess.run([*shell, script, *words], env=environment, capture_output=True, text=True, check=True)
    label = ["--label", "mesh.run=R-1"] if marked else []
    assert done.stdout == ascii([*words[:marked], *label, *words[marked:]]) + " 5 w\n"
    assert done.stderr == ""
    assert containers.used() == bool(marked)


def test_a_container_of_somebody_else_stays(run: Run, sock: str) -> None:
    other = docker.ask(sock, do="create", argv=["sleep", "1000"], labels=["mesh.run=other"])
    docker.ask(sock, do="start", name=other)
    run.start("sh", "-c", "docker run -d image sleep 1000")
    assert eventually(lambda: len(running(sock)) == 2)
    assert run.finish(grace=1.0).left == ()
    assert running(sock) == [other]


def test_words_arrive_as_they_are(run: Run) -> None:
    run.start("docker", "info", "--format", "a b", "run", "it's", 'x"y', "")
    run.result()
    assert json.loads(run.printed()) == ["info", "--format", "a b", "run", "it's", 'x"y', ""]


def test_without_a_container_no_daemon_is_asked(run: Run, tmp_path: Path, remote_dir: Path) -> None:
    assert scripts(remote_dir)
    (tmp_path / "programs/docker").unlink()
    run.start("true")
    run.result()
    assert scripts(remote_dir) == []


def test_a_daemon_that_does_not_answer_is_named(run: Run, tmp_path: Path) -> None:
    run.start("sh", "-c", "docker run -d image sleep 1000; echo up; sleep 1000")
    run.until(Output, where=lambda event: isinstance(event, Output) and b"up" in event.data)
    (tmp_path / "programs/docker").write_text("#!/bin/sh\nexit 1\n")
    (line,) = run.finish(grace=1.0).left
    assert line.startswith("cannot see whether containers are left: docker: ")


def test_the_guardian_stops_them_as_well(run: Run, sock: str, remote_dir: Path) -> None:
    run.start("sh", "-c", "docker run -d image sleep 1000; echo $PPID; sleep 1000")
    said = run.until(Output, where=lambda event: isinstance(event, Output) and event.data.strip().isdigit())
    assert isinstance(said, Output)
    assert len(running(sock)) == 1
    os.kill(int(said.data), signal.SIGKILL)
    lost = run.until(Lost)
    assert isinstance(lost, Lost)
    assert lost.is_clear
    assert running(sock) == []
    assert scripts(remote_dir) == []


def test_without_docker_there_is_nothing_in_the_way(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path)
    assert Containers(str(tmp_path / "bin"), "r").cover(path) == path
    assert not (tmp_path / "bin").exists()
