"""An option of the command line, and the kinds that most options are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from mesh.config.settings import read_seconds

T = TypeVar("T")
# Headings in the help.
HOSTS, RANKS, COMMAND, OUTPUT = "Which hosts", "Ranks", "The command", "The output"
FILES, SHARING, DIAGNOSIS = "Files", "Hosts that others use", "Looking into a run"
WHICH_RUN, ENDS, OTHER = "Which run", "When it ends", "More"
HEADINGS = (HOSTS, RANKS, COMMAND, WHICH_RUN, OUTPUT, ENDS, FILES, SHARING, DIAGNOSIS, OTHER)  # in their order


def place_of(heading: str) -> int:
    """Return where a heading stands in the help; a command's own headings stand first."""
    return HEADINGS.index(heading) if heading in HEADINGS else -1


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option, with the commands that have it."""

    name: str  # without dashes, as "host-grace"
    commands: tuple[str, ...]  # that have it
    group: str  # heading in the help
    metavar: str  # stands for the value in the help; "": a switch, which takes none
    help: str
    read: Callable[[str, str], T]  # from the flag's name and the text after it; raises UsageError
    default: T  # where it is not given
    bare: T | None = None  # the value where none follows; None: one must follow
    short: str = ""  # as "-d"
    joined: Callable[[T, T], T] | None = None  # combines the values of a repeated option; None: the last one wins
    choices: tuple[str, ...] = ()  # values to complete
    variable: str = ""  # environment variable that gives the value where the option is absent
    field: str = ""  # of Options
    is_place: bool = False  # may be given without its flag, as the next plain word
    is_secret: bool = False  # messages never show a word that follows it

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def key(self) -> str:
        """The name in Python.

        >>> seconds("host-grace", (), "").key, text("from", (), "", "WHERE", "").key
        ('host_grace', 'from_')
        """
        name = self.name.replace("-", "_")
        return f"{name}_" if name in ("as", "for", "from", "context") else name  # the last one is Invoke's own

    @property
    def takes_value(self) -> bool:
        return bool(self.metavar)


AnyOption: TypeAlias = Option[Any]


def text(name: str, commands: tuple[str, ...], group: str, metavar: str, about: str, **more: Any) -> Option[str]:
    """Return an option whose value is taken as it is."""
    return Option(name, commands, group, metavar, about, as_text, more.pop("default", ""), **more)


def switch(
    name: str, commands: tuple[str, ...], group: str, about: str, *, on: bool = True, **more: Any
) -> Option[bool]:
    """Return an option without a value, which is ``on`` where it is given."""
    return Option(name, commands, group, "", about, lambda flag, text: on, not on, **more)


def seconds(name: str, commands: tuple[str, ...], about: str, group: str = ENDS) -> Option[float | None]:
    """Return an option in seconds; its field in Options and its MESH_ variable have its name."""
    variable = f"MESH_{name.upper().replace('-', '_')}"
    field = name.replace("-", "_")
    return Option(name, commands, group, "SECONDS", about, read_seconds, None, variable=variable, field=field)


def as_text(flag: str, text: str) -> str:
    """Return the text itself."""
    return text


def as_words(flag: str, text: str) -> tuple[str, ...]:
    """Return the text as one of several."""
    return (text,)


def as_wait(flag: str, text: str) -> float:
    """Return a time to wait in seconds."""
    return read_seconds(flag, text) or 0.0
