"""What stands for a module until somebody uses it, and gives way to the real one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.core.later import later, version
from tests.conftest import REPOSITORY


def told_by(program: str) -> list[str]:
    """The words that a program prints in a Python of its own."""
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from mesh.core.later import *\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_module_comes_when_something_of_it_is_used() -> None:
    assert told_by(
        "with later('json.tool', main=len):\n"
        "    from json import tool\n"
        "    from json.tool import main\n"
        "print(main('abc'), 'json.tool' in sys.modules)\n"
        "print(tool.Path.__name__, 'json.tool' in sys.modules, sys.modules['json.tool'] is tool)"
    ) == ["3", "False", "Path", "True", "False"]


def test_whoever_imports_it_meanwhile_has_it_afterwards() -> None:
    assert told_by(
        "import importlib\n"
        "with later('importlib.metadata'):\n"
        "    import importlib.metadata\n"
        "print(callable(importlib.metadata.version))\n"
        "import importlib.metadata\n"
        "print(importlib.metadata is sys.modules['importlib.metadata'], isinstance(importlib.metadata, Later))"
    ) == ["True", "True", "False"]


def test_what_is_there_already_stays() -> None:
    with later("importlib.metadata", version=len):
        from importlib.metadata import version as real
    assert real is importlib.metadata.version


@pytest.mark.parametrize("distribution", ["paramiko", "invoke", "cryptography"])
def test_a_version(distribution: str) -> None:
    assert version(distribution) == importlib.metadata.version(distribution)


def test_the_version_of_what_was_installed_in_another_way(tmp_path: Path) -> None:
    (tmp_path / "other-1.2.egg-info").write_text("Metadata-Version: 1.1\nName: other\nVersion: 1.2\n")
    assert told_by(
        f"sys.path.append({str(tmp_path)!r})\n"
        "with later(METADATA, version=version):\n"
        "    from importlib import metadata\n"
        "    print(metadata.version('other'))"
    ) == ["1.2"]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        version("no-such-distribution")


def test_paramiko_knows_its_version_without_what_reads_metadata() -> None:
    assert told_by(
        "with later(METADATA, version=version):\n"
        "    import paramiko\n"
        "print(paramiko.__version__, METADATA in sys.modules, 'email' in sys.modules)"
    ) == [importlib.metadata.version("paramiko"), "False", "False"]
