"""Reads a command line by the option table.

``split`` first separates mesh's options from the user's command. argparse cannot: it reads a value that begins with a
dash as an option, and takes options from the user's command. argparse then reads the values and prints the help.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from mesh.cli import options as o
from mesh.cli.command import COMMANDS, Command, Takes
from mesh.cli.option import OTHER, AnyOption, place_of
from mesh.cli.options import CLUSTER, ENV, LAUNCHER, STARTS, Given, options_of
from mesh.cli.speech import without_value
from mesh.config.clusters import LOCAL
from mesh.config.settings import is_time
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import UsageError
from mesh.core.typed import Typed

HELP = ("-h", "--help")  # the first one shows the options in daily use alone, where a command has many
DEFAULT_WIDTH = 80  # characters
HELP_COLUMN = 25  # characters before the explanation of an option
VALUE_MARK = "="
SHELL_TEXT = "-c"  # after CLUSTER: the next word is shell text
# Options that the short help of `mesh run` and `mesh exec` shows.
DAILY: tuple[AnyOption, ...] = (
    *(o.PICK_HOSTS, o.EXCLUDE, o.NPROC, o.BIND, o.ENV, o.SHOWN, o.QUIET, o.TIMEOUT, o.DETACH),
    *(o.NAME, o.WAIT, o.SHARE, o.DRY_RUN),
)
DAILY_HEADING = "In daily use"
STATUSES = (
    "Exit status: that of the rank that failed first; 2 usage, 75 busy, 76 host lost,\n"
    "  124 timeout, 125 not started, 130 Ctrl-C, 141 output closed."
)


class HelpWanted(Exception):
    """The command line asks for the help of its command; is_short: for the options in daily use."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.is_short = word == HELP[0]


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would exit."""

    def __init__(self, command: Command, *, is_short: bool = False) -> None:
        """is_short: the help shows the options in daily use alone, for commands that have many"""
        is_short = is_short and command.name in STARTS
        super().__init__(
            prog=f"mesh {command.name}",
            usage=command.usage,
            description=_description(command),
            epilog=_short_epilog(command) if is_short else _epilog(command),
            allow_abbrev=False,
            add_help=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=_formatter,
        )
        self._usage_line = command.usage
        groups: dict[str, argparse._ArgumentGroup] = {}
        options = options_of(command.name)
        if is_short:
            options = [option for option in options if option in DAILY]
        for option in sorted(options, key=lambda option: place_of(option.group)):
            heading = DAILY_HEADING if is_short else option.group
            if heading not in groups:
                groups[heading] = self.add_argument_group(heading)
            _add(groups[heading], option)
        if is_short:
            return
        more = groups[OTHER] if OTHER in groups else self.add_argument_group(OTHER)
        more.add_argument(*HELP, action="store_true", help="show this help")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=self._usage_line)


def parse(command: Command, arguments: Sequence[str]) -> Given:
    """Read the words after the command's name. Raises UsageError, and HelpWanted for ``-h`` and ``--help``."""
    options, words = split(command, arguments)
    # The other commands have their own words between options.
    own = words if command.takes in (Takes.COMMAND, Takes.TAIL) else []
    before = arguments[: len(arguments) - len(own)]
    name = command.name.split(" ")
    typed = Typed(
        before=tuple(map(as_utf8, ("mesh", *name, *before))), command=tuple(map(as_utf8, own)), task=len(name)
    )
    return _given(command, options, words, typed)


def given_of(command: Command, values: dict[str, Any], words: Sequence[str]) -> Given:
    """Read values as an Invoke task gets them: texts, switches and lists by the keys of options. Raises UsageError."""
    options = []
    for option in options_of(command.name):
        value = values.get(option.key)
        texts = value if isinstance(value, list) else [value] if isinstance(value, str) and value else []
        options += [f"{option.flag}={text}" for text in texts]
        if value is True:
            options.append(option.flag)
    before = sys.argv[1 : len(sys.argv) - len(words)]
    program = os.path.basename(sys.argv[0])
    typed = Typed(
        before=tuple(map(as_utf8, (program, *before))),
        command=tuple(words),
        task=before.index(command.task) + 1 if command.task in before else 0,
    )
    return _given(command, options, list(words), typed)


def _given(command: Command, options: list[str], words: list[str], typed: Typed) -> Given:
    # argparse drops a value that is exactly "--". Each value gets a mark in front, which _read removes.
    marked = [word.replace("=", f"={VALUE_MARK}", 1) for word in options]
    values = vars(Parser(command).parse_args(marked))
    read: dict[str, object] = {}
    for option in options_of(command.name):
        if option.name not in values:
            continue
        found = values[option.name]
        read[option.name] = functools.reduce(option.joined, found) if option.joined else found
    typed = replace(typed, cluster=as_utf8(str(read.get(CLUSTER.name, ""))))
    if command.name in STARTS:
        again = tuple(map(as_utf8, _repeatable(command.name, options, words)))
        typed = replace(typed, again=again, env=tuple(cast(Mapping[str, str], read.get(ENV.name, {}))))
    return Given(command.name, read, [as_utf8(word) for word in words], typed)


