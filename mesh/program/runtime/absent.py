"""Stand-ins on hosts for names that only the launching machine has: they can be imported, and raise when used."""

from __future__ import annotations

WHERE = "a program is launched from your machine, not from a node; put the launch under `if __name__ == '__main__':`"


class Program:
    """Stand-in for the class that describes a program: it cannot be made here."""

    def __init__(self, *args: object, **named: object) -> None:
        raise RuntimeError(WHERE)


class Options:
    """Stand-in for the options of the run that a program is. Only the launching machine reads them."""

    def __init__(self, **named: object) -> None:
        """Take them, and keep none."""


def connect(*args: object, **named: object) -> object:
    """Raise RuntimeError, because nodes have the handles that they were given."""
    raise RuntimeError("a node has the handles that it was given; only your machine connects to a program")


def has(**named: object) -> object:
    """Raise RuntimeError, because only the launching machine places nodes."""
    raise RuntimeError(WHERE)


class ItemFailed(Exception):
    """Stand-in for the error of ``map``, which only the launching machine raises."""


def executor(*args: object, **named: object) -> object:
    """Raise RuntimeError, because only the launching machine starts workers."""
    raise RuntimeError(WHERE)


def map(*args: object, **named: object) -> object:  # noqa: A001  (the name of Python's own)
    """Raise RuntimeError, because only the launching machine starts workers."""
    raise RuntimeError(WHERE)
