"""Environments of conda: their texts, run by a real bash, with the stand-in of tests/conda.py."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mesh.core.errors import MeshError
from mesh.core.module import Conda, Step
from mesh.modules.conda import CondaEnvironment
from tests import conda
from tests.full import times
from tests.steps import STEP_TIMEOUT_S, Ended, Place, apply, check, prepare, run, start, tree, undo

KILL_POINTS = times(5, full=20)  # one in each state
APPLY_S = 1.2  # about as long as an apply with the stand-in takes
STATES = ("new", "changed", "broken", "half made", "adopted")
FILE_DELAY_S = 0.03


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A host with conda in ~/miniconda3, whose paths have a space, quotes and a dollar."""
    found = Place(tmp_path / "it's a $place", {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"})
    conda.write_channel(found.root / "channel")
    conda.install(found.home / "miniconda3", delay=FILE_DELAY_S)
    want(found, "python", "greet=1.0")
    return found


def want(place: Place, *specs: str, channel: str = "") -> None:
    """Write environment.yml."""
    described = {"channels": [channel or f"file://{place.root}/channel"], "dependencies": specs}
    (place.workspace / "environment.yml").write_text(json.dumps(described))


def steps(**more: object) -> Sequence[Step]:
    return CondaEnvironment(description(**more)).steps((), 0)


def description(**more: object) -> Conda:
    return Conda(**{"name": "train", "file": "environment.yml", **more})  # type: ignore[arg-type]


def prefix(place: Place) -> Path:
    return place.home / "miniconda3/envs/train"


def says(place: Place, command: str = "greet a") -> str:
    return run(f"{CondaEnvironment(description()).enter}\n{command}", place).out


def refused(ended: Ended, message: str) -> None:
    """Look that there was one message with a hint."""
    assert ended.status == 125
    _, found, hint = ended.err.splitlines()[-1].partition(message)
    assert found, ended.err
    assert hint.rpartition(": ")[2], "there is a hint"


def test_an_environment_is_made_once_and_undone(place: Place) -> None:
    before = tree(place)
    assert prepare(steps(), place)[0] == [0]
    assert says(place) == "greet 1.0 a\n"
    applied, ended = prepare(steps(), place)
    assert (applied, ended.out, ended.err) == ([], "", "")
    assert ended.fact.startswith(f"Python {sys.version_info.major}.")
    assert undo(steps()[0], place).status == 0
    assert tree(place) == before


def test_a_changed_file_updates_it(place: Place) -> None:
    prepare(steps(), place)
    want(place, "python", "greet=2.0")
    assert prepare(steps(), place)[0] == [0]
    assert says(place) == "greet 2.0 a\n"
    want(place, "python", "extra")
    prepare(steps(), place)
    assert not (prefix(place) / "bin/greet").exists(), "--prune"


def test_a_kill_at_any_point_is_repaired(place: Place) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # pytest shows it when the test fails
    chance = random.Random(seed)
    step = steps()[0]
    for point in range(KILL_POINTS):
        state = STATES[point % len(STATES)]
        begin(place, state)
        process = start(step.apply, place)
        time.sleep(chance.random() * APPLY_S)
        if chance.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()  # conda goes on without the shell
        process.communicate()
        if check(step, place).status == 0:
            assert complete(place), f"{state}: half made and taken for whole"
        ended = prepare([step], place)[1]
        assert ended.status == 0, (state, ended)
        assert complete(place), state
        assert not [
            path.name for path in prefix(place).parent.iterdir() if path.suffix in (".mesh-old", ".mesh-making")
        ]


def begin(place: Place, state: str) -> None:
    """Bring the environment to a state, and want other packages in it."""
    step = steps()[0]
    assert undo(step, place).status == 0
    shutil.rmtree(prefix(place), ignore_errors=True)
    want(place, "python", "greet=1.0")
    if state == "adopted":
        by_hand(place)
    elif state != "new":
        assert apply(step, place).status == 0
    if state == "broken":
        break_python(place)
    elif state == "half made":
        (prefix(place).parent / "train.mesh-making").write_text("")
        (prefix(place) / "bin/python").unlink()
    want(place, "python", "greet=2.0", "extra")


def by_hand(place: Place) -> None:
    words = [
        str(place.home / "miniconda3/bin/conda"),
        "env",
        "create",
        "-p",
        str(prefix(place)),
        "-f",
        "environment.yml",
    ]
    assert run(shlex.join(words), place).status == 0


def break_python(place: Place) -> None:
    (prefix(place) / "bin/python").unlink()
    (prefix(place) / "bin/python").symlink_to("/nowhere")


def complete(place: Place) -> bool:
    """Return True if all packages are there, with all of their files."""
    listed = [json.loads(path.read_text()) for path in (prefix(place) / "conda-meta").glob("*.json")]
    files = [path for record in listed for path in record["files"]]
    there = all((prefix(place) / path).exists() for path in files)
    return (
        there
        and {"python", "greet", "extra"} <= {record["name"] for record in listed}
        and says(place) == "greet 2.0 a\n"
    )


def test_an_environment_of_the_user_is_adopted_and_kept(place: Place) -> None:
    want(place, "python", "extra")
    by_hand(place)
    want(place, "python", "greet=1.0")
    assert prepare(steps(), place)[0] == [0]
    assert (prefix(place) / "share/extra").exists(), "it is not pruned"
    assert undo(steps()[0], place).status == 0
    assert says(place) == "greet 1.0 a\n"
    assert not (prefix(place) / ".mesh-environment").exists()


def test_a_broken_environment_is_made_anew(place: Place) -> None:
    prepare(steps(), place)
    break_python(place)
    assert prepare(steps(), place)[0] == [0]
    assert says(place) == "greet 1.0 a\n"
    assert {path.name for path in prefix(place).parent.iterdir()} == {"train", "train.mesh-lock"}


def test_a_broken_environment_of_the_user_is_refused(place: Place) -> None:
    by_hand(place)
    break_python(place)
    refused(prepare(steps(), place)[1], "does not start, and mesh has not made it")
    assert (prefix(place) / "bin/greet").exists()


def test_a_failed_update_is_repeated_in_place(place: Place) -> None:
    prepare(steps(), place)
    (prefix(place) / "kept").write_text("")
    want(place, "python", "nowhere")
    for _ in range(2):
        refused(prepare(steps(), place)[1], "PackagesNotFoundError: The following packages are not available: nowhere")
    want(place, "python", "greet=2.0")
    assert prepare(steps(), place)[0] == [0]
    assert (prefix(place) / "kept").exists()
    assert not os.listdir(place.marks)


def test_force_makes_it_anew(place: Place) -> None:
    prepare(steps(), place)
    (prefix(place) / "stale").write_text("")
    place.environ["MESH_FORCE"] = "1"
    assert apply(steps()[0], place).status == 0
    assert not (prefix(place) / "stale").exists()


def test_two_hosts_that_share_a_home_make_it_once(place: Place) -> None:
    processes = [start(steps()[0].apply, place) for _ in range(3)]
    ends = [process.communicate(timeout=STEP_TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, ends
    assert says(place) == "greet 1.0 a\n"


def test_terms_are_accepted_only_if_the_user_does(place: Place) -> None:
    want(place, "python", channel="defaults")
    ended = prepare(steps(), place)[1]
    refused(ended, "Anaconda wants its terms of service accepted")
    assert "`accept_tos: true` below `conda:`" in ended.err
    accepted = prepare(steps(accept_tos=True), place)[1]
    assert "Terms of Service" not in accepted.out, "the stand-in has no such channel, but no more asks for terms"


def test_an_environment_that_must_be_there(place: Place) -> None:
    refused(prepare(steps(file=""), place)[1], "there is no environment train here; there are: base")
    prepare(steps(), place)
    assert prepare(steps(file=""), place)[0] == []
    assert undo(steps(file="")[0], place).status == 0
    assert says(place) == "greet 1.0 a\n", "mesh has not made it for this description"


def test_a_host_without_conda(place: Place) -> None:
    shutil.rmtree(place.home / "miniconda3")
    refused(prepare(steps(), place)[1], "there is no conda here")
    assert undo(steps()[0], place).status == 0


def test_a_conda_on_the_path_of_another_place(place: Place) -> None:
    (place.home / "miniconda3").rename(place.root / "moved")
    conda.install(place.root / "moved")
    place.environ["PATH"] = f"{place.root}/moved/bin:{place.environ['PATH']}"
    assert prepare(steps(), place)[1].status == 0
    assert (place.root / "moved/envs/train/bin/greet").exists()
    assert says(place) == "greet 1.0 a\n"


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("options", ["", "set -eu"])
def test_entering_prints_nothing(place: Place, hook: bool, options: str) -> None:
    prepare(steps(), place)
    shutil.rmtree(place.home / "miniconda3/etc")
    conda.install(place.home / "miniconda3", hook=hook)
    text = f"{options}\n{CondaEnvironment(description()).enter}\nset -eu\n"
    plain, ended = (run(f"{begin}env -0 | sort -z", place) for begin in ("", text))
    assert (ended.status, ended.err) == (0, "activated\n"), "a script of the environment prints on stderr"
    old, new = (dict(line.split("=", 1) for line in out.out.split("\0") if line) for out in (plain, ended))
    changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
    assert changed - {"CONDA_EXE"} == {"PATH", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "STEP_TEXT"}
    assert run(f"{text}compgen -v __mesh; declare -F find_base || true", place).out == ""


def test_entering_without_the_environment_fails(place: Place) -> None:
    ended = run(CondaEnvironment(description()).enter, place)
    assert (ended.status, ended.out) == (125, "")
    assert "cannot be activated" in ended.err


def test_the_command_is_unchanged() -> None:
    words = ["a b", "", "$x", "`y`", "\n", "ü"]
    assert CondaEnvironment(description()).wrap(words, ["X"], "run") == words


@pytest.mark.parametrize("name", ["", "a b", "-n", "a/b", "x#"])
def test_names_that_conda_refuses(name: str) -> None:
    with pytest.raises(MeshError, match="is no name"):
        CondaEnvironment(description(name=name))


# ---- the installer


@pytest.fixture
def installer(place: Place) -> Path:
    """A script with the words of Miniconda's installer, which copies a base to its place."""
    conda.install(place.root / "packed", at=place.home / "miniconda3")
    shutil.rmtree(place.home / "miniconda3")
    script = place.root / "Miniconda3.sh"
    packed = shlex.quote(f"{place.root}/packed")
    script.write_text(
        '[ "$1 $2" = "-b -p" ] && [ ! -e "$3" ] || { echo "ERROR: File or directory already exists: $3"; exit 1; }\n'
        f'mkdir -p "$3/bin"; sleep 0.1; cp -a {packed}/. "$3"\n'
    )
    return script


def test_an_installer_is_run_and_undone(place: Place, installer: Path) -> None:
    before = tree(place)
    checksum = hashlib.sha256(installer.read_bytes()).hexdigest()
    installing = steps(installer=f"file://{str(installer).replace(' ', '%20')}", checksum=checksum)
    assert prepare(installing, place)[0] == [0, 1]
    assert prepare(installing, place)[0] == []
    for step in reversed(installing):
        assert undo(step, place).status == 0
    assert tree(place) == before


def test_a_base_with_environments_stays(place: Place, installer: Path) -> None:
    installing = steps(installer=f"file://{str(installer).replace(' ', '%20')}")
    prepare(installing, place)
    (place.home / "miniconda3/envs/own").mkdir()
    for step in reversed(installing):
        assert undo(step, place).status == 0
    assert (place.home / "miniconda3/bin/conda").exists()


def test_an_installer_that_is_cut(place: Place, installer: Path) -> None:
    step = steps(installer=f"file://{str(installer).replace(' ', '%20')}")[0]
    for moment in (0.05, 0.1, 0.15, 0.2, 0.3):
        process = start(step.apply, place)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert prepare([step], place)[1].status == 0
        assert run('"$HOME/miniconda3/bin/conda" info --base', place).out == f"{place.home}/miniconda3\n"
        assert undo(step, place).status == 0


@pytest.mark.parametrize("missing", [(), ("curl",), ("curl", "wget")])
def test_a_wrong_checksum_and_a_wrong_address(place: Place, installer: Path, missing: tuple[str, ...]) -> None:
    (place.root / "bin").mkdir()
    for directory in (Path("/usr/bin"), Path("/bin")):
        for path in directory.iterdir():
            if path.name not in missing and not (place.root / "bin" / path.name).is_symlink():
                (place.root / "bin" / path.name).symlink_to(path)
    place.environ["PATH"] = f"{place.root}/bin"
    address = f"file://{str(installer).replace(' ', '%20')}"
    if missing != ("curl",):  # wget has no file://
        refused(prepare(steps(installer=address, checksum="0" * 64), place)[1], f"not {'0' * 64}")
    refused(prepare(steps(installer=f"{address}.gone"), place)[1], "cannot be downloaded")
    assert not [name for name in os.listdir(place.home) if name != "miniconda3.mesh-lock"]


def test_the_terms_of_an_installer(place: Place, installer: Path) -> None:
    ended = prepare(steps(installer="https://repo.anaconda.com/miniconda/Miniconda3-latest-Linux-x86_64.sh"), place)[1]
    refused(ended, "the installer wants Anaconda's terms of service accepted")
