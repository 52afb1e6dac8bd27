"""Readers of fields of run.json and events.jsonl, which a crash or another version may have damaged."""

from __future__ import annotations

from collections.abc import Mapping

Fields = Mapping[str, object]
NONE: Fields = {}
NUMBER_MAX = 1e15


def text(fields: Fields, key: str) -> str:
    """Return a text, "" if there is none."""
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def number(fields: Fields, key: str) -> float | None:
    """Return a number, None if there is none."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= NUMBER_MAX:
        return None
    return float(value)


def count(fields: Fields, key: str) -> int:
    """Return a whole number, 0 if there is none."""
    return int(number(fields, key) or 0)


def inner(fields: Fields, key: str) -> Fields:
    """Return an object, an empty one if there is none."""
    value = fields.get(key)
    return value if isinstance(value, dict) else NONE


def objects(fields: Fields, key: str) -> list[Fields]:
    """Return the objects of a list."""
    value = fields.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def texts(fields: Fields, key: str) -> list[str]:
    """Return the texts of a list."""
    value = fields.get(key)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def numbers(fields: Fields, key: str) -> list[int]:
    """Return the whole numbers of a list."""
    value = fields.get(key)
    if not isinstance(value, list):
        return []
    return [one for one in value if isinstance(one, int) and not isinstance(one, bool)]
