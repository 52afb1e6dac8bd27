"""`mesh run --pty`: rank 0 has our terminal."""

from __future__ import annotations

import fcntl
import struct
import termios

import pytest

from tests.conftest import Home, Terminal

TALK = """\
import os, signal, sys
if os.environ["RANK"] != "0":
    print("not on the terminal", flush=True)
    sys.exit()
print("size", *os.get_terminal_size(0), os.environ["TERM"], flush=True)
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(0), flush=True))
try:
    while True:
        print("got", input("> "), flush=True)
except KeyboardInterrupt:
    sys.exit(7)
"""


def set_size(terminal: Terminal, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.mark.root
@pytest.mark.sshd
def test_rank_0_has_the_terminal_with_its_size_and_its_keys(pod: Home) -> None:
    pod.files(talk__py=TALK)
    with pod.terminal("run", "--pty", "--keep-going", "pod", "python3", "talk.py") as terminal:
        terminal.expect(b"size 80 24 xterm")
        terminal.expect(b"> ")
        terminal.type(b"hello ~.\r")
        terminal.expect(b"got hello ~.")
        set_size(terminal, 120, 50)
        terminal.expect(b"now 120 50")
        terminal.type(b"\x03")  # for rank 0, not for mesh
        assert terminal.end() == 7
    assert b"not on the terminal" not in terminal.shown
    assert b"rank 0" in terminal.shown


def test_pdb_works_and_the_keys_of_ssh_end_a_run_that_takes_no_others(home: Home) -> None:
    home.files(stop__py="import signal\nsignal.signal(2, signal.SIG_IGN)\nx = 41\nbreakpoint()\nprint('x is', x + 1)\n")
    with home.terminal("run", "--pty", "--grace", "1", "local:1", "python3", "stop.py") as terminal:
        terminal.expect(b"(Pdb) ")
        terminal.type(b"p x * 100\r")
        terminal.expect(b"\n4100\r\n")
        terminal.type(b"\x03\r~.")
        assert terminal.end() == 130
        assert terminal.has_echo  # the terminal is as before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--pty", "local", "true"), "no terminal"),
        (("--pty", "--json", "local", "true"), "--json"),
        (("--pty", "-d", "local", "true"), "--detach"),
        (("--pty", "--role", "a@local-0: true", "local"), "--role"),
    ],
)
def test_a_terminal_that_cannot_be_given_is_refused(home: Home, words: tuple[str, ...], reason: str) -> None:
    done = home.mesh("run", *words)
    assert (done.status, reason in done.err) == (2, True), done.err
