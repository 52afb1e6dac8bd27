"""The ``mesh`` command: finds the command, reads its options, and returns its exit status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from mesh import __version__

# Each makes its functions commands; the help lists them in this order.
from mesh.cli import execution, inspection, others, runs, shells  # noqa: F401
from mesh.cli.command import COMMANDS, Command
from mesh.cli.completion import ASK, DESCRIBE, candidates, lines
from mesh.cli.options import CLUSTER, RUN, WAIT, Given
from mesh.cli.parser import HELP, HelpWanted, Parser, parse, width
from mesh.cli.speech import complain, show, use_color, without_value
from mesh.core.errors import AmbiguousRun, MeshError, UnknownCluster

__all__ = ["COMMANDS", "candidates", "overview", "run", "status"]

USAGE = "mesh COMMAND [options] ...; `mesh --help` lists the commands"
KEYBOARD_INTERRUPT = 130  # 128 + SIGINT


def run(argv: Sequence[str]) -> int:
    """Run a command line, the program's name first; print its error; return its exit status."""
    try:
        return status(list(argv)[1:])
    except MeshError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return KEYBOARD_INTERRUPT


def status(arguments: Sequence[str]) -> int:
    """Run a command line without the program's name, and return its exit status. Raises MeshError."""
    name, *rest = arguments or HELP[:1]
    if name == "help" and rest:
        name, rest = rest[0], list(HELP[:1])
    if name in (*HELP, "help"):
        show(overview())
        return 0
    if name in ("-V", "--version"):
        show([f"mesh {__version__}"])
        return 0
    if name == ASK:
        show(candidates(rest))
        return 0
    if name == DESCRIBE:
        show(lines(rest))
        return 0
    if name not in COMMANDS:
        from mesh.cli.habits import unknown_command  # only for mistakes

        raise unknown_command(name, rest, list(COMMANDS), USAGE)
    try:
        given = parse(COMMANDS[name], rest)
    except HelpWanted:
        show(Parser(COMMANDS[name]).format_help().rstrip("\n").split("\n"))
        return 0
    return carry_out(COMMANDS[name], given)


def carry_out(command: Command, given: Given) -> int:
    """Do what a command line asks for, and return its exit status. Raises MeshError."""
    use_color(given.look().color)
    try:
        return command.body(given) or 0
    except UnknownCluster as error:
        if given[WAIT] == WAIT.bare:  # the word after --wait may have been meant as its value
            error.hint += "\n" + without_value(WAIT.flag, given[CLUSTER])
        raise
    except AmbiguousRun as error:
        if given.typed and (command_line := given.typed.with_word(given[RUN] or given[CLUSTER], error.newest)):
            error.hint = command_line
        raise
    except MeshError as error:
        if given.typed:
            error.hint = given.typed.filled(error.hint)
        raise


def overview() -> Iterator[str]:
    """Return the lines of ``mesh --help``."""
    yield "Makes a cluster of hosts reached over SSH feel like one machine."
    yield ""
    yield "usage: mesh COMMAND [options] ..."
    column = max(map(len, COMMANDS))
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        yield ""
        yield f"{group}:"
        for command in COMMANDS.values():
            if command.group == group:
                lead = f"  {command.name:<{column}}  "
                yield from wrap(command.summary, width(), initial_indent=lead, subsequent_indent=" " * len(lead))
    yield ""
    yield from wrap(
        "`mesh help COMMAND` shows its options. ~/.config/mesh/cluster.yaml lists clusters; `local` is built in:",
        width(),
    )
    yield "  mesh run local python3 -c 'import os; print(os.environ[\"RANK\"])'"
