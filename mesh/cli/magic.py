"""``%load_ext mesh`` in IPython and Jupyter: the magic ``%%mesh``, whose cells run on all ranks of a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mesh.cli import repl  # noqa: F401  # its options are those of the magic
from mesh.cli.command import COMMANDS
from mesh.cli.parser import HelpWanted, Parser
from mesh.cli.speech import say, show
from mesh.cli.wishes import PROMPT, read_asked
from mesh.core.errors import MeshError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.program.prompt.notebook import Notebook

NAME = "mesh"
END = "--end"


class Interpreter(Protocol):
    """The part of IPython's shell that the magic uses."""

    user_ns: dict[str, object]

    def register_magic_function(
        self, func: Callable[[str, str | None], None], magic_kind: str, magic_name: str
    ) -> object: ...

    def observe(self, handler: Callable[[dict[str, object]], None], names: str) -> object: ...


class Magic:
    """``%%mesh CLUSTER`` above a cell, and ``%mesh`` alone."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook

    def __call__(self, line: str, cell: str | None = None) -> None:
        """Carry out a line, or the cell below it. Raises CellFailed, which has no traceback."""
        from mesh.program.prompt.notebook import as_failure

        try:
            self._carry_out(line, cell)
        except MeshError as error:
            raise as_failure(error) from None

    def _carry_out(self, line: str, cell: str | None) -> None:
        from mesh.program.prompt.notebook import listed

        words = read_words(line)
        if cell is None and END in words:
            self._end(words)
        elif cell is None and not words:
            show(listed(self._notebook.opened) or ["no ranks are there; %%mesh CLUSTER starts them"])
        else:
            try:
                asked = read_asked(words)
            except HelpWanted as wanted:
                show(Parser(COMMANDS[PROMPT], is_short=wanted.is_short).format_help().rstrip("\n").split("\n"))
                return
            self._notebook.run(asked, cell or "")

    def _end(self, words: Sequence[str]) -> None:
        clusters = [word for word in words if word != END]
        if any(word.startswith("-") for word in clusters):
            raise UsageError(f"{END}: expected clusters, found {shlex.join(clusters)}", hint=f"%mesh {END} pod")
        for name in clusters or list(self._notebook.opened):
            self._notebook.end([name])
            say(f"{name}: the ranks have ended")


def read_words(line: str) -> list[str]:
    """Return the words of a line, as a shell has them. Raises UsageError.

    >>> read_words("--env 'A=1 2' pod")
    ['--env', 'A=1 2', 'pod']
    """
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%mesh {line}: {str(error).lower()}", hint="%%mesh --env 'NAME=some words' pod") from error


_LOADED: list[Notebook] = []  # of this process; at most one


def load(shell: Interpreter) -> None:
    """Have an IPython run cells with ``%%mesh``, and end their ranks with its process."""
    from mesh.program.prompt.notebook import Notebook

    notebook = Notebook(shell.user_ns)
    notebook.end_with_process()
    # The kernel of Jupyter sets it before it waits for the cell that runs.
    shell.observe(lambda change: notebook.end_at_exit() if change["new"] else None, "exit_now")
    shell.register_magic_function(Magic(notebook).__call__, "line_cell", NAME)
    _LOADED[:] = [notebook]


def unload() -> None:
    """End all ranks."""
    while _LOADED:
        _LOADED.pop().close()
