"""Commands import what they need of jobs, and no more: SQLAlchemy and OmegaConf are heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mesh.core.title import set_title
from tests.conftest import Home

HEAVY = {"sqlalchemy", "omegaconf"}
SHOW = "import sys\nfrom mesh.cli.program import run\nrun(['mesh', *sys.argv[1:]])\nprint('modules:', *sys.modules)"


def imported_by(home: Home, *words: str) -> set[str]:
    """Return the modules that are there after a command."""
    argv = [sys.executable, "-c", SHOW, *words]
    done = subprocess.run(argv, cwd=home.project, env=home.environ, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize(
    "line",
    ["--version", "--help", "help run", "job --help", "runs", "clusters", "run local:1 true", "ps local", "config"],
)
def test_commands_that_ask_nothing_of_jobs(home: Home, line: str) -> None:
    found = imported_by(home, *line.split())
    assert HEAVY.isdisjoint(found)
    assert not {name for name in found if name.startswith(("mesh.jobs", "mesh.api.jobs", "mesh.workspace.snapshot"))}


@pytest.mark.parametrize("line", ["job list", "job list --json", "job show 1", "job wait 1", "__complete job show x"])
def test_commands_that_look_at_jobs(home: Home, line: str) -> None:
    assert HEAVY.isdisjoint(imported_by(home, *line.split()))


def test_a_title_takes_the_place_of_a_command_line() -> None:
    script = (
        "import sys; from mesh.core.title import set_title; set_title('mesh serve')\n"
        "print(open('/proc/self/cmdline').read().rstrip(chr(0)).split(chr(0)), sys.argv)"
    )
    done = subprocess.run([sys.executable, "-c", script, "word"], capture_output=True, text=True, check=True)
    assert done.stdout == "['mesh', 'serve'] ['-c', 'word']\n"
    before = Path("/proc/self/cmdline").read_bytes()
    set_title("x" * 100_000)  # there is no room
    assert Path("/proc/self/cmdline").read_bytes() == before
