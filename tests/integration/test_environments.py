"""Environments with a real uv, real venv and pip, and real environments of conda behind a stand-in for its command."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from mesh.core.module import Conda, Python, Step
from mesh.modules.conda import CondaEnvironment
from mesh.modules.python import PythonEnvironment
from tests import conda
from tests.full import IS_FULL, times
from tests.steps import Ended, Place, check, prepare, run, start, tree, undo
from tests.wheels import write_wheel

MODULES = ("alpha", "beta")
VERSIONS = ("1.0", "2.0")
KILLED_WITHIN_S = {"uv": 0.6, "venv": 4.0}  # about as long as the real tool takes
INDEX = "--no-index\n--find-links wheels\n"
PROJECT = """\
[project]
name = "trainer"
version = "0.1"
requires-python = ">=3.8"
dependencies = ["alpha==1.0"]
[dependency-groups]
dev = ["beta"]
[tool.uv]
no-index = true
find-links = ["wheels"]
package = false
"""


@pytest.fixture
def place(tmp_path: Path, tools: Path) -> Place:
    """A host with uv on PATH, whose paths have a space and quotes, and wheels in its workspace."""
    path = f"{tools}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    # The cache is one for all tests: uv links from it.
    found = Place(tmp_path / "it's a place", {"PATH": path, "UV_CACHE_DIR": str(tmp_path / "cache")})
    write_wheels(found.workspace)
    return found


def write_wheels(workspace: Path) -> None:
    for name in MODULES:
        for version in VERSIONS:
            write_wheel(workspace / "wheels", name, version)


def found(place: Place, module: PythonEnvironment | CondaEnvironment) -> str:
    """Return the versions of the modules that a command in the environment finds."""
    program = "for name in ('alpha', 'beta'):\n try: print(name, __import__(name).VERSION)\n except ImportError: pass"
    ended = run(f'{module.enter}\npython -c "{program}"', place)
    assert ended.status == 0, ended
    return ended.out


def ready(ended: Ended) -> None:
    assert ended.status == 0, ended


# ---- uv and venv


def kill(step: Step, place: Place, after: float) -> None:
    """Kill the application of a step with all its processes. after: seconds"""
    process = start(step.apply, place)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("tool", KILLED_WITHIN_S)
def test_requirements_change_and_what_is_killed_broken_or_absent_is_repaired_or_named(place: Place, tool: str) -> None:
    """Its steps share an environment, which venv and pip take long to make."""
    module = PythonEnvironment(Python(tool=tool))
    (place.workspace / "requirements.txt").write_text(f"{INDEX}alpha==1.0\n")
    before = tree(place)
    kill(module.steps((), 0)[-1], place, KILLED_WITHIN_S[tool] / 2)
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 1.0\n"
    applied, again = prepare(module.steps((), 0), place)
    assert (applied, again.out + again.err) == ([], "")
    (place.workspace / "requirements.txt").write_text(f"{INDEX}alpha==2.0\nbeta\n")
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 2.0\nbeta 2.0\n"
    (place.workspace / "requirements.txt").write_text(f"{INDEX}gamma\n")
    ended = prepare(module.steps((), 0), place)[1]
    assert ended.status == 125
    *_, last = ended.err.splitlines()
    assert "install -r requirements.txt` failed, exit 1: " in last
    assert "gamma" in last, ended
    assert last.endswith(f": correct requirements.txt, or the index that {'uv' if tool == 'uv' else 'pip'} uses"), last
    (place.workspace / "requirements.txt").write_text(f"{INDEX}alpha==2.0\nbeta\n")
    python = place.workspace / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere")
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 2.0\nbeta 2.0\n"
    for step in reversed(module.steps((), 0)):
        ready(undo(step, place))
    assert {path for path in tree(place) - before if not path.startswith("home/.rustup")} == set()


def test_uv_takes_a_lock_file_and_nothing_else(place: Place) -> None:
    lock(place)
    module = PythonEnvironment(Python(tool="uv"))
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 1.0\nbeta 2.0\n", "the group dev belongs to it"
    (place.workspace / ".venv/stays").write_text("")
    (place.workspace / "pyproject.toml").write_text(PROJECT.replace("1.0", "2.0"))
    lock(place, PROJECT.replace("alpha==1.0", "alpha==2.0"))
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 2.0\nbeta 2.0\n"
    assert (place.workspace / ".venv/stays").exists(), "uv has not made it anew"


def lock(place: Place, text: str = PROJECT) -> None:
    (place.workspace / "pyproject.toml").write_text(text)
    ready(run("uv lock --quiet", place))


def test_a_lock_file_keeps_what_the_user_has_installed(place: Place) -> None:
    lock(place, PROJECT.replace('dev = ["beta"]', "dev = []"))
    ready(run("uv venv --quiet && uv pip install --quiet --no-index --find-links wheels beta==1.0", place))
    module = PythonEnvironment(Python(tool="uv"))
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 1.0\nbeta 1.0\n"
    for step in reversed(module.steps((), 0)):
        ready(undo(step, place))
    assert found(place, module) == "alpha 1.0\nbeta 1.0\n"


@pytest.mark.parametrize("has_uv", [True, False])
def test_a_project_without_a_lock_file(place: Place, has_uv: bool) -> None:
    (place.workspace / "pyproject.toml").write_text(PROJECT)
    if not has_uv:
        place.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        place.environ |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"}
    module = PythonEnvironment(Python(tool="uv"))
    before = tree(place)
    ready(prepare(module.steps((), 0), place)[1])
    assert found(place, module) == "alpha 1.0\n"
    new = {path.split("/")[1] for path in tree(place) - before if path.startswith("workspace/")}
    assert new == {".venv", ".venv.mesh-lock"}, "nothing is built, and no lock file is written"


def test_uv_finds_the_python_that_is_asked_for(place: Place) -> None:
    (place.workspace / "requirements.txt").write_text(f"{INDEX}alpha==1.0\n")
    own = "{}.{}".format(*sys.version_info)
    module = PythonEnvironment(Python(tool="uv", python=own))
    ready(prepare(module.steps((), 0), place)[1])
    assert run(f"{module.enter}\npython -V", place).out.startswith(f"Python {own}.")
    place.environ["UV_PYTHON_DOWNLOADS"] = "never"
    ended = prepare(PythonEnvironment(Python(tool="uv", python="3.2")).steps((), 0), place)[1]
    assert ended.status == 125
    assert "`uv venv` failed, exit" in ended.err.splitlines()[-1]
    assert "see `python:` in mesh.yaml" in ended.err.splitlines()[-1]


@pytest.mark.parametrize("tool", KILLED_WITHIN_S if IS_FULL else ["uv"])
def test_kills_of_the_real_tools_are_repaired(place: Place, tool: str) -> None:
    module = PythonEnvironment(Python(tool=tool))
    step = module.steps((), 0)[-1]
    (place.workspace / "requirements.txt").write_text(f"{INDEX}alpha==1.0\nbeta==1.0\n")
    chance = random.Random(1)
    for _ in range(times(3, full=20) if tool == "uv" else 5):
        kill(step, place, chance.random() * KILLED_WITHIN_S[tool])
        if check(step, place).status == 0:
            assert found(place, module) == "alpha 1.0\nbeta 1.0\n"
        ready(prepare([step], place)[1])
        assert found(place, module) == "alpha 1.0\nbeta 1.0\n"
        ready(undo(step, place))


# ---- conda


@pytest.fixture
def base(place: Place, tools: Path) -> Place:
    """A host with the stand-in for conda in ~/miniconda3, and a channel that rattler reads."""
    conda.write_channel(place.root / "channel")
    conda.index(place.root / "channel", str(tools))
    conda.install(place.home / "miniconda3", rattler=str(tools))
    return place


def want(workspace: Path, channel: Path, *specs: str) -> None:
    described = {"channels": [channel.as_uri()], "dependencies": specs}
    (workspace / "environment.yml").write_text(json.dumps(described))


def test_an_environment_of_conda_is_made_changed_and_undone(base: Place) -> None:
    module = CondaEnvironment(Conda(name="train", file="environment.yml"))
    want(base.workspace, base.root / "channel", "python", "greet=1.0", "extra")
    ready(prepare(module.steps((), 0), base)[1])
    assert run(f"{module.enter}\ngreet a; command -v extra", base).out.startswith("greet 1.0 a\n/")
    assert prepare(module.steps((), 0), base)[0] == []
    want(base.workspace, base.root / "channel", "python", "greet=2.0")
    ready(prepare(module.steps((), 0), base)[1])
    assert run(f"{module.enter}\ngreet a; command -v extra", base).out == "greet 2.0 a\n", "extra is pruned"
    records = sorted(path.name for path in (base.home / "miniconda3/envs/train/conda-meta").glob("*.json"))
    assert records == ["greet-2.0-0.json", "python-3.11.0-0.json"]
    ready(undo(module.steps((), 0)[0], base))
    assert os.listdir(base.home / "miniconda3/envs") == []
