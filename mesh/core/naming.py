"""Finding runs by a word: an id, a name, a tag, or a part of an id or name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from mesh.core.errors import AmbiguousRun
from mesh.core.escapes import plain

LAST = "last"
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a run, and a tag
SHOWN_RUNS = 8  # in one message
COMMAND_CHARACTERS = 50  # of a command in a message


class NamedRun(Struct, frozen=True, kw_only=True):
    """A run with all that it can be called by."""

    run: str  # its id
    name: str = ""
    tags: tuple[str, ...] = ()
    command: str = ""  # for people
    age: str = ""  # for people, as "3 min ago"
    is_over: bool = False


def is_name(text: str) -> bool:
    """Return True for a text that can be the name of a run: no word that means another one.

    >>> is_name("lr3"), is_name("last"), is_name("20261121-101500-3f9c2a"), is_name("a b")
    (True, False, False, False)
    """
    return bool(NAME.fullmatch(text)) and text != LAST and not RUN_ID.fullmatch(text)


def exactly(word: str, runs: Sequence[NamedRun]) -> list[NamedRun]:
    """Return the run of an id, or those of a name; of several with one name those that are on, else the newest.

    >>> old = NamedRun(run="20261121-101500-3f9c2a", name="lr3")
    >>> new = NamedRun(run="20261122-101500-3f9c2a", name="lr3", is_over=True)
    >>> [one.run for one in exactly("lr3", [old, new])]
    ['20261121-101500-3f9c2a']
    """
    named = [one for one in runs if word == one.run] or [one for one in runs if word and word == one.name]
    if len(named) < 2:
        return named
    return [one for one in named if not one.is_over] or [max(named, key=lambda one: one.run)]


def matching(word: str, runs: Sequence[NamedRun]) -> list[NamedRun]:
    """Return the runs that a word may mean: by id or name, else by tag, else by a part of an id or name."""
    return (
        exactly(word, runs)
        or [one for one in runs if word in one.tags]
        or [one for one in runs if word in one.run or word in one.name]
    )


def the_one(word: str, runs: Sequence[NamedRun]) -> NamedRun | None:
    """Return the run that a word means, None if there is none. Raises AmbiguousRun if it may mean several."""
    found = matching(word, runs)
    if len(found) > 1:
        raise ambiguous(f"{word!r} may be any of {len(found)} runs", found)
    return found[0] if found else None


def ambiguous(message: str, runs: Sequence[NamedRun]) -> AmbiguousRun:
    """Return the error that lists runs, the newest last."""
    newest = sorted(runs, key=lambda one: one.run)[-SHOWN_RUNS:]
    names, ages = (max(map(len, texts)) for texts in ([one.name for one in newest], [one.age for one in newest]))
    lines = [
        "  ".join(filter(None, (one.run, f"{one.name:<{names}}", f"{one.age:<{ages}}", _short(one.command))))
        for one in newest
    ]
    more = [f"and {len(runs) - len(newest)} older ones"] if len(runs) > len(newest) else []
    text = "\n".join([f"{message}:", *(line.rstrip() for line in lines), *more])
    return AmbiguousRun(text, newest=newest[-1].run)


def _short(command: str) -> str:
    line = " ".join(plain(command).split())
    return line if len(line) <= COMMAND_CHARACTERS else f"{line[: COMMAND_CHARACTERS - 3]}..."
