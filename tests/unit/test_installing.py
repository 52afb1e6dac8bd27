"""Hints that name packages to install."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

import mesh
from mesh.core.installing import extra_line, install_line

ROOT = Path(mesh.__file__).parent
METADATA = """\
Metadata-Version: 2.1
Name: mesh
Version: 9
Requires-Dist: fabric>=3
Requires-Dist: starlette>=0.40; extra == "ui"
Requires-Dist: uvicorn>=0.30; extra == 'ui'
Requires-Dist: ruff; extra == "dev"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have metadata of mesh before all others, which may be of another day."""
    (tmp_path / "mesh-9.dist-info").mkdir()
    (tmp_path / "mesh-9.dist-info/METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_extra_is_installed_by_the_names_of_its_packages(installed: None) -> None:
    words = shlex.split(extra_line("ui"))
    assert words == [*shlex.split(install_line()), "starlette>=0.40", "uvicorn>=0.30"]
    assert sys.executable in words


def test_an_extra_that_the_metadata_do_not_have_is_installed_from_the_clone(installed: None) -> None:
    assert extra_line("none") == f"in the clone of mesh: {install_line('.[none]')}"


def test_no_hint_installs_a_project_of_our_name_from_the_index() -> None:
    wrong = re.compile(r"install [^\n]*\bmesh(\[|\"|'|$)", re.MULTILINE)
    assert [path for path in ROOT.rglob("*.py") if wrong.search(path.read_text())] == []
