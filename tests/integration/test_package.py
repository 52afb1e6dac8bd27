"""The package: wheel and sdist from the sources, and a first run after an installation in a fresh home."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import mesh
from tests.clone import make_clone
from tests.conftest import REPOSITORY

INSTALL_LIMIT_S = 900.0
BUILD = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


def run(words: list[str], directory: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=INSTALL_LIMIT_S,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist, built in a clean clone by the backend of pyproject.toml."""
    source = make_clone(tmp_path_factory.mktemp("source") / "clone")
    done = run([sys.executable, "-c", BUILD], source, dict(os.environ))
    assert done.returncode == 0, done.stderr
    return source / "dist"


def test_wheel_and_sdist_have_every_module_and_the_version(dist: Path) -> None:
    modules = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "mesh").rglob("*.py")}
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        assert modules <= set(file.namelist())
        (about,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        assert f"\nVersion: {mesh.__version__}\n" in file.read(about).decode()
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert modules <= {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    """The variables of somebody who installs mesh. Modules are compiled when they are imported."""
    names = ("PYTHON", "VIRTUAL_ENV", "MESH")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(names)}, "PIP_NO_COMPILE": "1"}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Path:
    """A virtual environment with pipx, if the index has it."""
    directory = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    python = f"{directory}/bin/python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "pipx"], directory, environ)
    return directory


def test_it_runs_in_a_fresh_home(tools: Path, environ: dict[str, str], tmp_path: Path) -> None:
    """pipx installs a clone, as in the README; where the index has no pipx, pip in a virtual environment does.

    Both build the wheel first, by the same backend as the test above.
    """
    directory = make_clone(tmp_path / "clone")
    home = tmp_path / "home"
    home.mkdir()
    has_pipx = (tools / "bin/pipx").exists()
    environ = {**environ, "HOME": str(home), "PIPX_HOME": str(home / "pipx"), "PIPX_BIN_DIR": str(home / "bin")}
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        environ.pop(name, None)
    if has_pipx:
        program = home / "bin/mesh"
        done = run([f"{tools}/bin/pipx", "install", "."], directory, environ)
    else:
        print("no pipx: installed by pip")
        own = tmp_path / "own"
        subprocess.run([sys.executable, "-m", "venv", own], check=True)
        program = own / "bin/mesh"
        done = run([f"{own}/bin/pip", "install", "-q", "."], directory, environ)
    if done.returncode and not has_pipx:
        pytest.skip(f"no package index: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    ran = run([str(program), "exec", "local", "true"], home, environ)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    version = run([str(program), "--version"], home, environ)
    assert version.stdout == f"mesh {mesh.__version__}\n"
