"""Readers of the options for attempts and trials."""

from __future__ import annotations

from mesh.config.settings import read_number
from mesh.core.errors import UsageError

BISECTION_RUNS_MAX = 30  # runs of a bisection


def read_retries(place: str, text: str) -> int:
    """Read how often a command may be tried again. Raises UsageError that names its place."""
    return read_number(place, text) or 0


def read_statuses(place: str, text: str) -> tuple[int, ...]:
    """Read exit statuses of failures, as 76,124. Raises UsageError that names its place.

    >>> read_statuses("--retry-on", "76,1")
    (76, 1)
    """
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and 1 <= int(word) <= 255 for word in words):
        raise UsageError(f"{place}: expected exit statuses from 1 to 255, as 76,124, found {text!r}")
    return tuple(map(int, words))


def read_trials(place: str, text: str) -> int:
    """Read how many runs a bisection may take. Raises UsageError that names its place."""
    number = read_number(place, text)
    return BISECTION_RUNS_MAX if number is None else number
