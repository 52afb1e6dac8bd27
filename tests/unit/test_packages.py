"""The packages of a Python by the names of its directories."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mesh.agent.process.spawning import Setting
from mesh.agent.run.packages import packages


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Make directories as those of Python 3.11 with two packages; return its prefix."""
    for place, name in (
        ("lib/python3.11/site-packages", "torch-2.13.0.dist-info"),
        ("lib/python3/dist-packages", "Old_One-1.0.egg-info"),
        ("lib/python3.9/site-packages", "other-9.dist-info"),
        ("lib/python3.11/site-packages", "no-package"),
    ):
        (tmp_path / "usr" / place / name).mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    program(tmp_path / "usr/bin/python3.11", "#!/bin/false\n")
    (tmp_path / "usr/bin/python3").symlink_to("python3.11")
    return tmp_path / "usr"


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def found(command: str, *places: Path) -> dict[str, str]:
    path = b":".join(os.fsencode(place) for place in places)
    return packages(os.fsencode(command), Setting({b"PATH": path}, "/"))


def test_packages_of_a_python(python: Path) -> None:
    expected = {"python": "3.11", "torch": "2.13.0", "old-one": "1.0"}
    assert found("python3", python / "bin") == expected
    assert found(f"{python}/bin/python3.11") == expected


def test_packages_of_a_virtual_environment(python: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "lib/python3.11/site-packages/torch-2.14.0.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin/python3").symlink_to(python / "bin/python3.11")
    (venv / "pyvenv.cfg").write_text("version = 3.11.7\ninclude-system-site-packages = false\n")
    assert found("python3", venv / "bin", python / "bin") == {"python": "3.11.7", "torch": "2.14.0"}
    (venv / "pyvenv.cfg").write_text("version = 3.11.7\ninclude-system-site-packages = true\n")
    both = {"python": "3.11.7", "torch": "2.14.0", "old-one": "1.0"}
    assert found("python3", venv / "bin", python / "bin") == both
    program(venv / "bin/torchrun", f"#!{venv}/bin/python3\n")
    assert found("torchrun", venv / "bin") == both
    program(tmp_path / "bin/bash", "#!/bin/false\n")
    assert found("bash", tmp_path / "bin", python / "bin")["torch"] == "2.13.0"


def test_commands_without_a_python(tmp_path: Path) -> None:
    program(tmp_path / "train", "\x7fELF")
    program(tmp_path / "perl", "#!/usr/bin/perl\n")
    assert found("train", tmp_path) == found("perl", tmp_path) == found("nothing", tmp_path) == {}


def test_packages_of_this_python() -> None:
    name = Path(sys.executable)
    assert found(name.name, name.parent)["pytest"] == pytest.__version__
