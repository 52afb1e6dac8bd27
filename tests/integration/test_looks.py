"""Colours, widths and the amount of mesh's own lines, on real terminals of 80 and 120 columns."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys

import pytest

from tests.conftest import REPOSITORY, Home
from tests.integration.test_screen import TOGETHER
from tests.lab import eventually
from tests.screen import PATIENT, TMUX, Screen

GOLDEN = REPOSITORY / "tests/golden"
LOOKS = [(80, False), (120, True)]  # columns, and if there are colours

pytestmark = pytest.mark.skipif(TMUX is None, reason="needs tmux")

FAILS = (
    TOGETHER
    + """\
for step in range(1, 4):
    together()
    numbers = f"loss {2.5 - step / 8 + rank / 1000:.4f} tokens/s {12020 + 83 * rank} grad_norm {1.1 + rank / 10:.3f}"
    print(f"step {step} {numbers} lr 1.0e-03 memory {40 + rank} GB", flush=True)
together()
if rank == 2:
    raise ValueError("batch of 31, expected 32")
time.sleep(60)
"""
)


def on_terminal(home: Home, *commands: str, columns: int, colours: bool, is_patient: bool = False) -> Screen:
    """Commands of mesh, one after the other, each with its command line before it.

    is_patient: a line waits for those of slower ranks
    """
    (home.path / "place").mkdir(exist_ok=True)
    mesh = shlex.join([sys.executable, "-c", PATIENT] if is_patient else home.argv())
    lines = [f"echo '$ mesh {command}'; {mesh} {command}" for command in commands]
    environ = {**home.environ, "PLACE": str(home.path / "place"), "MESH_LEASE": "60"}
    environ |= {} if colours else {"NO_COLOR": "1"}
    return Screen(["sh", "-c", "; ".join(lines)], home.project, environ, columns=columns, rows=60)


def as_golden(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"^.*not reached after .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^.*\^\^\^.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"logs: \S+/logs", "logs: ~/.local/state/mesh/runs/20261121-101500-3f9c2a/logs", text)
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "20261121-101500-3f9c2a", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-11-21 10:15", text)
    text = re.sub(r"\d+\.\d k?B sent, \d+\.\d s", "17.2 kB sent, 0.3 s", text)
    text = re.sub(r"\d+\.\d s after the start", "1.3 s after the start", text)
    text = re.sub(r" \ds  ", " 0s  ", text)
    text = re.sub(r"\d\d\.\d kB", "24.6 kB", text)
    return re.sub(r"in \d+\.\d s", "in 0.3 s", text)


def check(name: str, screen: Screen, *, colours: bool) -> None:
    found = as_golden(screen.coloured() if colours else screen.text())
    path = GOLDEN / f"{name}{'-colours' if colours else ''}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text()


@pytest.mark.parametrize(("columns", "colours"), LOOKS)
def test_a_run_that_fails(home: Home, columns: int, colours: bool) -> None:
    home.files(train__py=FAILS, mesh__yaml="pass: [PLACE]\n")
    command = "run local:4 python3 train.py"
    with on_terminal(home, command, columns=columns, colours=colours, is_patient=True) as screen:
        screen.wait()
        check(f"fails-{columns}", screen, colours=colours)


@pytest.mark.parametrize(("columns", "colours"), LOOKS)
def test_tables_never_break_a_row(home: Home, columns: int, colours: bool) -> None:
    runs = ["exec -q local:4 true", "exec -q local 'exit 3' 2>/dev/null", f"exec -q local:2 true {'word ' * 30}"]
    with on_terminal(home, *runs, "runs", "clusters", columns=columns, colours=colours) as screen:
        screen.wait()
        check(f"tables-{columns}", screen, colours=colours)


def test_a_wide_check_is_split_and_its_failures_are_red(home: Home) -> None:
    with on_terminal(home, "check --program nosuch local:2", columns=60, colours=True) as screen:
        screen.wait()
        assert "{31}FAILED" in screen.coloured()
        shown = screen.in_sight()
        rows = [line for line in shown.split("\n") if line.startswith(("host", "local-"))]
        assert len(rows) == 6  # two tables, each of a head and two hosts
        assert max(map(len, rows)) <= 60


def test_off_a_terminal_tables_are_as_wide_as_they_are(home: Home) -> None:
    words = ["w" * 20, "x" * 20]
    home.mesh("exec", "local", "true", *words)
    assert all(word in home.mesh("runs").out.decode() for word in words)
    home.environ["COLUMNS"] = "40"
    head, row = home.mesh("runs").out.decode().splitlines()
    assert head.startswith("run ")
    assert len(row) <= 40


@pytest.mark.parametrize(
    ("variables", "options", "is_coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
    ],
)
def test_when_output_has_colours(home: Home, variables: dict[str, str], options: list[str], is_coloured: bool) -> None:
    home.environ |= variables
    done = home.mesh("exec", *options, "local", "echo", "hello")
    assert (b"\x1b[" in done.out) == is_coloured
    assert ("\x1b[" in done.err) == is_coloured


def test_quiet_leaves_output_and_errors(home: Home) -> None:
    assert home.mesh("exec", "-q", "local:1", "echo", "hello").err == ""
    failed = home.mesh("exec", "-q", "local:1", "sh", "-c", "exit 3").err
    assert failed.startswith("error: rank 0 ")
    assert "==>" not in failed


def test_verbose_names_each_step_of_all_hosts(home: Home) -> None:
    home.files(a__py="print('hello')")
    shown = home.mesh("run", "-v", "local:2", "python3", "a.py").err
    steps = re.findall(r"\d+\.\d\d s: ([a-z ]+) on 2 hosts \(local-[01] last\)", shown)
    assert steps[:3] == ["connected", "locked", "workspace there"]
    assert {"prepared", "ranks started", "ranks ended"} <= set(steps)


def test_folded_numbers_as_means_and_whole_lines_in_the_log(home: Home) -> None:
    home.files(a__py="import os\nprint('step 1 loss', [2.49, 2.51][int(os.environ['RANK'])], 'end ' * 30)")
    commands = ("run --fold mean local:2 python3 a.py", "logs")
    with on_terminal(home, *commands, columns=80, colours=False, is_patient=True) as screen:
        screen.wait()
        line, logged = (line for line in screen.text().split("\n") if line.startswith("[0-1]"))
        assert line.startswith("[0-1] step 1 loss 2.50±0.01 end end")
        assert line.endswith("end ...")
        assert len(line) <= 80
        assert logged.rstrip() == f"[0-1] step 1 loss 2.49..2.51 {'end ' * 30}".rstrip()


# Each rank prints until all ranks are in their functions, each of which is one line; then all are quiet.
QUIET = """\
import time
from os import O_CREAT, chdir, close, environ, listdir, open
rank = environ["RANK"]; chdir(environ["PLACE"])
def load():
    while True: len(listdir()) < 3 and (close(open(rank, O_CREAT)), print("here", flush=True)); time.sleep(0.1)
