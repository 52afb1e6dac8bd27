"""Modules that others import for what we never use: they come when somebody does."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

METADATA = "importlib.metadata"


class Later(ModuleType):
    """Stands for a module of that name, and gets from it what is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # what Python's import looks for in any module
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            sys.modules.pop(self.__name__, None)  # another thread may have done it since
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def later(name: str, **ready: object) -> Iterator[None]:
    """Within: whoever imports a module, unless it is there, gets what stands for it.

    ready: what that has of its own, for those who want it at once
    """
    stands = Later(name)
    vars(stands).update(ready)
    if sys.modules.setdefault(name, stands) is stands:
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:  # another thread may import it just now, and look for it there afterwards
            setattr(sys.modules[parent], child, stands)
    try:
        yield
    finally:
        if sys.modules.get(name) is stands:
            sys.modules.pop(name, None)


def version(distribution: str) -> str:
    """That of an installed distribution, as importlib.metadata has it, which needs email, csv and zipfile for that."""
    for place in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):
                if name.startswith(distribution + "-") and name.endswith(".dist-info"):
                    return name.split("-")[1].removesuffix(".dist")
    if isinstance(sys.modules.get(METADATA), Later):
        sys.modules.pop(METADATA, None)
    found: str = importlib.import_module(METADATA).version(distribution)  # it was installed in some other way
    return found
