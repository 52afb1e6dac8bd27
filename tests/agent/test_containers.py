"""Containers end with the run that started them, though they are children of a daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import Exited, Gone, Lost, Output
from mesh.core.run import SetupCommand
from mesh.remote.agent.containers import Containers
from mesh.remote.blob import start_command
from tests.engine import engine
from tests.lab import eventually

from .conftest import Open, Run
from .test_cgroups import kill_both_and_come_again
from .test_ending import is_running

STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
SHELLS = [["sh"], ["bash", "--posix"]]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[str]:
    """PATH with the client of an engine in front."""
    with engine(tmp_path) as place:
        yield f"{place}:{os.environ['PATH']}"


def listed(path: str, *words: str) -> str:
    """What the engine says, of all runs."""
    docker = path.split(":")[0] + "/docker"
    return subprocess.run([docker, "ps", "-q", "--no-trunc", *words], capture_output=True, text=True, check=True).stdout


def scripts(remote_dir: Path) -> list[Path]:
    return list(remote_dir.glob("machines/*/bin-*"))


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
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
def test_words_reach_the_real_program(tmp_path: Path, shell: list[str], words: tuple[str, ...], marked: int) -> None:
    """marked: after that many words comes the label; 0: nothing does."""
    place = tmp_path / "the real one's"
    place.mkdir()
    real = place / "docker"
    real.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; print(ascii(sys.argv[1:]))' \"$@\"\n")
    real.chmod(0o755)
    environment = {b"PATH": os.fsencode(f"{place}:{os.environ['PATH']}")}
    containers = Containers(str(tmp_path / "dot mesh"), "R-1", 0)
    containers.stand_before(environment)
    containers.stand_before(environment)  # a second time changes nothing
    script = os.fsdecode(environment[b"PATH"]).split(":")[0] + "/docker"
    done = subprocess.run([*shell, script, *words], capture_output=True, text=True, check=True)
    label = ["--label", "mesh.run=R-1"] if marked else []
    assert done.stdout == ascii([*words[:marked], *label, *words[marked:]]) + "\n"
    assert done.stderr == ""
    containers.remove()
    assert not scripts(tmp_path / "dot mesh")


def test_no_engine_no_script(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environment = {b"PATH": os.fsencode(tmp_path / "bin")}
    Containers(str(tmp_path / "mesh"), "R", 0).stand_before(environment)
    assert environment == {b"PATH": os.fsencode(tmp_path / "bin")}
    assert not (tmp_path / "mesh").exists()


def test_containers_end_with_the_run_on_each_python(opener: Open, python: str, docker: str, remote_dir: Path) -> None:
    run = opener(python)
    run.prepare(["docker run -d image sleep 4567"], env={"PATH": docker})
    run.start("sh", "-c", f'docker run -d image sleep 4567; docker run -d image sh -c "{STUBBORN}"')
    assert run.until(Exited)
    assert len(listed(docker).split()) == 3
    assert run.finish(grace=1.0).left == ()
    assert listed(docker) == ""
    assert not scripts(remote_dir)


def test_a_container_that_is_being_started_when_its_client_is_killed(agent: Run, tmp_path: Path) -> None:
    with engine(tmp_path, slow=1.0) as place:
        path = f"{place}:{os.environ['PATH']}"
        agent.prepare(env={"PATH": path})
        agent.start("sh", "-c", f"docker run image sleep 4567 & until {place}/docker ps -aq | grep .; do :; done")
        agent.until(Exited)
        assert agent.finish(grace=0.0).left == ()
        assert len(listed(path, "-a").split()) == 1
        assert listed(path) == ""


def test_what_nobody_has_started_by_mesh_stays(agent: Run, docker: str) -> None:
    theirs = subprocess.run(
        [docker.split(":")[0] + "/docker", "run", "-d", "--label", "mesh.run=another", "image", "sleep", "4567"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    agent.prepare(env={"PATH": docker})
    agent.start("docker", "run", "-d", "image", "sleep", "4567")
    agent.until(Exited)
    assert agent.finish().left == ()
    assert listed(docker) == theirs


def test_a_script_that_prerun_has_hidden_stands_in_front_again(agent: Run, docker: str) -> None:
    agent.prepare(["PATH=$ENGINES:$PATH"], env={"PATH": docker, "ENGINES": docker.split(":")[0]})
    agent.start("docker", "run", "-d", "image", "sleep", "4567")
    agent.until(Exited)
    assert agent.finish(grace=0.0).left == ()
    assert listed(docker) == ""


def test_an_engine_that_does_not_answer_is_named(agent: Run, docker: str) -> None:
    agent.prepare(env={"PATH": docker})
    agent.start("docker", "run", "-d", "image", "sleep", "4567")
    agent.until(Exited)
    client = Path(docker.split(":")[0], "docker")
    kept = client.read_text()
    client.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2; exit 1\n")
    (left,) = agent.finish(grace=0.0).left
    assert left == "containers of the run: docker ps: Cannot connect to the daemon"
    client.write_text(kept)


@pytest.mark.parametrize("whom", ["agent", "client"])
def test_containers_of_a_run_whose_agent_or_client_dies(
    opener: Open, any_python: str, docker: str, remote_dir: Path, whom: str
) -> None:
    run = opener(any_python, grace=0.3)
    run.prepare(env={"PATH": docker})
    run.start("sh", "-c", "docker run -d image sleep 4567 >&2; echo $PPID; exec sleep 4567")
    run.until(Output, where=lambda event: isinstance(event, Output) and event.data.strip().isdigit())
    agent = int(run.printed())
    if whom == "agent":
        os.kill(agent, signal.SIGKILL)
        lost = run.until(Lost)
        assert isinstance(lost, Lost)
        assert lost.is_clear
    else:
        run.session.close()
        assert eventually(lambda: not is_running(agent), 15.0)
    assert listed(docker) == ""
    assert not scripts(remote_dir)


def test_containers_when_agent_and_guardian_are_killed(
    agent: Run, any_python: str, docker: str, remote_dir: Path
) -> None:
    agent.prepare(["docker run -d image sleep 4567"], env={"PATH": docker})
    assert listed(docker)
    assert kill_both_and_come_again(agent, start_command(any_python)).is_clear
    assert listed(docker) == ""
    assert not scripts(remote_dir)


def test_a_kill_does_not_wait_for_a_container(agent: Run, docker: str) -> None:
    agent.prepare([f'docker run -d image sh -c "{STUBBORN}"'], env={"PATH": docker})
    agent.start("true")
    agent.until(Exited)
    agent.session.finish(signal.SIGTERM, 3600.0)
    agent.session.kill()
    gone = agent.until(Gone)
    assert isinstance(gone, Gone)
    assert gone.left == ()
    assert listed(docker) == ""


def test_the_containers_of_a_setup_stay(agent: Run, docker: str) -> None:
    agent.prepare(env={"PATH": docker})
    agent.session.setup(0, [SetupCommand(run="docker run -d image sleep 4567")], False)
    agent.until(Exited)
    gone = agent.finish()
    assert isinstance(gone, Gone)
    assert len(listed(docker).split()) == 1
