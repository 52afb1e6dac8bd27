"""Prerun: one session, whose state the ranks start with."""

from __future__ import annotations

from pathlib import Path

from mesh.core.events import Exited, PrepareFailed, Ready, Stream

from .conftest import Open, Run
from .test_ending import is_running


def failed(event: object) -> str:
    assert isinstance(event, PrepareFailed)
    return event.message


def test_state_holds_for_the_command_on_each_python(opener: Open, python: str, tmp_path: Path) -> None:
    run = opener(python)
    lines = ["export FOO='a b'", f"cd '{tmp_path}'; umask 077", "ulimit -n 500", "not_exported=1"]
    assert isinstance(run.prepare(lines), Ready)
    run.start("bash", "-c", 'echo "$FOO|$PWD|$(umask)|$(ulimit -n)|$not_exported|"')
    run.result()
    assert run.printed().decode() == f"a b|{tmp_path}|0077|500||\n"


def test_it_sees_the_variables_of_the_first_rank(agent: Run) -> None:
    agent.prepare(['echo "rank $RANK $TOKEN"'], env={"TOKEN": "t"})
    agent.finish()
    assert agent.printed(Stream.PRERUN) == b"rank 0 t\n"


def test_it_stops_at_the_first_line_that_fails(agent: Run) -> None:
    assert failed(agent.prepare(["echo one", "false", "echo three"])) == "exit 1 in 'false'"
    agent.finish()
    assert agent.printed(Stream.PRERUN) == b"one\n"


def test_a_syntax_error_is_the_failure_of_its_line(agent: Run) -> None:
    assert "in 'if then'" in failed(agent.prepare(["true", "if then"]))
    agent.finish()


def test_errexit_and_nounset_of_the_user_hold(agent: Run) -> None:
    message = failed(agent.prepare(["set -eu", "false; echo not reached"]))
    assert message == "exit 1 in 'false; echo not reached'"
    agent.finish()
    assert b"not reached" not in agent.printed(Stream.PRERUN)


def test_leaving_the_session_is_a_failure(agent: Run) -> None:
    assert "was left (exit 0)" in failed(agent.prepare(["exit 0"]))
    agent.finish()


def test_a_session_that_is_killed(agent: Run) -> None:
    assert "killed by signal 9" in failed(agent.prepare(["kill -9 $$"]))
    agent.finish()


def test_an_exit_trap_runs_when_the_run_ends(agent: Run, tmp_path: Path) -> None:
    left = tmp_path / "scratch"
    agent.prepare([f"mkdir '{left}'", f"trap \"rmdir '{left}'\" EXIT"])
    agent.start("test", "-d", str(left))
    assert agent.result().status == 0
    assert not left.exists()


def test_what_it_leaves_running_ends_with_the_run(agent: Run) -> None:
    agent.prepare(["sleep 3456 & echo $!"])
    pid = int(agent.printed(Stream.PRERUN))
    agent.start("kill", "-0", str(pid))
    assert agent.result().status == 0
    assert not is_running(pid)


def test_bashrc_is_not_read(opener: Open, any_python: str, tmp_path: Path, monkeypatch: object) -> None:
    assert hasattr(monkeypatch, "setenv")
    (tmp_path / ".bashrc").write_text("echo noise; export FROM_BASHRC=1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_CLIENT", "127.0.0.1 1 22")
    monkeypatch.delenv("SHLVL", raising=False)
    run = opener(any_python)
    run.prepare(["echo ${FROM_BASHRC-unset}"])
    run.start("bash", "-c", 'echo ${FROM_BASHRC-unset}; bash -c "echo ${FROM_BASHRC-unset}"')
    run.result()
    assert run.printed(Stream.PRERUN) == b"unset\n"
    assert run.printed() == b"unset\nunset\n"


def test_odd_text_in_a_line(agent: Run) -> None:
    agent.prepare(["cat <<'END'\n it's \"odd\" \\ $x\nEND", "echo 'ünï'"])
    agent.finish()
    assert agent.printed(Stream.PRERUN).decode() == ' it\'s "odd" \\ $x\nünï\n'


def test_a_user_variable_that_prerun_changes_wins_over_the_rank(agent: Run) -> None:
    agent.prepare(["export RANK=seven"])
    agent.start("sh", "-c", "echo $RANK $LOCAL_RANK", nproc=2)
    agent.until(Exited)
    agent.until(Exited)
    agent.finish()
    assert agent.printed(rank=1) == b"seven 1\n"
