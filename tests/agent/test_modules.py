"""Steps of modules on a real agent: check, apply, undo, files, reports, time limits, and the processes that stay."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from mesh.core.events import Event, Output, PrepareFailed, Ready, Stream
from mesh.core.module import Applied, HostFile, ModuleStep, Step
from tests.agent.conftest import Open, Run
from tests.agent.test_ending import is_running
from tests.firsts import finds, prepare_request
from tests.lab import eventually

ENV = {"RANK": "0", "LOCAL_RANK": "0", "MESH_RUN_ID": "20260101-000000-abcdef"}


def step(apply: str, **more: object) -> Step:
    return Step(**{"module": "demo", "apply": apply, "timeout": 30.0, **more})  # type: ignore[arg-type]


def apply(run: Run, *steps: Step, undo: bool = False, force: bool = False) -> Event:
    """Have the agent carry out steps; return how that ended."""
    run.session.apply(finds(ENV), steps, undo=undo, force=force)
    return run.until(Applied, PrepareFailed)


def printed(run: Run) -> str:
    outputs = [event for event in run.events if isinstance(event, Output) and event.stream is Stream.MODULE]
    return b"".join(event.data for event in outputs).decode()


def states(run: Run) -> list[tuple[int, str]]:
    return [(event.step, event.state) for event in run.events if isinstance(event, ModuleStep)]


def test_steps_are_applied_once_and_report(opener: Open, python: str) -> None:
    check = 'test -e "$MESH_MODULES/mark" && echo "v1 $RANK" >&3'
    one = step('echo applying; touch "$MESH_MODULES/mark"', check=check)
    run = opener(python)
    run.lock()
    done = apply(run, one, step("echo always"))
    assert isinstance(done, Applied)
    assert (done.facts, done.applied) == (("v1 0\n", ""), (0, 1))
    assert states(run) == [(0, "check"), (0, "apply"), (1, "check"), (1, "apply")]
    assert printed(run) == "applying\nalways\n"
    done = apply(run, one)
    assert isinstance(done, Applied)
    assert (done.facts, done.applied) == (("v1 0\n",), ())
    done = apply(run, one, force=True)
    assert isinstance(done, Applied)
    assert done.applied == (0,)
    assert run.finish().left == ()


def test_steps_run_in_the_workspace_and_belong_to_no_run(opener: Open, python: str, remote_dir: Path) -> None:
    run = opener(python)
    run.lock()
    apply(run, step('pwd; echo "$MESH_SETUP ${MESH_RUN_ID-none} $RANK"'))
    directory, variables = printed(run).splitlines()
    assert Path(directory).parent == remote_dir / "workspaces"
    assert variables == "1 none 0"
    run.finish()


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (step("echo one; echo 'no disk' >&2; exit 3"), "demo: no disk"),
        (step("exit 4"), "demo: exit 4"),
        (step("kill -9 $$"), "demo: signal 9"),
        (step("true", check="echo 'not there' >&2; false"), "demo: still not in place after it was applied: not there"),
        (step("echo slow; sleep 60", timeout=6.0), "demo: not done after 6 s: slow"),
    ],
)
def test_a_step_that_fails_is_named_with_its_last_line(
    opener: Open, any_python: str, failing: Step, reason: str
) -> None:
    run = opener(any_python)
    run.lock()
    failed = apply(run, step("true"), failing, step("echo never"))
    assert isinstance(failed, PrepareFailed)
    assert (failed.step, failed.message) == ("module", reason)
    assert "never" not in printed(run)
    assert run.finish(grace=0.5).left == ()


def test_files_come_only_for_steps_that_are_applied(opener: Open, python: str, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    place = tmp_path / "new" / "key"
    with_files = step(
        "true",
        check=f"test -e {place}",
        files=(HostFile(path=str(place), data=data, mode=0o640), HostFile(path=str(tmp_path / "empty"), data=b"")),
    )
    run = opener(python)
    run.lock()
    apply(run, with_files)
    assert place.read_bytes() == data
    assert place.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "empty").read_bytes() == b""
    place.write_bytes(b"changed by hand")
    apply(run, with_files)
    assert place.read_bytes() == b"changed by hand"
    assert sorted(os.listdir(place.parent)) == ["key"]
    run.finish()


def test_files_of_killed_agents_are_removed(opener: Open, any_python: str, remote_dir: Path) -> None:
    """They may hold parts of private keys, and what a package manager has printed."""
    run = opener(any_python)
    run.lock()
    apply(run, step('true >"$MESH_MODULES/mark-99999999"'))
    (modules,) = remote_dir.glob("machines/*/modules")
    (modules / "incoming-99999999").write_bytes(b"half a key")
    (modules / "demo-output-99999999").write_bytes(b"said")
    own = modules / f"demo-output-{os.getpid()}"
    own.write_bytes(b"")
    apply(run, step("true"))
    assert sorted(os.listdir(modules)) == [own.name, "mark-99999999"]
    run.finish()


def test_undo_takes_its_own_texts_and_skips_steps_without_one(opener: Open, any_python: str) -> None:
    run = opener(any_python)
    run.lock()
    done = apply(run, step("echo wrong", undo="echo undone"), step("echo wrong"), undo=True)
    assert isinstance(done, Applied)
    assert done.applied == (0,)
    assert printed(run) == "undone\n"
    run.finish()


def test_processes_that_a_step_leaves_outlive_the_run(opener: Open, python: str, tmp_path: Path) -> None:
    """Also what they start later; ranks, and what ranks leave, end as always."""
    mark = tmp_path / "pid"
    daemon = f"setsid sh -c 'echo $$ > {mark}; sleep 600 & wait' </dev/null >/dev/null 2>&1 &"
    run = opener(python)
    run.lock()
    apply(run, step(f"{daemon} while ! test -s {mark}; do sleep 0.01; done"))
    stays = int(mark.read_text())
    run.session.prepare(prepare_request())
    run.until(Ready)
    run.start("sh", "-c", "setsid sleep 601 </dev/null >/dev/null 2>&1 & echo $!")
    rank = run.result()
    left = int(run.printed())
    try:
        assert rank.code == 0
        assert not is_running(left)
        assert Path(f"/proc/{stays}").exists()
    finally:
        os.killpg(stays, signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{stays}").exists())


def test_the_end_of_a_run_ends_a_step_and_what_it_has_started(opener: Open, any_python: str, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    run = opener(any_python)
    run.lock()
    run.session.apply(finds(ENV), [step(f"sleep 602 & echo $! > {mark}; wait")], undo=False, force=False)
    run.until(ModuleStep, where=lambda event: isinstance(event, ModuleStep) and event.state == "apply")
    assert eventually(lambda: mark.exists() and mark.read_text().strip() != "")
    assert run.finish(grace=0.5).left == ()
    assert eventually(lambda: not Path(f"/proc/{mark.read_text().strip()}").exists())


def test_a_forced_step_sees_that_it_is(opener: Open, any_python: str) -> None:
    run = opener(any_python)
    run.lock()
    one = step('echo "force=$MESH_FORCE"', check="true")
    apply(run, one, force=True)
    apply(run, step('echo "force=$MESH_FORCE"'))
    assert printed(run) == "force=1\nforce=\n"
    run.finish()


def test_a_step_that_never_stops_printing_ends_with_its_time(opener: Open, python: str) -> None:
    run = opener(python)
    run.lock()
    failed = apply(run, step("echo y; sleep 5.5; exec yes", timeout=6.0))
    assert isinstance(failed, PrepareFailed)
    assert failed.message == "demo: not done after 6 s: y"
    assert printed(run).endswith("y\n")
    assert run.finish(grace=0.5).left == ()
