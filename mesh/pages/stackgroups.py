"""Stacks that events.jsonl has: equal ones of several hosts as one, with lines for people."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mesh.core.ranks import told
from mesh.core.stacks import HELPERS
from mesh.pages.fields import Fields, count, numbers, objects, text


class StackGroup(Struct, frozen=True, kw_only=True):
    """Equal stacks of some ranks."""

    ranks: tuple[int, ...]
    head: str  # "[7] load at data.py:14"
    calls: tuple[str, ...]  # innermost first


def merged(groups: Iterable[Fields]) -> list[StackGroup]:
    """Return the groups with equal calls as one each, the smallest one first."""
    found: dict[tuple[str, tuple[str, ...]], set[int]] = {}
    places: dict[tuple[str, tuple[str, ...]], str] = {}
    for group in groups:
        calls = tuple(_call(frame) for frame in objects(group, "frames"))
        role = text(group, "role")
        if role not in HELPERS:
            words = text(group, "words")
            key = role, (words, *calls) if words else calls
            found.setdefault(key, set()).update(numbers(group, "ranks"))
            places[key] = text(group, "where") or (key[1] or ("no Python code is running",))[0]
    made = [
        StackGroup(ranks=tuple(sorted(ranks)), head=_head(key[0], places[key], ranks), calls=key[1])
        for key, ranks in found.items()
    ]
    return sorted(made, key=lambda one: (len(one.ranks), one.ranks))


def _head(role: str, where: str, ranks: Iterable[int]) -> str:
    return f"[{told(ranks)}] {f'{role}: ' if role else ''}{where}"


def _call(frame: Fields) -> str:
    line = count(frame, "line")
    return f"{text(frame, 'function')} at {text(frame, 'file')}{f':{line}' if line else ''}"
