"""Environments of uv and venv: their texts, run by a real bash, with a stand-in for uv that can be cut anywhere."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.core.errors import MeshError
from mesh.core.module import Python, Step
from mesh.modules.python import PythonEnvironment
from mesh.modules.uv import LocalUv
from tests.full import times
from tests.steps import STEP_TIMEOUT_S, Ended, Place, apply, check, prepare, run, start, tree, undo

KILL_POINTS = times(5, full=20)  # one in each state
STATES = ("new", "changed", "broken", "half made", "adopted")
APPLY_S = 0.5  # about as long as an apply with the stand-in takes
# Each package is half installed for a while: its directory without RECORD.
STAND_IN = f"""#!/bin/bash
printf '%s\\n' "$*" >>"$HOME/calls"
pause() {{ sleep 0.02; }}
env=$UV_PROJECT_ENVIRONMENT
for word; do [ "$last" != --python ] || {{ env=${{word%/bin/python}}; }}; last=$word; done
case $1 in
    --version) echo uv 0.0 ;;
    venv)
        mkdir -p "$last/bin"; pause
        printf 'home = %s\\n' {shlex.quote(os.path.dirname(os.path.realpath(sys.executable)))} >"$last/pyvenv.cfg"
        pause
        mkdir -p "$last/lib/python3/site-packages"; pause
        ln -sf {shlex.quote(os.path.realpath(sys.executable))} "$last/bin/python" ;;
    pip | sync)
        if [ "$1" = sync ]; then names=$(cat uv.lock); else names=$(cat "$last"); fi
        case $names in *missing*) echo 'error: No solution found: missing' >&2; exit 1 ;; esac
        for name in $names; do
            place=$env/lib/python3/site-packages/$name.dist-info
            case " $* " in *' --reinstall '*) rm -rf "$place" ;; esac
            [ ! -d "$place" ] || continue  # as pip: it does not see that one is half installed
            mkdir -p "$place"; pause
            : >"$place/RECORD"
        done ;;
esac
"""
PACKAGES = "alpha-1\nbeta-2\ngamma-3\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A host whose paths have a space, quotes and a dollar."""
    root = tmp_path / "it's a $place"
    found = Place(root)
    (root / "bin").mkdir()
    program = root / "bin/uv"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    found.environ["PATH"] = f"{root}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    (found.workspace / "requirements.txt").write_text(PACKAGES)
    return found


def environment(place: Place, **more: str) -> Step:
    """Return the step that makes the environment."""
    return steps(**more)[-1]


def steps(uv: LocalUv | None = None, **more: str) -> Sequence[Step]:
    module = PythonEnvironment(Python(**{"tool": "uv", **more}), *([uv] if uv else []))
    return module.steps((), 0)


def installed(place: Place, path: str = ".venv") -> dict[str, bool]:
    """Return for each package whether it is all there."""
    found = (place.workspace / path).glob("lib/python3/site-packages/*.dist-info")
    return {package.name.removesuffix(".dist-info"): (package / "RECORD").exists() for package in found}


def calls(place: Place) -> list[str]:
    return [line for line in (place.home / "calls").read_text().splitlines() if line != "--version"]


def whole(place: Place, *names: str) -> bool:
    return installed(place) == dict.fromkeys(names, True)


def test_an_environment_is_made_once_and_undone(place: Place) -> None:
    before = tree(place)
    assert prepare(steps(), place)[0] == [1]
    assert whole(place, "alpha-1", "beta-2", "gamma-3")
    applied, ended = prepare(steps(), place)
    assert (applied, ended.out, ended.err) == ([], "", "")
    assert ended.fact.startswith(f"Python {sys.version_info.major}.")
    assert all(undo(step, place).status == 0 for step in steps())
    assert tree(place) - {"home/calls"} == before


def test_what_changes_is_installed_into_it(place: Place) -> None:
    prepare(steps(), place)
    (place.workspace / "more.txt").write_text("delta-4\n")
    (place.workspace / "requirements.txt").write_text("-r more.txt\nalpha-1\n")
    assert prepare(steps(), place)[0] == [1]
    (place.workspace / "more.txt").write_text("delta-5\n")
    assert prepare(steps(), place)[0] == [1], "a file that requirements.txt names counts"
    assert sum(call.startswith("venv") for call in calls(place)) == 1