def wait():
    while True: len(listdir()) < 3 and (close(open(rank, O_CREAT)), print("here", flush=True)); time.sleep(0.1)
(load if rank == "1" else wait)()
"""
QUIET_S = 5  # the hang watch's; longer than a process stands still on a machine with much to do


def test_the_hang_watch_shows_where_ranks_are_in_one_line(home: Home) -> None:
    home.files(a__py=QUIET, mesh__yaml=f"hang_watch: {QUIET_S}\npass: [PLACE]\n")
    with on_terminal(home, "run --stacks local:3 python3 a.py", columns=120, colours=False) as screen:
        screen.expect(f"no output for {QUIET_S} s: [1] load at a.py:5; [0,2] wait at a.py:7", 120.0)
        screen.type("C-c")
        screen.wait()
        assert "3/3 hosts clean" in screen.text()
        assert screen.text().count(f"no output for {QUIET_S} s: [1]") == 1
    (events,) = (home.path / ".local/state/mesh/runs").glob("*/events.jsonl")
    written = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["hosts"] for one in written if one["event"] == "hanging"] == [3]
    assert sorted(one["rank"] for one in written if one["event"] == "stacks") == [0, 1, 2]


SLOW = """\
import os, pathlib, time
step, is_slow = 0, os.environ["RANK"] == "2"
while not (pathlib.Path(os.environ["PLACE"]) / "enough").exists():
    step += 1
    print(f"step {step} loss 2.5", flush=True)
    time.sleep(2 if is_slow else 0.1)
"""


def test_a_rank_that_is_behind_stands_in_the_status_line_and_in_the_events(home: Home) -> None:
    home.files(a__py=SLOW, mesh__yaml="pass: [PLACE]\n")
    with on_terminal(home, "run local:4 python3 a.py", columns=120, colours=True) as screen:
        named = re.compile(r"4 ranks running, \{33\}rank 2 is \d+ steps behind \(median \d+\)\{0\}, ")
        assert eventually(lambda: named.search(screen.coloured()), 120.0), screen.coloured()
        (home.path / "place/enough").touch()
        screen.wait()
    (events,) = (home.path / ".local/state/mesh/runs").glob("*/events.jsonl")
    written = map(json.loads, events.read_text().splitlines())
    behind = [one for one in written if one["event"] == "behind" and one["rank"] == 2]
    assert behind[0]["unit"] == "step"
    assert behind[0]["steps"] >= 2


def test_the_receipt_is_the_last_line_where_ranks_were_ended(pod: Home) -> None:
    pod.files(a__py="")
    ended = pod.mesh("run", "--timeout", "1", "pod", "sleep", "60")
    receipt = r"==> 4/4 hosts clean in \d+\.\d s: 4 ranks ended, no process left, devices free"
    assert re.fullmatch(receipt, ended.err.splitlines()[-1])
    assert "hosts clean" not in pod.mesh("run", "pod", "true").err
    # A rank that is slower than the others is not stopped meanwhile.
    assert "hosts clean" not in pod.mesh("run", "--drain", "60", "pod", "false").err
