"""Stand-ins on hosts for names that only the launching machine has: they can be imported, and raise when used."""

from __future__ import annotations

from mesh.program.runtime.absent import WHERE


class Absent:
    """Stand-in for a class or function of the launching machine: it raises RuntimeError when it is called."""

    def __init__(self, *args: object, **named: object) -> None:
        raise RuntimeError(WHERE)


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    return type(name, (Absent,), {})
