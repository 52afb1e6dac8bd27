"""The parts of `mesh repl` that decide: lines cut into cells, commands, code of a cell, output by rank."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.cluster import Host
from mesh.core.errors import UsageError
from mesh.core.events import Exited
from mesh.core.run import RunSpec
from mesh.program.ledger import Ledger
from mesh.program.prompt.cells import COMMANDS, Cells, Command, read_assignment, read_command
from mesh.program.prompt.runner import CellRunner
from mesh.program.prompt.screen import PromptScreen
from mesh.program.prompt.session import Prompt
from mesh.program.prompt.syncing import PIECE_BYTES, Workspace
from mesh.program.running import Running
from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle
from mesh.program.runtime.shell import Shell, compiled, descendants
from mesh.program.runtime.workspace import Change, apply
from mesh.screen.fold import Fold

SCRIPTS = {
    "simple statements are cells": ("x = 1\n\n# no cell\nx", ["x = 1", "x"]),
    "an empty line does not end a block of a script": (
        "def f():\n    a = 1\n\n    return a\nf()",
        ["def f():\n    a = 1\n\n    return a", "f()"],
    ),
    "else goes on": ("if x:\n    y\nelse:\n    z\nw", ["if x:\n    y\nelse:\n    z", "w"]),
    "a text of several lines is one": ('s = """a\nb\n"""\ns', ['s = """a\nb\n"""', "s"]),
    "brackets too": ("f(\n1,\n)\ng", ["f(\n1,\n)", "g"]),
    "a decorator waits for its function": (
        "@d\ndef f():\n    pass\nclass C:\n    x = 1",
        ["@d\ndef f():\n    pass", "class C:\n    x = 1"],
    ),
    "a command ends a block": ("for n in x:\n    n\n%ranks 0", ["for n in x:\n    n", "%ranks 0"]),
    "a broken line is a cell, and the ranks report it": ("x = = 1\ny", ["x = = 1", "y"]),
}


@pytest.mark.parametrize(("text", "cells"), SCRIPTS.values(), ids=SCRIPTS)
def test_lines_of_a_script(text: str, cells: list[str]) -> None:
    cutter = Cells(is_typed=False)
    found = [cell for line in text.split("\n") for cell in cutter.feed(line)]
    assert [*found, *cutter.end()] == cells


def test_an_empty_line_ends_a_typed_block() -> None:
    cells = Cells(is_typed=True)
    assert [cells.feed(line) for line in ("if x:", "    y", "")] == [[], [], ["if x:\n    y"]]
    assert not cells.is_open
    cells.feed("for n in x:")
    assert cells.is_open
    cells.drop()
    assert cells.feed("z") == ["z"]


def test_commands() -> None:
    assert read_command("%time f(x)") == Command("time", "f(x)")
    assert read_command("exit()") == read_command("%exit") == Command("exit", "")
    assert read_command("x % y") is None
    with pytest.raises(UsageError, match="%pul: no such command") as unknown:
        read_command("%pul x")
    assert unknown.value.hint == f"%pull: {COMMANDS['pull']}"
    with pytest.raises(UsageError, match="%restart: expected a rank"):
        read_command("%restart ")
    for wrong in ("x", "3 = x", "x =", "f(x) = 1"):
        with pytest.raises(UsageError, match="expected NAME = EXPRESSION"):
            read_assignment(wrong)


def test_the_last_expression_of_a_cell_shows_its_value() -> None:
    names: dict[str, object] = {}
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for source in ("x = 20\nx + 1\nx + 2", "y = x", "None"):
            for part in compiled(source, "<cell 1>"):
                exec(part, names)
    assert shown.getvalue() == "22\n"
    assert names["y"] == 20


def test_processes_below_this_one_are_found_through_their_parents() -> None:
    script = "import os, subprocess, sys; p = subprocess.Popen(['cat'], stdin=0); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        grandchild = int(child.stdout.readline())
        assert descendants(child.pid) == [grandchild]
        child.stdin.close()


# The end of a prompt on a rank, whose cell has itself interrupted by a call for the cell behind it.
INTERRUPTED = """
import signal
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.here import Context, Here
from mesh.program.runtime.shell import Shell
context = Context(Here("p", "rank/0", 0, 1, "a"), Caller(("p", "rank/0"), print, {}, True), print)
shell = Shell()
signal.signal(signal.SIGINT, shell._on_signal)
shell.put("interrupt", shell.interrupt)
cell = "import threading, time; threading.Thread(target=interrupt, args=(2,)).start(); time.sleep(600)"
print(*(shell._work(context, number, source)["status"] for number, source in ((1, cell), (2, "x = 1"), (3, "x = 2"))))
"""


def test_ctrl_c_for_a_cell_that_waits_interrupts_the_one_that_runs() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert done.stdout == "interrupted interrupted ok\n", done.stderr


class Peer:
    """A rank on another host, as far as %sync needs it. ``limit``: changes that it makes before a Ctrl-C"""

    def __init__(self, home: Path, limit: int = -1) -> None:
        self.home, self.limit = home, limit

    @property
    def futures(self) -> Peer:
        return self

    def bring(self, changes: list[Change]) -> Future[object]:
        apply(str(self.home), changes[: self.limit] if self.limit >= 0 else changes)
        if self.limit >= 0:
            raise KeyboardInterrupt
        done: Future[object] = Future(lambda: None)
        done.give(None)
        return done


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_sync_brings_all_files_also_after_one_that_was_interrupted(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for place in (here, there):
        place.mkdir()
    workspace = Workspace(RunSpec(run="", project="", workspace=here))
    large = bytes(range(256)) * (2 * PIECE_BYTES // 256)
    for name, data in {"large": large, "larger": large + b"end", "small": b"x", "empty": b""}.items():
        (here / name).write_bytes(data)
    for limit in range(1, 5):
        with pytest.raises(KeyboardInterrupt):
            workspace.sync([Peer(there, limit)])  # type: ignore[list-item]
    assert workspace.sync([Peer(there)]).files == 4  # type: ignore[list-item]
    assert contents(there) == contents(here)
    (here / "small").unlink()
    (here / "small").mkdir()
    (here / "small/inner").write_bytes(b"y")
    assert workspace.sync([Peer(there)]).removed == 0  # type: ignore[list-item]
    assert contents(there) == contents(here)
    (here / "small/inner").unlink()
    (here / "small").rmdir()
    (here / "small").symlink_to("large")
    assert workspace.sync([Peer(there)]).removed == 1  # type: ignore[list-item]
    assert contents(there) == contents(here)


def test_what_waits_at_the_end_of_a_cell_is_shown_by_rank() -> None:
    fold = Fold(range(3))
    for rank, text in ((2, b"c\nlast"), (1, b"b\nlast"), (0, b"a\nlast")):
        assert fold.feed(rank, text, 0.0) == []
    shown = [(one.ranks, one.text) for one in fold.end_all(0.0)]
    assert shown == [(1, b"a"), (2, b"b"), (4, b"c"), (7, b"last")]
    assert not fold.is_waiting


@contextlib.contextmanager
def prompt_of(script: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Prompt, PromptScreen]]:
    """The prompt of two ranks that no process is behind, and its screen."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    screen = PromptScreen((Host(name="a", address="a"),), 2)
    try:
        handles = [Handle[Shell]("none", f"rank/{rank}") for rank in range(2)]
        yield Prompt(CellRunner(Running({}, Ledger({})), handles, screen)), screen
    finally:
        screen.close()


