"""`mesh run --debug` and `mesh debug`: pdb of any rank on our terminal."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.conftest import Home, Terminal
from tests.lab import eventually

TRAIN = """\
import os
where = f"rank {os.environ['RANK']}"
def step():
    if where == "rank 2":
        breakpoint()
        print("goes on", flush=True)
    if where == "rank 3":
        raise ValueError("bad batch")
step()
"""
WAITS = """\
import os, time
where = f"rank {os.environ['RANK']}"
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
PROMPT = b"(Pdb) "


def at_prompt(terminal: Terminal) -> bytes:
    """Wait for a prompt; return the rank that has stopped."""
    terminal.expect(PROMPT)
    return re.findall(rb"rank (\d) (?:on \S+ )?has stopped", terminal.shown)[-1]  # type: ignore[no-any-return]


def ask(terminal: Terminal, line: bytes, answer: bytes) -> None:
    terminal.shown = b""
    terminal.type(line + b"\r")
    terminal.expect(answer + b"\r\n" + PROMPT)
    terminal.shown = b""


@pytest.mark.root
@pytest.mark.sshd
def test_ranks_that_stop_have_the_terminal_one_after_the_other(pod: Home) -> None:
    pod.files(train__py=TRAIN)
    with pod.terminal("run", "--debug", "pod", "python3", "train.py") as terminal:
        stopped = []
        for _ in range(2):
            stopped.append(at_prompt(terminal))
            ask(terminal, b"p where * 2", b"'rank %srank %s'" % (stopped[-1], stopped[-1]))
            terminal.type(b"c\r")
        assert terminal.end() == 1
    assert sorted(stopped) == [b"2", b"3"]
    assert b"rank 3 on" in terminal.shown  # the verdict


def test_a_rank_that_goes_on_for_ever_is_stopped_and_left(home: Home) -> None:
    home.files(train__py=WAITS)
    with home.terminal("run", "--debug", "--grace", "1", "local:2", "python3", "train.py") as run:
        run.expect(b"up")
        for last in (b"\x04", b"c\r"):  # Ctrl-D leaves it stopped
            with home.terminal("debug", "last", "--rank", "1") as terminal:
                assert at_prompt(terminal) == b"1"
                ask(terminal, b"p where", b"'rank 1'")
                terminal.type(b"print(chr(27) + ']0;title' + chr(7) + 'clean')\r")
                terminal.expect(b"clean\r\n" + PROMPT)
                assert b"\x1b]" not in terminal.shown
                terminal.type(last)
                assert terminal.end() == 0
            assert (b"stays stopped" in terminal.shown) == (last == b"\x04")
        run.type(b"\x03")
        assert run.end() == 130


def test_a_run_that_began_without_it_is_not_stopped(home: Home) -> None:
    home.files(train__py=WAITS)
    with home.terminal("run", "--grace", "1", "local:2", "python3", "train.py") as run:
        run.expect(b"up")
        with home.terminal("debug", "last") as terminal:
            assert terminal.end() == 125
        assert re.search(rb"debug: rank 0 of 0-1; another one: mesh debug [0-9a-f]{6} --rank 1\r\n", terminal.shown)
        assert re.search(rb"it runs Python 3[.]\d+, which pdb reaches only", terminal.shown)
        with home.terminal("debug", "last", "--rank", "7") as terminal:
            assert terminal.end() == 2
        run.type(b"\x03")
        assert run.end() == 130


def test_the_lease_ends_a_rank_that_waits_in_its_debugger(home: Home) -> None:
    home.files(train__py="import os\nbreakpoint()\n")
    with home.terminal("run", "--debug", "--grace", "1", "--lease", "20", "local:1", "python3", "train.py") as run:
        run.expect(PROMPT)
        run.shown = b""
        run.type(b"p -os.getpid()\r")
        run.expect(b"\r\n" + PROMPT)
        pid = int(re.findall(rb"\n-(\d+)\r", run.shown)[0])
        assert os.path.exists(f"/proc/{pid}")
        os.kill(run.process.pid, signal.SIGKILL)
        assert eventually(lambda: not os.path.exists(f"/proc/{pid}"), 60.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("run", "--debug", "local", "true"), "no terminal"),
        (("run", "--debug", "-d", "local", "true"), "--detach"),
        (("run", "--debug", "--json", "local", "true"), "--json"),
        (("run", "--debug", "--pty", "local", "true"), "--pty"),
        (("debug", "last", "--rank", "0"), "no terminal"),
    ],
)
def test_a_debugger_without_a_terminal_is_refused(home: Home, words: tuple[str, ...], reason: str) -> None:
    done = home.mesh(*words)
    assert (done.status, reason in done.err) == (2, True), done.err
