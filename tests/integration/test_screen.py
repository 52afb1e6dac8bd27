"""What a person sees: sessions on a real terminal, as they stand in tests/golden and in docs/logs.md."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.conftest import REPOSITORY, Home
from tests.lab import eventually
from tests.screen import TMUX, Screen

GOLDEN = REPOSITORY / "tests/golden"

pytestmark = pytest.mark.skipif(TMUX is None, reason="needs tmux")

# Ranks that go on together when the last of them has come; all are on one machine.
TOGETHER = """\
import os, pathlib, time
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = 0
def together(who=range(ranks)):
    global at
    at += 1
    place = pathlib.Path(os.environ["PLACE"])
    (place / f"{at}-{rank}").touch()
    while not all((place / f"{at}-{one}").exists() for one in who):
        time.sleep(0.005)
def wait_for(name):
    while not (pathlib.Path(os.environ["PLACE"]) / name).exists():
        time.sleep(0.005)
"""

TRAIN = (
    TOGETHER
    + """\
together()
print(f"rank {rank} of {ranks} is ready")
for step in range(1, 4):
    together()
    print(f"step {step} loss {2.5 - step / 8 + rank / 1000:.3f}")
"""
)

FAILS = (
    TOGETHER
    + """\
def loss(batch):
    if rank == 11 and batch < 32:
        raise ValueError(f"batch of {batch}, expected 32")
    return 2.5
for step in range(1, 3):
    together()
    print(f"step {step} loss {loss(32 - step + 1):.3f}")
together()
"""
)

SLOW = (
    TOGETHER
    + """\
fast = [one for one in range(ranks) if one != 7]
for step in range(1, 4):
    together([7] if rank == 7 and step > 1 else fast if step > 1 else range(ranks))
    if rank == 7 and step > 1:
        wait_for(f"slow-{step}")
    elif step > 2:
        wait_for(f"fast-{step}")
    print(f"step {step} loss {2.5 - step / 8 + rank / 1000:.3f}")
"""
)

BARS = (
    TOGETHER
    + """\
import sys
for done in range(11):
    if done == (4 if rank == 5 else 5):
        together()
        wait_for("go")
    sys.stderr.write(f"\\r{done * 10:3d}%|{'#' * done:10}| {done}/10")
    sys.stderr.flush()
sys.stderr.write("\\n")
"""
)


def session(home: Home, program: str, *words: str, columns: int = 80, rows: int = 30) -> Screen:
    """16 ranks of a program, on a terminal."""
    (home.path / "place").mkdir()
    home.files(train__py=program)
    command = ["mesh", "run", *words, "local:16", "python3", "train.py"]
    mesh = home.argv(*command[1:])
    shown = f"printf '%s\\n' '$ {' '.join(command)}'; exec \"$@\""
    environ = {**home.environ, "PLACE": str(home.path / "place"), "NO_COLOR": "1", "MESH_LEASE": "60"}
    return Screen(
        ["sh", "-c", shown, "sh", *mesh[:4], "--env", f"PLACE={environ['PLACE']}", *mesh[4:]],
        home.project,
        environ,
        columns=columns,
        rows=rows,
    )


def as_golden(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"\d+\.\d+ k?B sent, \d+\.\d s", "17.2 kB sent, 0.3 s", text)
    text = re.sub(r"in \d+\.\d s", "in 4.1 s", text)
    text = re.sub(r"running(.*), \d+:\d\d$", r"running\1, 0:03", text, flags=re.MULTILINE)
    text = re.sub(r"^.*\^\^\^.*\n", "", text, flags=re.MULTILINE)  # which Python draws these depends on its version
    text = re.sub(r"/\S+/workspaces/project-\w+/", "/root/.mesh/workspaces/project-a19b8213ef/", text)
    text = re.sub(r"\d+\.\d s after the start", "1.3 s after the start", text)
    return re.sub(r"logs: \S+/logs", "logs: ~/.local/state/mesh/runs/20261121-101500-3f9c2a/logs", text)


def check(name: str, text: str) -> None:
    assert as_golden(text) == (GOLDEN / name).read_text()


def test_16_ranks_are_one(home: Home) -> None:
    with session(home, TRAIN) as screen:
        screen.wait()
        check("fold.txt", screen.text())


def test_one_rank_of_16_fails(home: Home) -> None:
    with session(home, FAILS) as screen:
        screen.wait()
        check("verdict.txt", screen.text())


def test_one_rank_is_slow(home: Home) -> None:
    with session(home, SLOW) as screen:
        screen.expect("[0-6,8-15] step 2")
        (home.path / "place/slow-2").touch()
        screen.expect("[7] step 2")
        (home.path / "place/fast-3").touch()
        screen.expect("[0-6,8-15] step 3")
        screen.expect("1 rank running, 15 done")
        screen.type("Enter")
        screen.expect("last output")
        text = re.sub(r"last output \d+ s", "last output 2 s", screen.text())
        check("slow.txt", text)
        (home.path / "place/slow-3").touch()
        screen.wait()


def test_bars_are_one_line(home: Home) -> None:
    with session(home, BARS) as screen:
        screen.expect("[0-15]  30..40%|###       | 3..4/10\n==> 16 ranks running")
        check("bars.txt", screen.text())
        (home.path / "place/go").touch()
        screen.wait()
        assert screen.text().count("%|") == 1
        assert "[0-15] 100%|##########| 10/10\n" in screen.text()


@pytest.mark.parametrize("name", ["fold.txt", "verdict.txt", "slow.txt", "bars.txt"])
def test_the_documents_show_it(name: str) -> None:
    assert (GOLDEN / name).read_text() in (REPOSITORY / "docs/logs.md").read_text()


WIDE, NARROW = "[0-15]  30..40%|###       | 3..4/10\n==> 16 ranks running, 0:0", "[0-15]  30...\n==> 16 ran...\n"


def test_20_columns_and_another_width(home: Home) -> None:
    with session(home, BARS, columns=20) as screen:
        screen.expect("[0-15]  30..40%|...\n==> 16 ranks run...\n")
        for columns, shown in ((60, WIDE), (14, NARROW), (60, WIDE)):
            screen.resize(columns)
            assert eventually(lambda shown=shown: shown in screen.in_sight()), screen.in_sight()
            assert screen.in_sight().count("==> 16") == screen.in_sight().count("[0-15]") == 1
        (home.path / "place/go").touch()
        screen.wait()
        assert "running" not in screen.in_sight()


WRAPPED = """\
import pathlib, time
place = pathlib.Path("place")
number = 0
while not (place / "enough").exists():
    number += 1
    print(f"{number:04d}-" + "x" * 200 + f"-{number:04d}", flush=True)
    time.sleep(0.01)
