"""What is born into the cgroup of a run is found again, also when agent and guardian are both dead."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.backends.local import LocalBackend
from mesh.core.events import Exited, Gone, Lost, Output
from mesh.core.run import SetupCommand
from mesh.remote.agent.cgroups import directory_of, own_path, session_members
from mesh.remote.blob import start_command
from tests.lab import eventually

from .conftest import HOST, Open, Run
from .test_ending import is_running

OURS = Path(directory_of(own_path()) or "/nowhere")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not os.access(OURS / "cgroup.procs", os.W_OK), reason="no cgroup v2 is ours"),
]


@pytest.fixture
def scope() -> Iterator[Path]:
    """A cgroup like that of a login, in which no other one can be made."""
    above = OURS / f"mesh-test-{os.getpid()}"
    place = above / "session-77.scope"
    place.mkdir(parents=True)
    (place / "cgroup.max.descendants").write_text("0")
    yield place
    assert eventually(lambda: not (place / "cgroup.procs").read_text())
    place.rmdir()
    above.rmdir()


def groups() -> list[Path]:
    return list(OURS.glob(f"mesh-run-{os.getpid()}-*"))


def test_ranks_prerun_and_setup_are_born_into_it(opener: Open, python: str) -> None:
    run = opener(python)
    run.prepare(["p=$(cat /proc/self/cgroup); export p"])
    run.start("sh", "-c", 'echo "$p"; cat /proc/self/cgroup')
    run.result()
    assert run.printed().decode().count(f"/mesh-run-{os.getpid()}-0\n") == 2
    assert eventually(lambda: not groups())


def test_nested_ones_are_emptied_and_removed(agent: Run) -> None:
    agent.prepare()
    own = f"{OURS}$(sed -n 's/^0:://p' /proc/self/cgroup | sed 's,.*/,/,')"
    script = f"mkdir -p {own}/a/b; sleep 4567 & echo $! >{own}/a/b/cgroup.procs; echo $!"
    agent.start("bash", "-c", script)
    agent.until(Exited)
    pid = int(agent.printed())
    assert agent.finish(grace=0.0).left == ()
    assert not is_running(pid)
    assert eventually(lambda: not groups())


def test_what_a_setup_leaves_on_purpose_is_moved_out(agent: Run) -> None:
    agent.prepare()
    agent.session.setup(0, [SetupCommand(run="setsid sleep 4567 >/dev/null 2>&1 & echo $!")], False)
    agent.until(Exited)
    (printed,) = [e for e in agent.events if isinstance(e, Output) and e.data.strip().isdigit()]
    pid = int(printed.data)
    gone = agent.finish()
    assert isinstance(gone, Gone)
    assert len(gone.stays) == 1
    assert is_running(pid)
    assert f"mesh-run-{os.getpid()}" not in Path(f"/proc/{pid}/cgroup").read_text()
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not groups())


ESCAPEE = "env -i setsid sleep 4567 & echo $! $PPID; exec sleep 4567"


def kill_both_and_come_again(run: Run, argv: list[str]) -> Lost:
    """Kill agent and guardian, and go in through another channel; the one that is left is to be gone then."""
    run.start("bash", "-c", ESCAPEE)
    run.until(Output)
    escapee, agent = map(int, run.printed().split())
    guardian = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    backend = LocalBackend()

    def reopen() -> object:
        assert is_running(escapee)
        (opened,) = backend.open([HOST], argv)
        return opened.result

    run.session._reopen = reopen  # type: ignore[assignment]
    for pid in (guardian, agent):
        os.kill(pid, signal.SIGKILL)
    lost = run.until(Lost)
    backend.close()
    assert isinstance(lost, Lost)
    assert lost.reason == "its agent is gone"
    if is_running(escapee):
        os.kill(escapee, signal.SIGKILL)
        raise AssertionError("it escaped")
    return lost


def test_nothing_escapes_when_agent_and_guardian_are_killed(agent: Run, any_python: str) -> None:
    agent.prepare()
    assert kill_both_and_come_again(agent, start_command(any_python)).is_clear
    assert not groups()


def within(place: Path, argv: list[str]) -> list[str]:
    return ["sh", "-c", f'echo $$ >{place}/cgroup.procs && exec "$@"', "sh", *argv]


def test_without_one_the_login_session_tells_what_is_left(
    scope: Path, any_python: str, opener: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tests.agent.conftest as module

    monkeypatch.setattr(module, "start_command", lambda python: within(scope, start_command(python)))
    run = opener(any_python)
    run.prepare()
    assert not list(scope.glob("mesh-*"))
    assert kill_both_and_come_again(run, start_command(any_python)).is_clear


def test_our_own_session_and_sshd_are_spared(scope: Path) -> None:
    sleeper = subprocess.Popen(within(scope, ["sleep", "4567"]), stdout=subprocess.PIPE)
    daemon = subprocess.Popen(within(scope, ["sh", "-c", "printf sshd >/proc/$$/comm; read x"]), stdin=subprocess.PIPE)
    path = f"{own_path().rstrip('/')}/mesh-test-{os.getpid()}/session-77.scope"
    try:
        assert eventually(lambda: [p.name for p in session_members(path)] == ["sleep"])
        assert session_members(path.replace("session-", "other-")) == []
        assert session_members("") == []
        code = "from mesh.remote.agent.cgroups import *; print(session_members(own_path()))"
        argv = within(scope, ["env", f"PYTHONPATH={Path.cwd()}", "python3", "-c", code])
        assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "[]\n"
    finally:
        for process in (sleeper, daemon):
            process.kill()
            process.communicate()
