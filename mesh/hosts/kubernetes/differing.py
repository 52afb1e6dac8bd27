"""Differences of two versions of an object. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

SERVERS_OWN = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
SHOWN_CHARACTERS = 60  # of one value


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return a line for each field that differs, without those that the server alone writes.

    >>> differences({"spec": {"hard": {"pods": "4"}}}, {"spec": {"hard": {"pods": "5", "cpu": "1"}}})
    ['spec.hard.pods: 4 -> 5', 'spec.hard.cpu: none -> 1']
    """
    return list(_differing("", _own(before), _own(after)))


def _own(found: Mapping[str, object]) -> Mapping[str, object]:
    meta = found.get("metadata")
    kept = {key: value for key, value in found.items() if key != "status"}
    if isinstance(meta, Mapping):
        kept["metadata"] = {key: value for key, value in meta.items() if key not in SERVERS_OWN}
    return kept


def _differing(path: str, before: object, after: object) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _differing(f"{path}.{key}" if path else str(key), before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differing(f"{path}[{number}]", one, other)
    else:
        yield f"{path}: {_shown(before)} -> {_shown(after)}"


def _shown(value: object) -> str:
    """Return a value in one line.

    >>> _shown(None), _shown("a"), _shown({"b": 1})
    ('none', 'a', '{"b": 1}')
    """
    if value is None:
        return "none"
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