@pytest.mark.parametrize(
    ("files", "call"),
    [
        ({"uv.lock": "x-1", "pyproject.toml": "[project]\n"}, "sync --frozen"),
        ({"uv.lock": "x-1", "requirements.txt": ""}, "pip install"),
        ({"pyproject.toml": "[project]\n", "requirements.txt": ""}, "-r pyproject.toml"),
        ({"pyproject.toml": "[tool.ruff]\n", "requirements.txt": ""}, "-r requirements.txt"),
        ({}, ""),
    ],
)
def test_the_source_is_chosen_on_the_host(place: Place, files: dict[str, str], call: str) -> None:
    (place.workspace / "requirements.txt").unlink()
    for name, text in files.items():
        (place.workspace / name).write_text(text)
    applied, ended = prepare(steps(), place)
    assert (applied, ended.status) == ([1], 0)
    made, *rest = calls(place)
    assert made.startswith("venv --allow-existing")
    assert [call in line for line in rest] == [True] * bool(call)


def test_a_kill_at_any_point_is_repaired(place: Place) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # pytest shows it when the test fails
    chance = random.Random(seed)
    step = environment(place)
    for point in range(KILL_POINTS):
        state = STATES[point % len(STATES)]
        begin(place, state, f"new-{point}")
        process = start(step.apply, place)
        time.sleep(chance.random() * APPLY_S)
        if chance.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()  # the package manager goes on without its shell
        process.communicate()
        if check(step, place).status == 0:
            assert all(installed(place).values()), f"{state}: half installed and taken for whole"
        ended = prepare([step], place)[1]
        assert ended.status == 0, (state, ended)
        assert all(installed(place).values()), (state, installed(place))
        assert f"new-{point}" in installed(place)
        assert not [name for name in os.listdir(place.workspace) if "mesh-old" in name or "mesh-new" in name]


def begin(place: Place, state: str, package: str) -> None:
    """Bring the environment to a state, and want a new package in it."""
    step = environment(place)
    assert undo(step, place).status == 0
    subprocess.run(["rm", "-rf", place.workspace / ".venv"], check=True)
    requirements = place.workspace / "requirements.txt"
    requirements.write_text("alpha-1\n")
    if state == "adopted":
        by_hand(place)
    elif state != "new":
        assert apply(step, place).status == 0
    if state == "broken":
        break_python(place)
    elif state == "half made":
        mark(place, "making")
    requirements.write_text(f"alpha-1\nbeta-2\n{package}\n")


def by_hand(place: Place) -> None:
    assert run("uv venv .venv; uv pip install --python .venv/bin/python -r requirements.txt", place).status == 0


def break_python(place: Place) -> None:
    (place.workspace / ".venv/bin/python").unlink()
    (place.workspace / ".venv/bin/python").symlink_to("/nowhere")


def mark(place: Place, state: str) -> None:
    file = place.workspace / ".venv/.mesh-environment"
    file.write_text(file.read_text().replace("state=whole", f"state={state}"))


def test_a_broken_environment_is_made_anew(place: Place) -> None:
    prepare(steps(), place)
    (place.workspace / ".venv/stale").write_text("")
    break_python(place)
    assert prepare(steps(), place)[0] == [1]
    assert not (place.workspace / ".venv/stale").exists()
    assert set(os.listdir(place.workspace)) == {".venv", ".venv.mesh-lock", "requirements.txt"}


def test_an_environment_of_the_user_is_adopted_and_kept(place: Place) -> None:
    by_hand(place)
    (place.workspace / ".venv/own").write_text("")
    before = tree(place)
    (place.workspace / "requirements.txt").write_text(PACKAGES + "delta-4\n")
    assert prepare(steps(), place)[0] == [1]
    assert whole(place, "alpha-1", "beta-2", "gamma-3", "delta-4")
    assert undo(environment(place), place).status == 0
    assert {path for path in tree(place) if "delta-4" not in path} == before


def test_a_lock_file_leaves_other_packages_of_an_adopted_environment(place: Place) -> None:
    by_hand(place)
    (place.workspace / "uv.lock").write_text("x-1")
    (place.workspace / "pyproject.toml").write_text("[project]\n")
    prepare(steps(), place)
    assert "--inexact" in calls(place)[-1]


def test_a_broken_environment_of_the_user_is_moved_away(place: Place) -> None:
    by_hand(place)
    (place.workspace / ".venv/own").write_text("")
    break_python(place)
    assert prepare(steps(), place)[0] == [1]
    assert (place.workspace / ".venv.broken-1/own").exists()
    assert undo(environment(place), place).status == 0
    assert (place.workspace / ".venv.broken-1/own").exists()


