"""The commands: what each is called, which words it takes, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mesh.cli.options import Given


class Takes(Enum):
    """The words of a command that are neither options nor named places."""

    NOTHING = "nothing"
    COMMAND = "command"  # all after the cluster, never read by mesh
    PATHS = "paths"  # any number of them, with options between
    TAIL = "tail"  # all after --, never read by mesh


Body = Callable[[Given], int | None]


@dataclass(frozen=True)
class Command:
    """A command of ``mesh``."""

    name: str
    group: str  # heading in `mesh --help`
    words: str  # what follows the options in its usage line
    body: Body  # does it, and returns the exit status; None: 0. Raises MeshError
    takes: Takes = Takes.NOTHING
    examples: tuple[tuple[str, str], ...] = ()  # a command line, and what it is for

    @property
    def task(self) -> str:
        """The name of its Invoke task."""
        return self.name.replace(" ", ".")

    @property
    def summary(self) -> str:
        return (self.body.__doc__ or "").strip().split("\n")[0]

    @property
    def usage(self) -> str:
        return f"mesh {self.name} [options] {self.words}".rstrip()


# Headings of `mesh --help`, with the first words of the commands that come first below each. Commands with one first
# word stand by the names of their modules, and those of one module as they were made.
ORDER = {
    "Run": "run exec repl notebook again replay bisect",
    "Runs": "ps runs logs attach detach stop stacks debug restart signal ui report diff",
    "Files": "push pull",
    "Hosts": "clusters check setup ssh top forward clean up down keep pods",
    "Jobs": "job serve",
    "This machine": "init config completion",
    "Other programs' command lines": "multihost multihost-job mad jobman tlaunchrun",
}
FIRST_MODULES = ("jobs",)  # come before others of the same word
COMMANDS: dict[str, Command] = {}  # by name, in the order of the help once all are made
# Words that several commands begin with, as `mesh job submit`: the heading in `mesh --help`, and the line there.
FAMILIES: dict[str, tuple[str, str]] = {}


def family(word: str, group: str, summary: str) -> None:
    """Make a word the first one of several commands, whose names are that word and another one."""
    FAMILIES[word] = group, summary


def arrange() -> None:
    """Bring all commands into the order of the help, in whatever order their modules were imported."""

    def place(item: tuple[str, Command]) -> tuple[int, int, bool, str]:
        first, made = item[0].partition(" ")[0], item[1]
        listed = ORDER[made.group].split()
        number = listed.index(first) if first in listed else len(listed)
        module = made.body.__module__.rpartition(".")[2]
        return list(ORDER).index(made.group), number, module not in FIRST_MODULES, module

    ordered = sorted(COMMANDS.items(), key=place)
    COMMANDS.clear()
    COMMANDS.update(ordered)


def verbs_of(word: str) -> list[str]:
    """Return the second words of the commands of a family."""
    return [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{word} ")]


def first_words() -> list[str]:
    """Return the words that may follow ``mesh``."""
    return list(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))


def command(
    name: str,
    group: str,
    words: str = "",
    *,
    takes: Takes = Takes.NOTHING,
    examples: tuple[tuple[str, str], ...] = (),
) -> Callable[[Body], Body]:
    """Make a function a command of mesh. The parameters are the fields of Command."""

    def made(body: Body) -> Body:
        COMMANDS[name] = Command(name, group, words, body, takes, examples)
        return body

    return made