def _repeatable(name: str, options: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the words of a command line that does the same, without values of --env."""
    kept = [word for word in options if not word.startswith(f"{ENV.flag}=")]
    place = f"{CLUSTER.flag}="
    clusters = [word.removeprefix(place) for word in kept if word.startswith(place)]
    if clusters and not any(word.startswith("-") for word in (clusters[-1], *words[:1])):
        return [name, *(word for word in kept if not word.startswith(place)), clusters[-1], *words]
    return [name, *kept, "--", *words]


def split(command: Command, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options, each as one word (``--name=value``), and the user's own words.

    The first words that are no options fill the command's places, and come back as options. For a command that takes
    the user's command, all after its cluster is the user's; the others take options anywhere. Raises UsageError.
    """
    known = _flags(command)
    places = [option for option in options_of(command.name) if option.is_place]
    rest, options, words = list(arguments), list[str](), list[str]()
    is_literal = False  # True after --: a word that begins with a dash is a path or a name
    while rest:
        word = rest.pop(0)
        if word in HELP and not is_literal:
            raise HelpWanted(word)
        if word == SHELL_TEXT and command.takes is Takes.COMMAND and command.name != "ssh":
            return options, [word, *rest]
        if word.startswith("-") and word not in ("-", "--") and not is_literal:
            flag, equals, value = word.partition("=")
            option = _known(command, known, flag)
            options.append(_with_value(option, flag, value if equals else None, rest, known, command))
            places = [place for place in places if place is not option]
        elif not word and places:  # an unset variable of the user's shell, which must not come to mean the default
            raise UsageError(f"{places[0].metavar}: expected a name, found an empty word", hint=command.usage)
        elif command.takes is Takes.COMMAND:
            if word == "--" or not places:
                return options, rest if word == "--" else [word, *rest]
            before = arguments[: len(arguments) - len(rest)]
            return [*options, f"{places[0].flag}={word}"], _own_words(command, before, rest, options)
        elif word == "--" and command.takes is Takes.TAIL:
            return options, rest
        elif word == "--" and not is_literal:
            is_literal = True
        elif places:
            options.append(f"{places.pop(0).flag}={word}")
        elif command.takes is Takes.PATHS:
            words.append(word)
        else:
            raise _unexpected(command, known, arguments[: len(arguments) - len(rest)])
    return options, words


def _own_words(command: Command, before: Sequence[str], rest: list[str], options: Sequence[str]) -> list[str]:
    """Return the words after CLUSTER. Raises UsageError for options there, with the corrected command as hint.

    before: the words up to and including the cluster; options: those before it, as --name=value
    """
    first = rest[0].partition("=")[0] if rest else ""
    if command.name == "ssh" or not first.startswith("-") or first in ("-", "--", SHELL_TEXT):
        return rest
    *typed, cluster = before
    count = _leading_options(command, rest)
    for word in rest[: count + 1]:
        if word in HELP:
            raise HelpWanted(word)
    if not count and any(word.startswith(f"{LAUNCHER.flag}=") for word in options):
        return rest  # the launcher gets them
    own = rest[count:]
    if own and own[0].startswith("-") and own[0] not in ("-", "--", SHELL_TEXT):
        own = ["--", *own]
    corrected = shlex.join(["mesh", *command.name.split(" "), *typed, *rest[:count], cluster, *own])
    if not count:
        near = did_you_mean(first, [option.flag for option in options_of(command.name)])
        near = near if near.startswith("; did you mean") else ""
        hint = f"if it is the command: {corrected}"
        from mesh.cli.habits import is_program  # only for mistakes

        if is_program(cluster):
            line = shlex.join(["mesh", *command.name.split(" "), *typed, LOCAL, cluster, *rest])
            hint = f"if {cluster} is the command: {line}"
        raise UsageError(f"unknown option {first} after the cluster{near}", hint=hint)
    message = f"{first}: options stand before the cluster, found after {cluster!r}"
    raise UsageError(message, hint=corrected if own else command.usage)


def _leading_options(command: Command, words: Sequence[str]) -> int:
    """Return how many words at the beginning are options of the command, with their values."""
    known, rest = _flags(command), list(words)
    while rest and rest[0].startswith("-") and _flag_of(rest[0]) in known:
        word = rest.pop(0)
        option = known[_flag_of(word)]
        if option.takes_value and "=" not in word and rest and (option.bare is None or is_time(rest[0])):
            rest.pop(0)
    return len(words) - len(rest)


def _flags(command: Command) -> dict[str, AnyOption]:
    return {_same(flag): option for option in options_of(command.name) for flag in (option.flag, option.short) if flag}


def _same(flag: str) -> str:
    """Return a flag with dashes for underscores: both spellings name the same option, as other programs have either."""
    return flag.replace("_", "-")


def _flag_of(word: str) -> str:
    return _same(word.partition("=")[0])


def _known(command: Command, known: dict[str, AnyOption], flag: str) -> AnyOption:
    if _same(flag) in known:
        return known[_same(flag)]
    from mesh.cli.habits import option_elsewhere  # only for mistakes

    meant = option_elsewhere(flag, list(known))
    others = [name for name in COMMANDS if any(flag in (o.flag, o.short) for o in options_of(name))]
    if others and not meant:
        where = " and ".join(f"mesh {name}" for name in others[:2])
        raise UsageError(f"mesh {command.name} has no {flag}; {where} {'have' if others[1:] else 'has'} it")
    names = [option.flag for option in known.values() if not option.is_place]
    near = f"; did you mean {meant!r}?" if meant else did_you_mean(flag, names)
    if not near.startswith("; did you mean"):
        near = f"; `mesh help {command.name}` lists all"
    raise UsageError(f"unknown option {flag}{near}", hint=command.usage)


def _with_value(
    option: AnyOption,
    flag: str,
    value: str | None,
    rest: list[str],
    known: dict[str, AnyOption],
    command: Command,
) -> str:
    """Return an option as one word, with the next one as its value where it takes that."""
    if not option.takes_value:
        if value is not None:
            raise UsageError(f"{flag} takes no value", hint=command.usage)
        return option.flag
    if value is None and option.bare is not None:
        if not rest or not (_flag_of(rest[0]) not in known if option.is_secret else is_time(rest[0])):
            return option.flag
        value = rest.pop(0)
    if value is None:
        if not rest:
            raise UsageError(f"{flag} needs a value", hint=command.usage)
        value = rest.pop(0)
    if not value:  # an unset variable of the user's shell, which must not come to mean "all hosts"
        raise UsageError(f"{flag} needs a value, found an empty one", hint=command.usage)
    return f"{option.flag}={value}"


def _unexpected(command: Command, known: dict[str, AnyOption], arguments: Sequence[str]) -> UsageError:
    """Return the error for a word that the command does not take, the last of these."""
    *before, word = arguments
    if any(known[flag].is_secret for flag in map(_flag_of, before) if flag in known):
        message = "unexpected word: it is not shown, as it may be part of a password"
        return UsageError(message, hint=command.usage)
    last = before[-1] if before else ""
    is_open = _same(last) in known and known[_same(last)].bare is not None
    more = f": {without_value(last, word)}" if is_open else ""
    return UsageError(f"unexpected word {word!r}{more}", hint=command.usage)


def _add(group: argparse._ArgumentGroup, option: AnyOption) -> None:
    flags = [option.short, option.flag] if option.short else [option.flag]
    text = argparse.SUPPRESS if option.is_place else option.help.replace("%", "%%")
    if not option.takes_value:
        group.add_argument(*flags, dest=option.name, action="store_const", const=not option.default, help=text)
        return
    more: dict[str, Any] = {"nargs": "?", "const": option.bare} if option.bare is not None else {}
    group.add_argument(
        *flags,
        dest=option.name,
        action="append" if option.joined else "store",
        type=functools.partial(_read, option),
        metavar=option.metavar,
        help=text,
        **more,
    )


def _read(option: AnyOption, marked: str) -> object:
    return option.read(option.flag, marked.removeprefix(VALUE_MARK))


def width() -> int:
    """Return the width of the help in characters: COLUMNS, else the terminal's, else 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or DEFAULT_WIDTH
    except OSError:  # no terminal
        return DEFAULT_WIDTH


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=HELP_COLUMN, width=width())


def _description(command: Command) -> str:
    """Return the summary, and a line for each word that stands in a place, as CLUSTER."""
    places = [
        textwrap.fill(f"{option.metavar}: {option.help}", width(), subsequent_indent="  ")
        for option in options_of(command.name)
        if option.is_place and option.metavar in command.usage
    ]
    summary = textwrap.fill(command.summary, width())
    return "\n".join([summary, "", *places] if places else [summary])


def _short_epilog(command: Command) -> str:
    count = sum(not option.is_place for option in options_of(command.name))
    lines = ["Examples:", *_examples(command), "", f"`mesh help {command.name}` shows all {count} options."]
    return "\n".join(lines)


def _epilog(command: Command) -> str:
    parts = []
    if command.examples:
        parts.append("\n".join(["Examples:", *_examples(command)]))
    if command.takes is Takes.COMMAND and command.name != "ssh":
        parts.append(STATUSES)
    variables = [option.variable for option in options_of(command.name) if option.variable]
    if variables:
        parts.append(textwrap.fill(f"Environment: {', '.join(variables)}.", width(), subsequent_indent="  "))
    return "\n\n".join(parts)


def _examples(command: Command) -> Iterator[str]:
    """Return the examples, each with its purpose beside it where the width allows, else below it."""
    column = max(len(line) for line, _ in command.examples) + 4
    for line, purpose in command.examples:
        if all(column + len(text) <= width() for _, text in command.examples):
            yield f"  {line:<{column - 2}}{purpose}"
        else:
            yield from (f"  {line}", f"      {purpose}")


def as_utf8(word: str) -> str:
    """Return a word of argv as if the locale were UTF-8, which is how it travels."""
    if sys.getfilesystemencoding().lower() in ("utf-8", "utf8"):
        return word
    return os.fsencode(word).decode("utf-8", "surrogateescape")
