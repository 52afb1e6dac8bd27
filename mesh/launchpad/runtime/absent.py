"""Stand-ins on hosts for names that only the launching machine has: they can be imported, and raise when used."""

from __future__ import annotations

from mesh.program.runtime.absent import WHERE


class Absent:
    """Stand-in for a class or function of the launching machine: it raises RuntimeError when it is called."""

    def __init__(self, *args: object, **named: object) -> None:
        raise RuntimeError(WHERE)


def stand_in(name: str) -> object:
    """Return the stand-in for a name."""
    return type(name, (Absent,), {})