def test_ctrl_c_in_a_command_ends_a_script_and_no_prompt_that_is_typed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with prompt_of("%local raise KeyboardInterrupt\n%local x = 1\n", monkeypatch) as (prompt, _):
        with pytest.raises(KeyboardInterrupt):
            prompt._read_and_run()
        assert prompt._runner.names.get("x") is None
    with prompt_of("%local raise KeyboardInterrupt\n%local x = 1\n", monkeypatch) as (prompt, _):
        prompt._reader.is_typed = True
        assert prompt._read_and_run() == 0
        assert prompt._runner.names["x"] == 1


def test_ctrl_c_while_a_script_is_read_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        """A pipe from which nothing comes until Ctrl-C."""

        def readline(self, size: int | None = -1, /) -> str:
            raise KeyboardInterrupt

    with prompt_of("", monkeypatch) as (prompt, _):
        monkeypatch.setattr(sys, "stdin", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            prompt._read_and_run()


def test_a_script_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with prompt_of("", monkeypatch) as (prompt, _):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x = '\xff'\n"), "utf-8"))
        with pytest.raises(UsageError, match="standard input: not utf-8 text"):
            prompt._read_and_run()


def test_a_script_whose_rank_ends_between_two_cells_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ("", "%local x = 1\n"):
        with prompt_of(script, monkeypatch) as (prompt, screen):
            screen.handle(Exited(time=0.0, node=0, rank=1, code=3))
            assert prompt._read_and_run() == 1
            assert "x" not in prompt._runner.names
    with prompt_of("%local x = 1\n", monkeypatch) as (prompt, _):
        assert prompt._read_and_run() == 0
        assert prompt._runner.names["x"] == 1


def test_a_rank_that_cannot_take_a_cell_fails_it_and_the_prompt_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with prompt_of("print(1)\n%local x = 1\n", monkeypatch) as (prompt, screen):
        prompt._reader.is_typed = True
        assert prompt._read_and_run() == 0
        assert {rank: report.status for rank, report in screen.reports.items()} == {0: "error", 1: "error"}
        assert prompt._runner.names["x"] == 1
    with prompt_of("print(1)\n%local x = 1\n", monkeypatch) as (prompt, _):
        assert prompt._read_and_run() == 1
