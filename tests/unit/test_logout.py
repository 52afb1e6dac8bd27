"""The notice at submit about a steward that a logout ends, by the files of systemd-logind."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.api.logout import LINGER, logout_notices
from mesh.api.serving import Serving

SESSION = "0::/user.slice/user-1000.slice/session-4.scope"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
STARTED = Serving(pid=7, has_started=True)


def files(root: Path, cgroup: str, kills: str) -> str:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "etc/systemd/logind.conf.d").mkdir(parents=True)
    (root / "etc/systemd/logind.conf").write_text("[Login]\n#KillUserProcesses=no\n")
    (root / "etc/systemd/logind.conf.d/10-kill.conf").write_text(
        f"[Login]\nKillUserProcesses={kills}\nKillExcludeUsers=nobody\n"
    )
    return str(root)


def test_a_steward_that_a_logout_ends_is_named_with_the_way_to_keep_it(tmp_path: Path) -> None:
    (line,) = logout_notices(STARTED, files(tmp_path, SESSION, "yes"))
    assert "KillUserProcesses=yes" in line
    assert line.endswith(f": {LINGER}")
    assert "loginctl enable-linger" in line


def test_a_user_that_does_not_linger_is_told(tmp_path: Path) -> None:
    (line,) = logout_notices(STARTED, files(tmp_path, MANAGER, "no"))
    assert "last login" in line


@pytest.mark.parametrize(
    ("serving", "kills"),
    [
        (STARTED, "no"),
        (Serving(pid=7), "yes"),  # it was there before
        (Serving(pid=0), "yes"),  # none may be started
        (Serving(pid=7, has_started=True, at_boot=True), "yes"),  # systemd starts it again
    ],
)
def test_there_is_nothing_to_say_otherwise(tmp_path: Path, serving: Serving, kills: str) -> None:
    assert logout_notices(serving, files(tmp_path, SESSION, kills)) == ()