def test_a_directory_of_other_things_is_refused(place: Place) -> None:
    (place.workspace / ".venv").mkdir()
    (place.workspace / ".venv/data").write_text("precious")
    refused(prepare(steps(), place)[1], "is no virtual environment")
    assert (place.workspace / ".venv/data").read_text() == "precious"
    undo(environment(place), place)
    assert (place.workspace / ".venv/data").read_text() == "precious"


def refused(ended: Ended, message: str) -> None:
    """Look that there was one message with a hint."""
    assert ended.status == 125
    _, found, hint = ended.err.splitlines()[-1].partition(message)
    assert found, ended.err
    assert hint.rpartition(": ")[2], "there is a hint"


def test_a_failed_installation_is_repeated_in_place(place: Place) -> None:
    prepare(steps(), place)
    (place.workspace / ".venv/kept").write_text("")
    (place.workspace / "requirements.txt").write_text("missing\n")
    for _ in range(2):
        refused(prepare(steps(), place)[1], "failed, exit 1: error: No solution found: missing")
    (place.workspace / "requirements.txt").write_text("delta-4\n")
    assert prepare(steps(), place)[0] == [1]
    assert (place.workspace / ".venv/kept").exists()
    assert not os.listdir(place.marks)


def test_force_makes_it_anew(place: Place) -> None:
    prepare(steps(), place)
    (place.workspace / ".venv/stale").write_text("")
    place.environ["MESH_FORCE"] = "1"
    assert apply(environment(place), place).status == 0
    assert not (place.workspace / ".venv/stale").exists()
    assert whole(place, "alpha-1", "beta-2", "gamma-3")


def test_force_does_not_make_an_environment_of_the_user_anew(place: Place) -> None:
    by_hand(place)
    (place.workspace / ".venv/own").write_text("")
    prepare(steps(), place)
    place.environ["MESH_FORCE"] = "1"
    assert apply(environment(place), place).status == 0
    assert "--reinstall" in calls(place)[-1]
    assert (place.workspace / ".venv/own").exists()


def test_another_python_has_it_made_anew(place: Place) -> None:
    prepare(steps(), place)
    (place.workspace / ".venv/stale").write_text("")
    version = "{}.{}".format(*sys.version_info)
    assert prepare(steps(python=version), place)[0] == [1]
    assert not (place.workspace / ".venv/stale").exists()
    assert f"--python {version}" in [call for call in calls(place) if call.startswith("venv")][-1]


def test_an_adopted_environment_of_another_python_is_refused(place: Place) -> None:
    by_hand(place)
    refused(prepare(steps(python="3.2"), place)[1], "mesh.yaml asks for 3.2")


def test_two_hosts_that_share_a_directory_make_it_once(place: Place) -> None:
    step = environment(place)
    processes = [start(step.apply, place) for _ in range(4)]
    for process in processes:
        process.communicate(timeout=STEP_TIMEOUT_S)
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(call.startswith("venv") for call in calls(place)) == 1
    assert whole(place, "alpha-1", "beta-2", "gamma-3")


def test_without_flock_python_takes_the_lock(place: Place) -> None:
    (place.root / "bin/flock").write_text("#!/bin/sh\nexit 1\n")
    (place.root / "bin/flock").chmod(0o755)
    test_two_hosts_that_share_a_directory_make_it_once(place)


def test_a_path_outside_of_the_workspace(place: Place) -> None:
    before = tree(place)
    module = PythonEnvironment(Python(tool="uv", path="~/envs here/deep/one"))
    assert prepare(module.steps((), 0), place)[1].status == 0
    assert (place.home / "envs here/deep/one/pyvenv.cfg").exists()
    assert run(f'{module.enter}\necho "$VIRTUAL_ENV"', place).out == f"{place.home}/envs here/deep/one\n"
    for step in module.steps((), 0):
        undo(step, place)
    assert tree(place) - {"home/calls"} == before


def test_requirements_that_are_missing(place: Place) -> None:
    refused(prepare(steps(requirements="other.txt"), place)[1], "other.txt is not in the workspace")


@pytest.mark.parametrize("options", ["", "set -eu"])
def test_entering_exports_two_variables_and_prints_nothing(place: Place, options: str) -> None:
    module = PythonEnvironment(Python(tool="uv"))
    prepare(module.steps((), 0), place)
    place.environ["PYTHONHOME"] = "/nowhere"
    plain = run("env -0 | sort -z", place)
    ended = run(f"{options}\n{module.enter}\nset -eu\nenv -0 | sort -z", place)
    assert (ended.status, ended.err) == (0, "")
    old, new = (dict(line.split("=", 1) for line in out.out.split("\0") if line) for out in (plain, ended))
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    assert changed == {"VIRTUAL_ENV", "PATH", "PYTHONHOME", "STEP_TEXT"}
    assert new["PATH"] == f"{place.workspace}/.venv/bin:{old['PATH']}"
    assert run(f"{module.enter}\npython -c 'import sys; print(sys.prefix)'", place).out == f"{place.workspace}/.venv\n"


