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
    def summary(self) -> str:
        return (self.body.__doc__ or "").strip().split("\n")[0]

    @property
    def usage(self) -> str:
        return f"mesh {self.name} [options] {self.words}".rstrip()


COMMANDS: dict[str, Command] = {}  # by name, in the order of the help


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
