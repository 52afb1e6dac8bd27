"""Agent and guardian are both killed: whoever comes through another channel ends what they have left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.agent.process import cgroups
from mesh.agent.process.sweep import sweep
from mesh.backends.command import CommandBackend
from mesh.core.events import Detached, Lost, Output
from mesh.core.interfaces import Channel
from mesh.remote.blob import start_command
from tests.conftest import REPOSITORY
from tests.lab import eventually

from . import conftest
from .conftest import HOST, Open, Run
from .test_ending import is_running

OURS = Path(cgroups.own() or "/nowhere")
ESCAPEE = "env -i setsid sleep 4567 & echo $! $PPID; exec sleep 4567"

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not os.access(OURS / "cgroup.procs", os.W_OK), reason="no control group is ours"),
]


@pytest.fixture
def scope() -> Iterator[Path]:
    """A group like that of a login, in which no other one can be made."""
    above = OURS / f"mesh-test-{os.getpid()}"
    place = above / "session-77.scope"
    place.mkdir(parents=True)
    (place / "cgroup.max.descendants").write_text("0")
    yield place
    assert eventually(lambda: not (place / "cgroup.procs").read_text())
    place.rmdir()
    above.rmdir()


def within(place: Path, argv: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ >{place}/cgroup.procs && exec "$@"', "sh", *argv]


FORK = """
import os, sys
from mesh.agent.process import cgroups
exec(sys.argv[2])
child = cgroups.fork(sys.argv[1])
if not child:
    os.write(1, open("/proc/self/cgroup", "rb").read())
    os._exit(7)
os._exit(os.waitpid(child, 0)[1] >> 8)
"""


@pytest.mark.parametrize(
    "prevent",
    ["cgroups.enter = None", "cgroups.CLONE3 = -1", "cgroups.call = lambda *given: -1"],
    ids=["born into it", "no such call", "forbidden"],
)
def test_who_is_forked_is_in_the_group(prevent: str) -> None:
    place = OURS / f"mesh-test-{os.getpid()}"
    place.mkdir()
    try:
        argv = [sys.executable, "-c", FORK, str(place), prevent]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=20)
        assert (done.returncode, done.stderr) == (7, "")
        assert any(line.endswith("/" + place.name) for line in done.stdout.splitlines())
    finally:
        place.rmdir()


def kill_both_and_come_again(run: Run, python: str) -> None:
    run.prepare()
    run.start("bash", "-c", ESCAPEE)
    run.until(Output)
    escapee, agent = map(int, run.printed().split())
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    backend = CommandBackend()

    def reopen() -> Channel | None:
        assert is_running(escapee)
        (opened,) = backend.open([HOST], start_command(python))
        assert not isinstance(opened.result, Exception)
        return opened.result

    run.reopen = reopen
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither has the time to see the end of the other
        for pid in (guardian, agent):
            os.kill(pid, number)
    lost = run.until(Lost)
    backend.close()
    escaped = is_running(escapee)
    if escaped:
        os.kill(escapee, signal.SIGKILL)
    assert not escaped
    assert isinstance(lost, Lost)
    assert lost.is_clear


def test_the_group_of_the_run_tells_what_is_left(agent: Run, any_python: str) -> None:
    kill_both_and_come_again(agent, any_python)
    assert eventually(lambda: not list(OURS.glob(f"mesh-run-{os.getpid()}-*")))


def test_where_none_can_be_made_that_of_the_login_does(
    scope: Path, any_python: str, opener: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "start_command", lambda python: within(scope, start_command(python)))
    kill_both_and_come_again(opener(any_python), any_python)


def test_what_belongs_to_the_connection_is_spared(scope: Path) -> None:
    sleeper = subprocess.Popen(within(scope, ["sleep", "4567"]))
    connection = subprocess.Popen(
        within(scope, ["sh", "-c", "printf sshd >/proc/$$/comm; read x"]), stdin=subprocess.PIPE
    )
    try:
        assert eventually(lambda: Path(f"/proc/{connection.pid}/comm").read_text() == "sshd\n")
        assert eventually(lambda: cgroups.members(str(scope)) == {sleeper.pid, connection.pid})
        assert sweep("", str(scope)) == []
        assert sleeper.wait() == -9
        assert connection.poll() is None
    finally:
        for process in (sleeper, connection):
            process.kill()
            process.communicate()


def test_a_client_that_leaves_is_told_that_its_logout_ends_the_run(
    scope: Path, agent: Run, any_python: str, opener: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "etc/systemd").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n")
    with_it = f'mount -t overlay overlay -o lowerdir={tmp_path}/etc:/etc /etc && exec "$@"'
    ours = ["unshare", "--mount", "sh", "-c", with_it, "sh"]
    monkeypatch.setattr(conftest, "start_command", lambda python: within(scope, [*ours, *start_command(python)]))
    for run, what in ((agent, ""), (opener(any_python, node=1), "login")):
        run.prepare()
        run.start("sh", "-c", "read x", stdin=True)
        run.session.detach()
        detached = run.until(Detached)
        assert isinstance(detached, Detached)
        assert detached.ends_with == what
        run.session.stdin(0, b"\n")
        run.session.close()  # an agent waits for a client that stays