def test_entering_without_the_environment_fails(place: Place) -> None:
    ended = run(PythonEnvironment(Python(tool="uv")).enter, place)
    assert (ended.status, ended.out) == (125, "")
    assert "no Python in" in ended.err


def test_the_command_is_unchanged() -> None:
    words = ["a b", "", "$x", "`y`", "\n", "ü"]
    assert PythonEnvironment(Python(tool="venv")).wrap(words, ["X"], "run") == words


def test_an_unknown_tool() -> None:
    with pytest.raises(MeshError, match="poetry"):
        PythonEnvironment(Python(tool="poetry"))


@pytest.mark.parametrize("path", ["", ".", "./", "..", "../other", "~", "~/", "/", "a/../.."])
def test_paths_that_are_no_environment(path: str) -> None:
    with pytest.raises(MeshError, match="is no path"):
        PythonEnvironment(Python(tool="uv", path=path))


# ---- hosts without uv, or without a Python that can make environments


@pytest.fixture
def bare(place: Place) -> Place:
    """A host without uv and with a Python that has no pip, venv and ensurepip."""
    (place.root / "bin/uv").unlink()
    program = place.root / "bin/python3"
    refuse = "case $* in *ensurepip* | *'-m pip'* | *'-m venv'* | *virtualenv*) echo none >&2; exit 1 ;; esac"
    program.write_text(f'#!/bin/sh\n{refuse}\nexec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)
    place.environ["PATH"] = f"{place.root}/bin:/usr/bin:/bin"
    return place


def with_lock(place: Place) -> None:
    (place.workspace / "uv.lock").write_text("x-1")
    (place.workspace / "pyproject.toml").write_text("[project]\n")


def test_uv_is_sent_to_a_host_that_needs_it(bare: Place) -> None:
    with_lock(bare)
    before = tree(bare)
    platform = " ".join(os.uname()[index] for index in (0, 4))
    sending = steps(LocalUv(STAND_IN.encode(), platform))
    assert prepare(sending, bare)[0] == [0, 2], "it is not installed as well"
    assert (bare.home / f".mesh/tools/uv-{os.uname().machine}").exists()
    assert prepare(sending, bare)[0] == []
    for step in reversed(sending):
        assert undo(step, bare).status == 0
    assert tree(bare) - {"home/calls", "home/.mesh"} == before


def test_uv_is_not_sent_where_there_is_no_use(place: Place, bare: Place) -> None:
    sending = steps(LocalUv(STAND_IN.encode(), "Linux m68k"))
    assert check(sending[0], bare).status == 0, "there is no lock file"
    with_lock(bare)
    assert check(sending[0], bare).status == 0, "it would not run"
    refused(prepare(sending, bare)[1], "there is no uv here, and pip cannot install it")


def test_a_uv_that_does_not_run_is_not_sent_again(bare: Place) -> None:
    with_lock(bare)
    platform = " ".join(os.uname()[index] for index in (0, 4))
    sending = steps(LocalUv(b"\x7fELF", platform))
    applied, ended = prepare(sending, bare)
    assert applied == [0, 1]
    refused(ended, "there is no uv here")
    assert prepare(sending, bare)[0] == [1]


def test_debian_without_venv(bare: Place) -> None:
    applied, ended = prepare(steps(), bare)
    assert applied == [1]
    refused(ended, "it has no ensurepip")
    assert f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-venv" in ended.err
    assert "there is no uv here: venv and pip do the same" in ended.err


def test_debian_without_venv_but_with_uv(bare: Place) -> None:
    uv = bare.home / ".local/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(STAND_IN)
    uv.chmod(0o755)
    assert prepare(steps(tool="venv"), bare)[1].status == 0
    assert whole(bare, "alpha-1", "beta-2", "gamma-3")


@pytest.mark.parametrize("wanted", ["3.3", "python3.3", "3.3.1"])
def test_a_python_that_is_not_there(place: Place, wanted: str) -> None:
    ended = prepare(steps(tool="venv", python=wanted), place)[1]
    refused(ended, "there is no python3.3 here")
    assert "apt-get install python3.3 python3.3-venv" in ended.err
