"""The live line: what a terminal gets, byte for byte."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.screen.descriptor import Descriptor
from mesh.screen.enter import EnterKey
from mesh.screen.live import LiveLines

XTERM = {"TERM": "xterm"}


class Terminal:
    """A terminal of 30 columns."""

    def __init__(self) -> None:
        self._master, self.number = pty.openpty()
        tty.setraw(self.number)
        self.resize(30)

    def resize(self, columns: int, rows: int = 24) -> None:
        fcntl.ioctl(self.number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def shown(self) -> str:
        """What was written since the last look."""
        os.write(self.number, b"\0")
        data = b""
        while not data.endswith(b"\0"):
            data += os.read(self._master, 65536)
        return data[:-1].decode()

    def close(self) -> None:
        os.close(self._master)
        os.close(self.number)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def screen(terminal: Terminal) -> Descriptor:
    return Descriptor(terminal.number, required=False)


def test_the_line_is_written_in_place(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("one")
    line.show("one")
    line.show("two")
    line.show("")
    line.show("")
    assert terminal.shown() == "one\r\x1b[Ktwo\r\x1b[K"


def test_it_makes_way_for_a_question(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("one")
    with line.hidden():
        screen.write(b"Password: ")
        line.show("two")
    assert terminal.shown() == "one\r\x1b[KPassword: two"


def test_other_output_goes_above_it(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("syncing")
    line.write(screen, b"[0] step 1\n[1] step 1\n")
    line.write(screen, b"")
    line.show("")
    assert terminal.shown() == "syncing\r\x1b[K[0] step 1\n[1] step 1\nsyncing\r\x1b[K"


def test_it_waits_for_the_end_of_a_line_that_is_not_whole(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("syncing")
    line.write(screen, b"10%")
    line.show("synced 1")
    line.write(screen, b"\r20%")
    line.show("synced 2")
    line.write(screen, b"\n")
    assert terminal.shown() == "syncing\r\x1b[K10%\r20%\nsynced 2"


WIDTHS: dict[str, tuple[int, str, str]] = {
    "what fits is whole": (8, "1234567", "1234567"),
    "the last column stays free": (8, "12345678", "1234..."),
    "wide characters take two": (8, "四五六七", "四五..."),
    "accents take none": (8, "e\u0301" * 7, "e\u0301" * 7),
    "colours take none, and end": (8, "\x1b[1m12345678\x1b[0m", "\x1b[1m1234...\x1b[0m"),
    "it is one line": (30, "a\nb\r\tc", "a b c"),
    "nothing that a terminal obeys but colours": (30, "a\x1b[2Jb\x07", "ab"),
    "hardly any room": (3, "1234567", ".."),
    "no room": (1, "1234567", ""),
    "a terminal that does not know its width": (0, "x" * 90, "x" * 76 + "..."),
}


@pytest.mark.parametrize(("columns", "text", "shown"), WIDTHS.values(), ids=WIDTHS)
def test_it_is_cut_to_the_width(terminal: Terminal, screen: Descriptor, columns: int, text: str, shown: str) -> None:
    terminal.resize(columns)
    LiveLines(screen, XTERM).show(text)
    assert terminal.shown() == shown


def test_a_new_width_is_seen(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("x" * 20)
    terminal.resize(11)
    line.write(screen, b"out\n")
    # The terminal has wrapped what was there.
    assert terminal.shown() == "x" * 20 + "\r\x1b[1A\x1b[Jout\n" + "x" * 7 + "..."


def test_several_lines(terminal: Terminal, screen: Descriptor) -> None:
    line = LiveLines(screen, XTERM)
    line.show("one", "", "two")
    line.write(screen, b"out\n")
    line.show("three")
    assert terminal.shown() == "one\r\ntwo\r\x1b[1A\x1b[Jout\none\r\ntwo\r\x1b[1A\x1b[Jthree"


def test_no_more_lines_than_there_are_rows(terminal: Terminal, screen: Descriptor) -> None:
    terminal.resize(30, rows=3)
    LiveLines(screen, XTERM).show("one", "two", "three")
    assert terminal.shown() == "two\r\nthree"


class Keys(EnterKey):
    """Lines that were typed on a terminal with echo, at moments that a test chooses."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.lines: list[bytes] = []
        self.has_echo = True

    def typed(self) -> list[bytes]:
        lines, self.lines = self.lines, []
        return lines

    def is_waiting(self) -> bool:
        return bool(self.lines)

    def echoes_on(self, device: int) -> bool:
        return self.has_echo


def test_enter_leaves_no_copy_of_the_line(terminal: Terminal, screen: Descriptor) -> None:
    keys = Keys()
    line = LiveLines(screen, XTERM, keys)
    line.show("one")
    keys.lines = [b"\n"]
    assert line.typed() == [b"\n"]
    line.write(screen, b"out\n")
    assert terminal.shown() == "one\x1b[1A\r\x1b[Kout\none"


def test_enter_before_a_write_costs_no_line(terminal: Terminal, screen: Descriptor) -> None:
    keys = Keys()
    line = LiveLines(screen, XTERM, keys)
    line.show("one")
    keys.lines = [b"\n", b"\n"]
    line.write(screen, b"out\n")
    assert line.typed() == [b"\n", b"\n"]
    assert terminal.shown() == "one\x1b[2A\r\x1b[Kout\none"


def test_cursor_stays_where_a_typed_line_may_not_have_moved_it(terminal: Terminal, screen: Descriptor) -> None:
    keys = Keys()
    line = LiveLines(screen, XTERM, keys)
    keys.typed = list  # type: ignore[method-assign]  # the line comes just after the look
    keys.lines = [b"\n"]
    line.show("one")
    del keys.typed
    assert line.typed() == [b"\n"]
    line.write(screen, b"out\n")
    keys.lines, keys.has_echo = [b"\n"], False
    assert line.typed() == [b"\n"]
    assert terminal.shown() == "one\r\x1b[Kout\none"


def test_lines_typed_for_a_question_are_left_to_it(terminal: Terminal, screen: Descriptor) -> None:
    keys = Keys()
    line = LiveLines(screen, XTERM, keys)
    with line.hidden():
        keys.lines = [b"answer\n"]
        line.write(screen, b"out\n")
        assert line.typed() == []
    assert line.typed() == [b"answer\n"]


def test_in_a_file_there_is_only_the_output(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        screen = Descriptor(file.fileno(), required=False)
        _show_and_write(LiveLines(screen, XTERM), screen)
    assert (tmp_path / "out").read_text() == "one\n"


def test_on_a_terminal_that_cannot_go_back_there_is_only_the_output(terminal: Terminal, screen: Descriptor) -> None:
    _show_and_write(LiveLines(screen, {"TERM": "dumb"}), screen)
    assert terminal.shown() == "one\n"


def _show_and_write(line: LiveLines, screen: Descriptor) -> None:
    line.show("syncing")
    line.write(screen, b"one\n")
    line.show("")


def test_output_that_goes_elsewhere_leaves_it_alone(terminal: Terminal, screen: Descriptor, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        line = LiveLines(screen, XTERM)
        line.show("syncing")
        line.write(Descriptor(file.fileno(), required=True), b"half a line")
        line.show("synced")
    assert (terminal.shown(), (tmp_path / "out").read_bytes()) == ("syncing\r\x1b[Ksynced", b"half a line")
