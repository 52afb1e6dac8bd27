"""Prerun entries with inputs: when they are skipped, and what makes them run again."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from mesh.core.events import Gone, Output, PrepareFailed, PrerunDecided, Ready
from mesh.core.run import PrerunEntry
from tests.firsts import prepare_request

from .conftest import Open, Run

UNKNOWN = "it has not succeeded here yet"
Prepare = Callable[..., list[str]]


@pytest.fixture
def workspace(remote_dir: Path) -> Path:
    """The workspace on the host, as a sync would have left it."""
    path = remote_dir / "workspaces/p"
    path.mkdir(parents=True)
    (path / "in").write_text("1")
    return path


def entry(run: str = "echo x >> ran", *inputs: str) -> PrerunEntry:
    return PrerunEntry(run=run, inputs=inputs or ("in",))


def decided(run: Run) -> list[str]:
    """Why each entry with inputs has run; "" for one that was skipped."""
    return [event.why for event in run.events if isinstance(event, PrerunDecided)]


@pytest.fixture
def prepare(opener: Open, any_python: str, workspace: Path) -> Prepare:
    """Run prerun in an agent of its own; returns what was decided."""

    def work(*entries: PrerunEntry | str, force: bool = False, share: bool = False) -> list[str]:
        run = opener(any_python, share=share)
        event = run.prepare(entries, force=force)
        run.finish()
        assert isinstance(event, Ready), event
        return decided(run)

    return work


def runs(workspace: Path) -> int:
    return (workspace / "ran").read_text().count("x")


def test_it_is_skipped_where_it_has_succeeded_on_each_python(opener: Open, python: str, workspace: Path) -> None:
    for expected in ([UNKNOWN], [""], [""]):
        run = opener(python)
        assert isinstance(run.prepare(["export A=1", entry(), 'echo "$A"']), Ready)
        run.finish()
        assert decided(run) == expected
    assert runs(workspace) == 1


CHANGES: list[tuple[str, Callable[[Path], object]]] = [
    ("", lambda path: path),
    ("in changed", lambda path: (path / "in").write_text("2")),
    ("", lambda path: os.utime(path / "in", ns=(0, 0))),
    ("", lambda path: (path / "in").chmod(0o600)),
    ("", lambda path: (path / "other").write_text("2")),
    ("directory changed", lambda path: (path / "directory/deep/new").write_text("")),
    ("link changed", lambda path: (path.parent / "outside").write_text("2")),
    ("link changed", lambda path: (path / "link").unlink()),
    ("missing changed", lambda path: (path / "missing").mkdir()),
    ("in changed", lambda path: (path / "in").unlink()),
    ("", lambda path: path),
]


def test_what_counts_is_the_contents_of_the_inputs(prepare: Prepare, workspace: Path) -> None:
    (workspace / "directory/deep").mkdir(parents=True)
    (workspace.parent / "outside").write_text("1")
    (workspace / "link").symlink_to("../outside")
    one = entry("echo x >> ran", "in", "directory", "link", "missing")
    assert prepare(one) == [UNKNOWN]
    for number, (why, change) in enumerate(CHANGES):
        change(workspace)
        assert prepare(one) == [why], number


def test_the_inputs_are_what_earlier_entries_have_made_of_them(prepare: Prepare, workspace: Path) -> None:
    """Not what they were when the session began."""
    (workspace / "source").write_text("1")
    entries = ("cp source in", entry())
    assert [prepare(*entries), prepare(*entries)] == [[UNKNOWN], [""]]
    (workspace / "source").write_text("2")
    assert prepare(*entries) == ["in changed"]


def test_its_text_and_what_stands_before_it_count(prepare: Prepare) -> None:
    changed = "its text has changed, or that of one before it"
    assert prepare("export A=1", entry()) == [UNKNOWN]
    assert prepare("export A=2", entry()) == [changed]
    assert prepare("export A=2", entry("echo xx >> ran")) == [changed]
    assert prepare("export A=2", entry("echo xx >> ran"), "export B=1") == [""]


def test_when_one_runs_those_after_it_run_as_well(prepare: Prepare, workspace: Path) -> None:
    (workspace / "other").write_text("1")
    entries = (entry("true", "other"), "true", entry())
    assert prepare(*entries) == [UNKNOWN, "one before it has run"]
    (workspace / "in").write_text("2")
    assert prepare(*entries) == ["", "in changed"]
    (workspace / "other").write_text("2")
    assert prepare(*entries) == ["other changed", "one before it has run"]
    assert prepare(*entries) == ["", ""]


def test_one_that_failed_runs_again(prepare: Prepare, opener: Open, any_python: str, workspace: Path) -> None:
    one = entry("test ! -e broken && echo x >> ran")
    assert prepare(one) == [UNKNOWN]
    (workspace / "broken").touch()
    run = opener(any_python)
    event = run.prepare([one], force=True)
    run.finish()
    assert isinstance(event, PrepareFailed)
    assert event.message == "exit 1 in 'test ! -e broken && echo x >> ran'"
    (workspace / "broken").unlink()
    assert [prepare(one), prepare(one)] == [[UNKNOWN], [""]]


def test_one_that_was_cut_short_runs_again(prepare: Prepare, opener: Open, any_python: str, workspace: Path) -> None:
    one = entry("echo begun; test ! -e slow || exec sleep 1000")
    assert prepare(one) == [UNKNOWN]
    (workspace / "slow").touch()
    run = opener(any_python)
    run.lock()
    run.session.prepare(prepare_request(prerun=[one], force=True))
    run.until(Output)
    run.session.finish(signal.SIGKILL, 0.0)
    run.until(Gone)
    (workspace / "slow").unlink()
    assert [prepare(one), prepare(one)] == [[UNKNOWN], [""]]


def test_it_is_forced(prepare: Prepare, workspace: Path) -> None:
    assert prepare(entry()) == [UNKNOWN]
    size = (workspace.parent / ".p.prerun").stat().st_size
    assert [prepare(entry(), force=True), prepare(entry())] == [["--prerun"], [""]]
    assert runs(workspace) == 2
    assert (workspace.parent / ".p.prerun").stat().st_size == size


def test_a_copy_of_the_workspace_has_nothing_to_skip(prepare: Prepare, remote_dir: Path) -> None:
    assert prepare(entry("touch made")) == [UNKNOWN]
    assert prepare(entry("test ! -e made && touch made"), share=True) == []
    assert not list(remote_dir.glob("machines/*/share-*"))


def test_a_workspace_that_was_deleted_is_a_new_one(prepare: Prepare, workspace: Path) -> None:
    assert prepare(entry()) == [UNKNOWN]
    shutil.rmtree(workspace)
    assert prepare(entry()) == [UNKNOWN]


def test_a_damaged_record_is_none(prepare: Prepare, workspace: Path) -> None:
    assert prepare(entry()) == [UNKNOWN]
    record = workspace.parent / ".p.prerun"
    for text in ("", "[", "{}", "[1]", '[{"text": 1}]', "\0" * 50, '[{"machines": 1, "inputs": {}}]'):
        assert record.stat().st_size
        record.write_text(text)
        assert prepare(entry()) == [UNKNOWN], text
    assert prepare(entry()) == [""]


def test_a_record_that_cannot_be_opened_is_an_error(opener: Open, any_python: str, workspace: Path) -> None:
    (workspace.parent / ".p.prerun").mkdir()
    run = opener(any_python)
    event = run.prepare([entry()])
    run.finish()
    assert isinstance(event, PrepareFailed)
    assert event.message.startswith("Is a directory: ")
    assert not (workspace / "ran").exists()


def test_an_input_that_cannot_be_read_is_no_reason_to_skip(prepare: Prepare, workspace: Path) -> None:
    assert prepare(entry()) == [UNKNOWN]
    (workspace / "in").unlink()
    (workspace / "in").symlink_to("/proc/self/mem")  # nobody may read its first bytes, not even root
    for _ in range(2):
        (why,) = prepare(entry())
        assert why.startswith("its inputs cannot be read: ")


def test_packages_that_are_gone_are_installed_again(prepare: Prepare, workspace: Path) -> None:
    """It found no environment the first time, and is skipped because it has left one."""
    package = workspace / ".venv/lib/python3.9/site-packages/jax-0.4.dist-info"
    one = entry(f"mkdir -p '{package}'")
    assert [prepare(one), prepare(one)] == [[UNKNOWN], [""]]
    package.rmdir()
    assert prepare(one) == ["another Python, or other packages, are there now"]
    assert package.exists()


def test_another_python_counts(prepare: Prepare, workspace: Path) -> None:
    (workspace / "bin").mkdir()
    (workspace / "bin/python3").write_text("#!/bin/sh\n")
    (workspace / "bin/python3").chmod(0o755)
    entries = ('export PATH="$PWD/$(cat which):$PATH"', entry())
    (workspace / "which").write_text("nothing")
    assert [prepare(*entries), prepare(*entries)] == [[UNKNOWN], [""]]
    (workspace / "which").write_text("bin")
    assert prepare(*entries) == ["another Python, or other packages, are there now"]


def test_what_the_user_has_set_holds_in_it(opener: Open, any_python: str, workspace: Path) -> None:
    run = opener(any_python)
    event = run.prepare(["set -eu", entry("echo one; false; echo two"), "echo three"])
    run.finish()
    assert isinstance(event, PrepareFailed)
    assert event.message == "exit 1 in 'echo one; false; echo two'"


def test_two_agents_of_one_workspace_run_it_one_after_the_other(opener: Open, any_python: str, workspace: Path) -> None:
    """The second one waits, and then need not run it: here they are one machine."""
    os.mkfifo(workspace / "gate")
    one = entry("mkdir busy && cat gate && rmdir busy")
    first, second = opener(any_python), opener(any_python, node=1)
    for run in (first, second):
        run.lock()
    sent: Sequence[PrerunEntry] = [one]
    first.session.prepare(prepare_request(prerun=sent))
    first.until(PrerunDecided)
    second.session.prepare(prepare_request(prerun=sent))
    said = second.until(Output)
    assert isinstance(said, Output)
    assert said.data == b"==> waits: another host runs the next entry in the same workspace\n"
    (workspace / "gate").write_text("on")
    first.until(Ready)
    second.until(Ready)
    assert (decided(first), decided(second)) == ([UNKNOWN], [""])
    for run in (first, second):
        run.finish()


def test_an_end_while_it_waits_for_another_one(opener: Open, any_python: str, workspace: Path) -> None:
    os.mkfifo(workspace / "gate")
    first, second = opener(any_python), opener(any_python, node=1)
    for run, kind in ((first, PrerunDecided), (second, Output)):
        run.lock()
        run.session.prepare(prepare_request(prerun=[entry("cat gate")]))
        run.until(kind)
    assert second.finish(0.5).left == ()
    assert decided(second) == []
    assert first.finish(0.5).left == ()
