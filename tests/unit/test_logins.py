"""What systemd ends at a logout, by files as they stand on hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.agent.detached.logins import ends_with, kills, settings
from mesh.core.events import Detached
from mesh.engine.orders import Say
from tests.unit.test_attachment import started
from tests.unit.test_supervisor import Replay

DEBIAN = (
    "# Entries in this file show the compile time defaults.\n[Login]\n#KillUserProcesses=no\n#KillExcludeUsers=root\n"
)
SESSION = "0::/user.slice/user-1000.slice/session-4.scope"
RUN = f"{SESSION}/mesh-20261121-172426-e92f2b-0-x"
OLD = (
    "12:pids:/user.slice/user-1000.slice/session-4.scope\n1:name=systemd:/user.slice/user-1000.slice/session-4.scope\n"
)
OWN_MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"


def login(*lines: str) -> str:
    return "\n".join(["[Login]", *lines]) + "\n"


@pytest.mark.parametrize(
    ("texts", "user", "is_ended"),
    [
        ([], "me", False),
        ([DEBIAN], "me", False),
        ([login("#KillUserProcesses=yes")], "me", True),
        ([login("#KillUserProcesses=yes"), login("KillUserProcesses=no")], "me", False),
        ([DEBIAN, login("KillUserProcesses = On")], "me", True),
        ([DEBIAN, login("KillUserProcesses=yes"), login("KillUserProcesses=0")], "me", False),
        ([login("KillUserProcesses=yes", "KillUserProcesses=perhaps", "KillUserProcesses")], "me", True),
        ([login("KillUserProcesses=yes")], "root", False),
        ([login("KillUserProcesses=yes", "KillExcludeUsers=")], "root", True),
        ([login("KillUserProcesses=yes", "KillExcludeUsers=a me")], "me", False),
        ([login("KillUserProcesses=yes", "KillExcludeUsers=a"), login("KillExcludeUsers=me")], "me", False),
        ([login("KillUserProcesses=yes", "KillExcludeUsers=me"), login("KillExcludeUsers=")], "me", True),
        ([login("KillOnlyUsers=me")], "me", True),
        ([login("KillUserProcesses=yes", "KillOnlyUsers=a b")], "me", False),
        ([login("KillOnlyUsers=me", "KillExcludeUsers=me")], "me", False),
        (["[Other]\nKillUserProcesses=yes\n"], "me", False),
        (["KillUserProcesses=yes\n"], "me", False),
        (["\0\n=\n[Login\n]\n[]\nKillUserProcesses=yes"], "me", False),
    ],
)
def test_whom_logind_ends(texts: list[str], user: str, is_ended: bool) -> None:
    assert kills(*settings(texts), user) == is_ended


def files(root: Path, **texts: str) -> str:
    """A root directory; in a name ``_`` stands for a slash and ``__`` for a dot."""
    for name, text in texts.items():
        path = root / name.replace("__", ".").replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


YES, NO = login("KillUserProcesses=yes"), login("KillUserProcesses=no")


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({}, ""),
        ({"proc_self_cgroup": "0::/\n", "etc_systemd_logind__conf": YES}, ""),
        ({"proc_self_cgroup": SESSION, "etc_systemd_logind__conf": DEBIAN}, ""),
        ({"proc_self_cgroup": SESSION, "etc_systemd_logind__conf": YES}, "login"),
        ({"proc_self_cgroup": RUN, "etc_systemd_logind__conf": YES}, "login"),
        ({"proc_self_cgroup": OLD, "etc_systemd_logind__conf": YES}, "login"),
        # Lingering is for the user's manager, not for what a login has started.
        ({"proc_self_cgroup": SESSION, "etc_systemd_logind__conf": YES, "var_lib_systemd_linger_me": ""}, "login"),
        ({"proc_self_cgroup": OWN_MANAGER, "etc_systemd_logind__conf": NO}, "logins"),
        ({"proc_self_cgroup": OWN_MANAGER, "var_lib_systemd_linger_me": ""}, ""),
        # One main file, and all parts by their names; of those with one name the nearest to /etc.
        ({"proc_self_cgroup": SESSION, "etc_systemd_logind__conf": NO, "usr_lib_systemd_logind__conf": YES}, ""),
        ({"proc_self_cgroup": SESSION, "usr_lib_systemd_logind__conf": YES}, "login"),
        (
            {"proc_self_cgroup": SESSION, "etc_systemd_logind__conf": NO, "run_systemd_logind__conf__d_a__conf": YES},
            "login",
        ),
        (
            {
                "proc_self_cgroup": SESSION,
                "usr_lib_systemd_logind__conf__d_a__conf": YES,
                "etc_systemd_logind__conf__d_a__conf": "",
            },
            "",
        ),
        (
            {
                "proc_self_cgroup": SESSION,
                "usr_lib_systemd_logind__conf__d_b__conf": YES,
                "etc_systemd_logind__conf__d_a__conf": NO,
                "etc_systemd_logind__conf__d_c__txt": NO,
            },
            "login",
        ),
    ],
)
def test_what_ends_us(tmp_path: Path, found: dict[str, str], what: str) -> None:
    assert ends_with("me", files(tmp_path, **found)) == what


def test_whoever_leaves_is_told_once_where_the_run_ends_then() -> None:
    replay = Replay(hosts=3, detach=True)
    replay.ready()
    replay.handle(started(0), started(1), started(2))
    events = [Detached(time=3, node=node, ends_with=what) for node, what in ((2, "login"), (1, ""), (0, "login"))]
    orders = [order for event in events for order in replay.supervisor.handle(event)]
    (said,) = [order.text for order in orders if isinstance(order, Say)]
    assert said.startswith("h0, h2: systemd-logind ends the run now")
