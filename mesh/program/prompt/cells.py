"""Lines of the user, cut into cells and commands. Pure."""

from __future__ import annotations

import codeop
import warnings
from difflib import get_close_matches

from msgspec import Struct

from mesh.core.errors import UsageError

GOES_ON = frozenset(("else", "elif", "except", "finally", "case"))  # words that go on with a statement
ENDS = ("exit", "quit", "exit()", "quit()", "%exit")
COMMANDS = {
    "ranks": "%ranks 0-3 runs later cells only on these ranks; %ranks all on all ranks",
    "rank": "%rank 7 runs later cells only on rank 7; %rank 7 CODE runs one cell there",
    "pull": "%pull NAME, %pull EXPRESSION fetches the value of each rank, as a list for %local",
    "push": "%push NAME = EXPRESSION computes a value here, and assigns it to NAME on the ranks",
    "sync": "%sync sends changed files of the workspace to all hosts, and loads changed modules again on the ranks",
    "local": "%local CODE runs code here, with the lists that %pull has fetched",
    "time": "%time CODE runs a cell, and shows the time of the slowest and the fastest rank",
    "stacks": "%stacks shows where each rank is in its code",
    "restart": "%restart 7 starts a new process for rank 7; its names are lost",
    "help": "%help lists these commands",
    "exit": "%exit or Ctrl-D ends the run on all hosts",
}


class Command(Struct, frozen=True):
    """A line that begins with %."""

    name: str
    rest: str  # the words behind it


class Cells:
    """Cuts lines into cells: a statement each, and lines that begin with %."""

    def __init__(self, *, is_typed: bool) -> None:
        """is_typed: an empty line ends a block, as at Python's own prompt; in a script the next statement does"""
        self._is_typed = is_typed
        self._lines: list[str] = []

    @property
    def is_open(self) -> bool:
        """True within a statement."""
        return bool(self._lines)

    def feed(self, line: str) -> list[str]:
        """Add a line, without its newline; return the cells that are complete now.

        >>> cells = Cells(is_typed=False)
        >>> cells.feed("for n in range(2):"), cells.feed("    print(n)"), cells.feed("x = 1")
        ([], [], ['for n in range(2):\\n    print(n)', 'x = 1'])
        """
        found = [self._take()] if self._lines and self._begins_anew(line) else []
        if not self._lines:
            if not line.strip() or line.lstrip().startswith("#"):
                return found
            if line.startswith("%"):
                return [*found, line.strip()]
        self._lines.append(line)
        if (line.strip() or self._is_typed) and self._is_complete():
            found.append(self._take())
        return found

    def end(self) -> list[str]:
        """Return the statement that is open at the end of all lines."""
        return [self._take()] if self._lines else []

    def drop(self) -> None:
        """Forget the statement that is open."""
        self._lines = []

    def _take(self) -> str:
        lines, self._lines = self._lines, []
        return "\n".join(lines).rstrip("\n")

    def _is_complete(self) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return codeop.compile_command("\n".join(self._lines), "<cell>", "single") is not None
        except (SyntaxError, ValueError, OverflowError):
            return True  # the ranks report it, as their Python may be another one

    def _begins_anew(self, line: str) -> bool:
        """Return True if a line cannot go on with the open statement, which is complete without it."""
        if not line.strip() or line[0] in " \t#":
            return False
        if line.replace(":", " ").split()[0] in GOES_ON:
            return False
        return _is_whole(self._lines)


def read_command(cell: str) -> Command | None:
    """Return the command of a cell; None for Python. Raises UsageError for an unknown one, or without its ranks.

    >>> read_command("%rank 7 print(x)"), read_command("x % 2")
    (Command(name='rank', rest='7 print(x)'), None)
    """
    if is_end(cell):
        return Command("exit", "")
    if not cell.startswith("%"):
        return None
    name, _, rest = cell[1:].partition(" ")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        hint = f"%{near[0]}: {COMMANDS[near[0]]}" if near else "%help lists all commands"
        raise UsageError(f"%{name}: no such command", hint=hint)
    if name == "restart" and not rest.strip():  # which would end all ranks
        raise UsageError("%restart: expected a rank", hint="%restart 7")
    return Command(name, rest.strip())


def is_end(cell: str) -> bool:
    """Return True for a cell that ends the run.

    >>> is_end("exit()"), is_end("%exit"), is_end("x = exit"), is_end("%unknown")
    (True, True, False, False)
    """
    return cell.strip() in ENDS


def parts(text: str) -> list[str]:
    """Return the cells and commands of a notebook's cell, in order. A cell keeps the numbers of its lines.

    >>> parts("x = f(\\n1)\\n%pull x\\n# the end\\nx")
    ['x = f(\\n1)', '%pull x', '\\n\\n\\n# the end\\nx']
    """
    found: list[str] = []
    before: list[str] = []  # lines of the open cell
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("%") and _is_whole(before):
            found += [*_code(before), line.strip()]
            before = [""] * number
        else:
            before.append(line)
    return [*found, *_code(before)]


def _code(lines: list[str]) -> list[str]:
    """Return lines as a cell, where there is code in them."""
    is_empty = all(not line.strip() or line.lstrip().startswith("#") for line in lines)
    return [] if is_empty else ["\n".join(lines).rstrip()]


def _is_whole(lines: list[str]) -> bool:
    """Return True if the next line is not a part of a statement of these."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile("\n".join(lines) + "\n", "<cell>", "exec")
    except (SyntaxError, ValueError, OverflowError):
        return False
    return True


def read_assignment(text: str) -> tuple[str, str]:
    """Return name and expression of ``%push``. Raises UsageError.

    >>> read_assignment("lr = 1e-3")
    ('lr', '1e-3')
    """
    name, equals, expression = text.partition("=")
    if not equals or not name.strip().isidentifier() or not expression.strip():
        raise UsageError(f"%push: expected NAME = EXPRESSION, found {text!r}", hint="%push lr = 1e-3")
    return name.strip(), expression.strip()