"""


def test_enter_loses_no_piece_of_a_wrapped_line(home: Home) -> None:
    (home.path / "place").mkdir()
    program = WRAPPED.replace('"place"', repr(str(home.path / "place")))
    with Screen(home.argv("exec", "local:1", "python3", "-c", program), home.project, home.environ) as screen:
        screen.expect("1 rank running")
        for keys in range(30):
            screen.type(*["Enter"] * (1 + keys % 3))
        assert eventually(lambda: "last output" in screen.text() or screen.text().count("1 rank running") > 1)
        (home.path / "place/enough").touch()
        screen.wait()
        text = screen.text()
        last = int(re.findall(r"-(\d{4})\n", text)[-1])
        missing = [n for n in range(1, last + 1) if f"{n:04d}-{'x' * 200}-{n:04d}\n" not in text]
        assert missing == []


def test_the_terminal_is_as_it_was_after_a_kill(home: Home) -> None:
    (home.path / "place").mkdir()
    mesh = " ".join(home.argv("exec", "--lease", "5", "local:2", "sleep", "60"))
    script = f"{mesh} & echo $! >pid; fg; stty -a; cat"
    with Screen(["bash", "-mc", f"stty -a; {script}"], home.project, home.environ, rows=60) as screen:
        screen.expect("2 ranks running")
        screen.type("Enter")
        screen.expect("ranks 0-1 running, no output for")
        os.kill(int((home.project / "pid").read_text()), signal.SIGKILL)
        assert eventually(lambda: screen.text().count("speed ") == 2)
        modes = re.findall(r"speed [^$]*?-extproc", screen.text())
        assert modes[0] == modes[1]
        screen.type("typed", "Enter")
        screen.expect("typed\ntyped")


def test_in_the_background_it_is_not_stopped_and_draws_nothing(home: Home) -> None:
    (home.path / "place").mkdir()
    mesh = " ".join(home.argv("exec", "local:2", "cat", str(home.path / "place/pipe")))
    os.mkfifo(home.path / "place/pipe")
    script = f"{mesh} & read line; jobs; wait; echo over"
    with Screen(["bash", "-mc", script], home.project, home.environ) as screen:
        writers = [os.open(home.path / "place/pipe", os.O_WRONLY) for _ in range(1)]
        try:
            os.write(writers[0], b"hello\n")
            screen.expect("] hello")
            screen.type("Enter")
            screen.expect("Running")
            assert "ranks running" not in screen.text()
        finally:
            for writer in writers:
                os.close(writer)
        screen.expect("over")


def test_what_is_typed_for_a_rank_goes_to_it(home: Home) -> None:
    with Screen(home.argv("exec", "-i", "local:2", "cat"), home.project, home.environ) as screen:
        screen.type("hello", "Enter")
        screen.expect("[0] hello")
        screen.type("C-d")
        screen.wait()
        assert "running" not in screen.text()
