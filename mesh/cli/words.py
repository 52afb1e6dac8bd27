"""Reading a command line: options are Invoke's arguments, the user's own words are never joined or read again.

Invoke's parser would take a value that begins with a dash for a flag, and the words of a command for tasks; its tasks
and arguments are what we fill in.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from invoke.context import Context
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext

from mesh.cli.speech import without_value
from mesh.config.settings import is_time
from mesh.config.yamlfile import did_you_mean
from mesh.core.errors import UsageError
from mesh.core.typed import Typed

CONFIG_KEY = "mesh_words"  # where MeshProgram leaves the command for the task
LINE_KEY = "mesh_line"  # where it leaves the whole command line, less the name of the program
SHORT = {"-d": "--detach", "-i": "--interactive", "-f": "--follow"}
TAKES_WORDS = frozenset(("run", "exec", "ssh"))  # the tasks that take a command of the user's
STARTS_RANKS = frozenset(("run", "exec"))  # those that start it on every rank; words for ssh are ssh's own options too
# Options that a task refuses, as it is made like another one that has them: nobody is told of them.
REFUSED = {"exec": frozenset(("--fresh", "--no-fanout", "--prerun", "--share", "--exclusive"))}
TAKES_PATHS = frozenset(("pull",))  # those that take any number of words, and options between them
SHELL_TEXT = "-c"  # after the cluster: the next word is text for a shell
LAUNCHER = "--launcher"  # gets the words after the cluster, which may be options of its own
SECRETS = frozenset(("--ssh-password",))  # what stands after one is its value, to be refused without being repeated
CLUSTER = "--cluster"  # an option for `inv`; with `mesh` the first word that is no option


def own_words(context: Context) -> list[str]:
    """The words of the command: those that MeshProgram found, or under ``inv`` what follows the first ``--``.

    Invoke itself joins them by spaces, so that they are taken from argv.
    """
    words: Sequence[str] | None = context.config.get(CONFIG_KEY)
    if words is None:
        words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    return [as_utf8(word) for word in words]


def typed_line(context: Context, task: str) -> Typed:
    """Return the command line that was typed, for messages with a line to paste. task: its name"""
    line: Sequence[str] | None = context.config.get(LINE_KEY)
    program = "mesh" if line is not None else os.path.basename(sys.argv[0])
    before = [program, *(sys.argv[1:] if line is None else line)]
    command = own_words(context)
    before = [as_utf8(word) for word in before[: len(before) - len(command)]]
    return Typed(before=tuple(before), command=tuple(command), task=before.index(task))


def as_utf8(word: str) -> str:
    """A word of argv as if the locale were UTF-8, which is how it travels."""
    if sys.getfilesystemencoding().lower() in ("utf-8", "utf8"):
        return word
    return os.fsencode(word).decode("utf-8", "surrogateescape")


def fill_in(name: str, arguments: Sequence[str], task: ParserContext, usage: str) -> list[str]:
    """Give a task's arguments their values, and return the user's own words.

    A task with ``--cluster`` takes it as its first word as well. For those that take a command, everything after it is
    the user's; the others take options anywhere. Raises UsageError.
    """
    expected = places(task)
    rest, words = list(arguments), list[str]()
    literal = False  # after --, where no command is taken: nothing is an option any more
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word not in ("-", "--") and not literal:
            flag, equals, value = word.partition("=")
            flag = SHORT.get(flag, flag)
            _set(task, flag, value if equals else None, rest, usage)
        elif name in TAKES_WORDS:
            cluster = task.flags[CLUSTER]
            if word == "--" and not cluster.value:
                raise UsageError("expected a cluster before --", hint=usage)
            if word == "--" or cluster.value:
                return rest if word == "--" else [word, *rest]
            cluster.value = word
            if name in STARTS_RANKS:
                _check_command(name, arguments[: -len(rest) - 1], word, rest, task, usage)
            return rest
        elif word == "--" and not literal:
            literal = True
        elif expected and not expected[0].value:
            expected.pop(0).value = word
        elif name in TAKES_PATHS:
            words.append(word)
        else:
            if any(_is_secret(given.partition("=")[0]) for given in arguments[: len(arguments) - len(rest)]):
                raise UsageError("unexpected word: it is not told, as it may be part of a password", hint=usage)
            before = arguments[-len(rest) - 2] if len(arguments) > len(rest) + 1 else ""
            is_open = before in task.flags and task.flags[before].optional
            more = f": {without_value(before, word)}" if is_open else ""
            raise UsageError(f"unexpected word {word!r}{more}", hint=usage)
    return words


def leading_options(task: ParserContext, words: Sequence[str]) -> int:
    """Return how many words at the beginning are options of the task, with their values."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        flag, equals, _ = rest[0].partition("=")
        argument = task.flags.get(SHORT.get(flag, flag))
        if argument is None:
            break
        rest.pop(0)
        if argument.takes_value and not equals and rest and (not argument.optional or _is_value(task, flag, rest[0])):
            rest.pop(0)
    return len(words) - len(rest)


