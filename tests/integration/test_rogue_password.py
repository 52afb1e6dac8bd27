"""A host that asks for the password of the user, with an agent of its own: it gets it only for sudo in a setup."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rogue
from tests.conftest import Home
from tests.lab import PlainLab

pytestmark = [pytest.mark.sshd]
PASSWORD = "open-sesame-4711"
SUDO = "commands:\n  - echo first\n  - run: echo second\n    sudo: true\n  - echo third\n"
REASON = "does not speak our protocol: asks-password"


@pytest.fixture
def stolen(tmp_path: Path) -> Path:
    """The file to which a rogue agent writes each password that it receives."""
    return tmp_path / "stolen"


def rogue_pod(home: Home, lab: PlainLab, moments: str, stolen: Path, *settings: str) -> None:
    """Make a cluster whose agents ask for the password at these moments."""
    script = stolen.parent / "rogue"
    rogue.install(script, moments, stolen)
    home.clusters(lab.cluster_yaml("pod", f"python: {script}", *settings))
    home.environ["POD_PASSWORD"] = PASSWORD


@pytest.mark.parametrize(
    ("words", "moments", "status"),
    [
        pytest.param(["exec", "pod", "true"], "started", 76, id="in exec"),
        pytest.param(["exec", "pod", "true"], "hello", 125, id="in exec, before its ranks start"),
        pytest.param(["run", "pod", "true"], "hello", 125, id="in run"),
        pytest.param(["setup", "pod"], "hello", 125, id="in a setup, before it starts"),
        pytest.param(["setup", "pod"], "started", 125, id="in a setup, before its first command"),
        pytest.param(["setup", "pod"], "0", 125, id="in a command without sudo"),
        pytest.param(["setup", "pod"], "2", 125, id="in the command after that with sudo"),
        pytest.param(["setup", "pod"], "ended", 0, id="after the last command"),
    ],
)
def test_no_password_for_a_host_that_asks(
    home: Home, session_plain_lab: PlainLab, stolen: Path, words: list[str], moments: str, status: int
) -> None:
    rogue_pod(home, session_plain_lab, moments, stolen, "password_env: POD_PASSWORD")
    home.files(mesh__yaml=SUDO)
    done = home.mesh(*words)
    assert not stolen.exists()
    assert REASON in done.err
    assert done.status == status, done.err


def test_no_password_in_a_setup_without_sudo(home: Home, session_plain_lab: PlainLab, stolen: Path) -> None:
    rogue_pod(home, session_plain_lab, "0", stolen, "password_env: POD_PASSWORD")
    home.files(mesh__yaml="commands:\n  - echo first\n")
    done = home.mesh("setup", "pod")
    assert not stolen.exists()
    assert REASON in done.err


def test_one_password_for_each_command_with_sudo(home: Home, session_plain_lab: PlainLab, stolen: Path) -> None:
    rogue_pod(home, session_plain_lab, "1,again", stolen, "password_env: POD_PASSWORD")
    home.files(mesh__yaml=SUDO)
    done = home.mesh("setup", "pod")
    assert stolen.read_text().splitlines() == [PASSWORD] * len(session_plain_lab.hosts)
    assert REASON in done.err


def test_the_prompt_shows_the_user_of_the_login(home: Home, session_plain_lab: PlainLab, stolen: Path) -> None:
    rogue_pod(home, session_plain_lab, "1", stolen)
    home.files(mesh__yaml=SUDO)
    with home.terminal("setup", "pod") as terminal:
        terminal.expect(f"Password for {session_plain_lab.user} (used for all hosts): ".encode())
        terminal.type(PASSWORD.encode() + b"\n")
        assert terminal.end() == 0
        assert b"\x1b]0;owned" not in terminal.shown
    assert stolen.read_text().splitlines() == [PASSWORD] * 2
