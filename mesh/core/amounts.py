"""Amounts in words for people."""

from __future__ import annotations

UNITS = ("B", "kB", "MB", "GB", "TB")


def told_bytes(size: int) -> str:
    """
    >>> told_bytes(0), told_bytes(1234), told_bytes(20_000_000)
    ('0 B', '1.2 kB', '20.0 MB')
    """
    power = _power(size)
    return f"{_number(size, power)} {UNITS[power]}"


def part_of(done: int, size: int) -> str:
    """
    >>> part_of(300_000, 20_000_000), part_of(5, 70)
    ('0.3 of 20.0 MB', '5 of 70 B')
    """
    power = _power(size)
    return f"{_number(done, power)} of {_number(size, power)} {UNITS[power]}"


def _power(size: int) -> int:
    power = 0
    while size >= 1000 ** (power + 1) and power < len(UNITS) - 1:
        power += 1
    return power


def _number(size: int, power: int) -> str:
    return f"{size / 1000**power:.1f}" if power else str(size)


def span(seconds: float) -> str:
    """Return a time span in its largest unit, for people.

    >>> span(3.9), span(1260), span(200_000)
    ('3 s', '21 min', '2 days')
    """
    return ago(seconds).removesuffix(" ago")


def ago(seconds: float) -> str:
    """Return how long ago something was, for people.

    >>> ago(3.9), ago(150), ago(7300), ago(200_000)
    ('3 s ago', '2 min ago', '2 h ago', '2 days ago')
    """
    whole = max(0, int(seconds))
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if whole >= size * (2 if unit == "days" else 1):
            return f"{whole // size} {unit} ago"
    return f"{whole} s ago"
