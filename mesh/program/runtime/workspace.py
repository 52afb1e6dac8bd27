"""The workspace of a rank of `mesh repl`: files that ``%sync`` brings, and modules that it loads again."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Dict, List, Optional, Sequence, Set, Tuple

FILE, DIRECTORY, LINK, GONE = "f", "d", "l", "x"
FIRST, PIECE, LAST = "b", "p", "e"  # the pieces of a large file
NEW = b".mesh-new"  # ends the name of a file that is being written

_homes: List[str] = []  # the directory in which this process began

# A change: its kind, the path in the workspace, permission bits, and bytes of a file or the target of a link.
Change = Tuple[str, bytes, int, bytes]


def begin(home: str) -> None:
    """Note the workspace of this process."""
    _homes[:] = [home]


def apply(home: str, changes: "Sequence[Change]") -> None:
    """Make the changes in a directory, in their order. Raises OSError."""
    for kind, path, mode, data in changes:
        place = os.path.join(os.fsencode(home), path)
        if kind == DIRECTORY:
            os.makedirs(place, exist_ok=True)
            os.chmod(place, mode)
        elif kind == GONE:
            _remove(place)
        else:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if kind == LINK:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place + NEW)
                os.symlink(data, place + NEW)
            else:
                # Written anew from its first piece: a sync that was interrupted may have left some.
                with open(place + NEW, "ab" if kind in (PIECE, LAST) else "wb") as file:
                    file.write(data)
            if kind in (FILE, LAST):
                os.chmod(place + NEW, mode)
            if kind in (FILE, LAST, LINK):
                os.replace(place + NEW, place)
                _forget_code(place)


def _remove(place: bytes) -> None:
    """Remove a file, a link, or a directory that is empty by now; one with other files stays."""
    try:
        os.unlink(place)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        with contextlib.suppress(OSError):
            os.rmdir(place)


def _forget_code(place: bytes) -> None:
    """Remove the compiled code of a module: a file of the same size and second would pass for its source."""
    if place.endswith(b".py"):
        with contextlib.suppress(OSError, ValueError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(os.fsdecode(place)))


def reload_of_shell(paths: "Sequence[str]") -> "Optional[List[str]]":
    """Do the same as ``reload`` in the workspace of this process, whatever its directory is by now."""
    return reload(_homes[0], paths)


def reload(home: str, paths: "Sequence[str]") -> "Optional[List[str]]":
    """Load the modules of changed files again, and give names for their old functions and classes the new ones.

    Return the names of the modules; None if no changed file is a loaded module. Raises what a module raises.
    """
    importlib.invalidate_caches()
    inside = os.path.join(os.path.realpath(home), "")
    changed = {os.path.join(inside, path) for path in paths}
    own = [module for module in list(sys.modules.values()) if _origin(module).startswith(inside)]
    found = [module for module in own if _origin(module) in changed]
    main = sys.modules.get("__main__")
    places = [vars(module) for module in [*own, *([main] if main is not None else [])]]
    for module in reversed(found):  # a module is entered before those that it imports
        old = dict(vars(module))
        importlib.reload(module)
        _rebind(old, module, places)
    return [module.__name__ for module in found] or None


def _origin(module: ModuleType) -> str:
    """Return the path of a module's file; "" if it has none."""
    path = getattr(module, "__file__", None)
    return os.path.realpath(path) if isinstance(path, str) else ""


def _rebind(old: "Dict[str, object]", module: ModuleType, places: "Sequence[Dict[str, object]]") -> None:
    new = vars(module)
    own: "Set[str]" = {
        name for name, value in old.items() if getattr(value, "__module__", None) == module.__name__ and name in new
    }
    newest = {id(old[name]): new[name] for name in own if new[name] is not old[name]}
    for place in places:
        for name, value in list(place.items()):
            if id(value) in newest:
                place[name] = newest[id(value)]
