"""The names of the launching half on hosts, where it is not installed: they can be imported, and not used."""

from __future__ import annotations

WHERE = "a program is launched from your machine, not from a node; put the launch under `if __name__ == '__main__':`"


class Program:
    """Stands for the class that describes a program."""

    def __init__(self, *args: object, **named: object) -> None:
        raise RuntimeError(WHERE)


def has(**named: object) -> object:
    """Stand for the wish for hosts by what they have."""
    raise RuntimeError(WHERE)
