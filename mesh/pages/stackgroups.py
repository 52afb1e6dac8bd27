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
    for group in groups:
        calls = tuple(_call(frame) for frame in objects(group, "frames"))
        role = text(group, "role")
        if role not in HELPERS:
            words = text(group, "words")
            found.setdefault((role, (words, *calls) if words else calls), set()).update(numbers(group, "ranks"))
    made = [
        StackGroup(ranks=tuple(sorted(ranks)), head=_head(role, calls, ranks), calls=calls)
        for (role, calls), ranks in found.items()
    ]
    return sorted(made, key=lambda one: (len(one.ranks), one.ranks))


def _head(role: str, calls: tuple[str, ...], ranks: Iterable[int]) -> str:
    where = calls[0] if calls else "no Python code is running"
    return f"[{told(ranks)}] {f'{role}: ' if role else ''}{where}"


def _call(frame: Fields) -> str:
    line = count(frame, "line")
    return f"{text(frame, 'function')} at {text(frame, 'file')}{f':{line}' if line else ''}"
