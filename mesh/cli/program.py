"""The ``mesh`` command: finds the command, reads its options, and returns its exit status."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap

from mesh import __version__

# Each makes its functions commands.
from mesh.cli import (  # noqa: F401
    again,
    bisect,
    debugging,
    execution,
    forwarding,
    inspection,
    jobbilling,
    jobs,
    jobsetup,
    jobstorage,
    machines,
    notebook,
    others,
    othersjobman,
    otherstlaunch,
    pages,
    pods,
    podusers,
    repl,
    replay,
    runs,
    serve,
    shells,
    tasks,
)
from mesh.cli.command import COMMANDS, FAMILIES, Command, arrange, first_words, verbs_of
from mesh.cli.completion import ASK, DESCRIBE, candidates, lines
from mesh.cli.options import CLUSTER, RUN, WAIT, Given
from mesh.cli.parser import HELP, HelpWanted, Parser, parse, width
from mesh.cli.speech import complain, show, use_color, without_value
from mesh.core.errors import AmbiguousRun, MeshError, UnknownCluster

__all__ = ["COMMANDS", "candidates", "overview", "run", "status"]

USAGE = "mesh COMMAND [options] ...; `mesh --help` lists the commands"
NAME_WIDTH = 10  # of a command in the overview; a longer one moves its own line alone
KEYBOARD_INTERRUPT = 130  # 128 + SIGINT
FIRST_STEPS = (  # at the end of the overview, where a terminal shows them
    ("mesh run local:4 hostname", "four ranks on this machine"),
    ("mesh clusters --add pod 'me@tpu-[0-3]'", "name hosts of yours"),
    ("mesh check pod", "look at them"),
    ("mesh run pod python3 train.py", "run there what is in this directory"),
)

arrange()


def run(argv: Sequence[str]) -> int:
    """Run a command line, the program's name first; print its error; return its exit status."""
    if not os.environ.get("HOME"):  # an empty one would make / the home; Python then asks the user database
        os.environ.pop("HOME", None)
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
        name, *more = rest
        rest = [*(more[:1] if name in FAMILIES else []), HELP[1]]
    if name in HELP and rest and rest[0] in first_words():
        return status([*rest[:2], name] if rest[0] in FAMILIES else [rest[0], name])
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
    if name in FAMILIES:
        if not rest or rest[0] in HELP:
            show(family_overview(name))
            return 0
        rest = otherstlaunch.ordered(rest) if name == otherstlaunch.FAMILY else rest
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name not in COMMANDS:
        from mesh.cli.habits import unknown_command, unknown_verb  # only for mistakes

        word, _, verb = name.partition(" ")
        if verb:
            raise unknown_verb(word, verb, verbs_of(word), rest)
        raise unknown_command(name, rest, first_words(), USAGE)
    try:
        given = parse(COMMANDS[name], rest)
    except HelpWanted as wanted:
        show(Parser(COMMANDS[name], is_short=wanted.is_short).format_help().rstrip("\n").split("\n"))
        return 0
    return carry_out(COMMANDS[name], given)


def carry_out(command: Command, given: Given) -> int:
    """Do what a command line asks for, and return its exit status. Raises MeshError."""
    use_color(given.look().color)
    try:
        return command.body(given) or 0
    except UnknownCluster as error:
        from mesh.cli.habits import cluster_left_out  # only for mistakes

        if meant := cluster_left_out(given):
            raise meant from error
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
    listed: dict[str, tuple[str, str]] = {}
    for name in COMMANDS:
        word = name.partition(" ")[0]
        listed[word] = FAMILIES[word] if word in FAMILIES else (COMMANDS[name].group, COMMANDS[name].summary)
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        yield ""
        yield f"{group}:"
        yield from _listed(
            {name: summary for name, (of, summary) in listed.items() if of == group},
            max(len(name) for name in listed if len(name) <= NAME_WIDTH),
        )
    yield ""
    yield "First steps:"
    column = max(len(line) for line, _ in FIRST_STEPS)
    yield from (f"  {line:<{column}}  {purpose}" for line, purpose in FIRST_STEPS)
    yield ""
    yield from wrap("`mesh help COMMAND` shows all options of a command.", width())


def family_overview(word: str) -> Iterator[str]:
    """Return the lines of the help of a family, as ``mesh job --help``."""
    yield FAMILIES[word][1]
    yield ""
    yield f"usage: mesh {word} COMMAND [options] ..."
    yield ""
    verbs = {verb: COMMANDS[f"{word} {verb}"].summary for verb in verbs_of(word)}
    yield from _listed(verbs, max(map(len, verbs)))
    yield ""
    yield f"`mesh help {word} COMMAND` shows its options."


def _listed(summaries: Mapping[str, str], column: int) -> Iterator[str]:
    """Yield names with their summaries. column: the width of the names"""
    for name, summary in summaries.items():
        lead = f"  {name:<{column}}  "
        yield from wrap(summary, width(), initial_indent=lead, subsequent_indent=" " * len(lead))