def _check_command(
    name: str, before: Sequence[str], cluster: str, words: Sequence[str], task: ParserContext, usage: str
) -> None:
    """Raise UsageError if an option stands between the cluster and the command, with the corrected command as hint.

    before: the options that stand before the cluster; words: all that follows it
    """
    first = words[0].partition("=")[0] if words else ""
    if not first.startswith("-") or first in ("-", "--", SHELL_TEXT):
        return
    count = leading_options(task, words)
    if not count and task.flags[LAUNCHER].value:
        return
    command = words[count:]
    if command and command[0].startswith("-") and command[0] not in ("-", "--", SHELL_TEXT):
        command = ["--", *command]
    corrected = shlex.join(["mesh", name, *before, *words[:count], cluster, *command])
    if not count:
        near = did_you_mean(first, _long(task))
        hint = f"if it is the command: {corrected}"
        raise UsageError(f"unknown option {first} after the cluster{near}", hint=hint)
    message = f"{first}: options stand before the cluster, found after {cluster!r}"
    raise UsageError(message, hint=corrected if command else usage)


def places(task: ParserContext) -> list[Argument]:
    """The arguments that a task takes without a flag."""
    return list(task.positional_args) or [task.flags[flag] for flag in (CLUSTER,) if flag in task.flags]


def _set(task: ParserContext, flag: str, value: str | None, rest: list[str], usage: str) -> None:
    # Invoke calls --SCRIPT_DIR --SCRIPT-DIR; both are right.
    argument: Argument | None = task.flags.get(flag) or task.flags.get(flag.replace("_", "-"))
    if argument is None:
        raise UsageError(f"unknown option {flag}{did_you_mean(flag, _long(task))}", hint=usage)
    if not argument.takes_value:
        if value is not None:
            raise UsageError(f"{flag} takes no value", hint=usage)
        argument.value = True  # type: ignore[assignment]  # the setter takes anything
        return
    if value is None and argument.optional:
        if not rest or not _is_value(task, flag, rest[0]):
            argument.set_value(True, cast=False)
            return
        value = rest.pop(0)
    if value is None:
        if not rest:
            raise UsageError(f"{flag} needs a value", hint=usage)
        value = rest.pop(0)
    if not value:  # an unset variable of the user's shell, which must not come to mean "all hosts"
        raise UsageError(f"{flag} needs a value, found an empty one", hint=usage)
    argument.value = value


def _is_value(task: ParserContext, flag: str, word: str) -> bool:
    """Whether a word after a flag with an optional value is that."""
    return word.partition("=")[0] not in task.flags if _is_secret(flag) else is_time(word)


def _is_secret(flag: str) -> bool:
    return flag.replace("_", "-") in SECRETS


def _long(task: ParserContext) -> list[str]:
    return [written(flag) for flag in task.flags if flag.startswith("--") and flag != CLUSTER]


def written(flag: str) -> str:
    """A flag of Invoke's as people write it: those of MaxText are in capitals, and keep their underscores.

    >>> written("--SCRIPT-DIR"), written("--host-grace")
    ('--SCRIPT_DIR', '--host-grace')
    """
    return flag.replace("-", "_").replace("__", "--", 1) if flag.isupper() else flag
