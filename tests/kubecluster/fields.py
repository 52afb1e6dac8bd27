"""Fields of an object that an API server does not hold: it drops those that its version does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mesh.hosts.kubernetes.room import amount


def dropped(sent: object, answered: object, path: str = "") -> Iterator[str]:
    """Yield the path of each field that was sent and that the answer lacks, or has with another value."""
    if isinstance(sent, Mapping):
        found = answered if isinstance(answered, Mapping) else {}
        for key, value in sent.items():
            yield from dropped(value, found.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(sent, list | tuple):
        listed = answered if isinstance(answered, list) else []
        for number, value in enumerate(sent):
            yield from dropped(value, listed[number] if number < len(listed) else None, f"{path}[{number}]")
    elif sent != answered and not _are_equal_amounts(sent, answered) and not (answered is None and _is_empty(sent)):
        yield f"{path}: {sent!r}, found {answered!r}"


def _is_empty(value: object) -> bool:
    """Return True for a value that a server leaves out of its answers."""
    return value in (False, "", 0)


def _are_equal_amounts(one: object, other: object) -> bool:
    """Return True for two spellings of one quantity."""
    try:
        return amount(str(one)) == amount(str(other))
    except ValueError:
        return False
