"""Find the program whose name is nearest to that of a command which the host does not have."""

from __future__ import annotations

import difflib
import os

from mesh.agent.process.spawning import Setting

SIMILARITY_MIN = 0.7  # of two names, from 0 to 1, as difflib counts it; below it the user means something else


def nearest_program(name: bytes, setting: Setting) -> bytes:
    """Return the command that the user may have meant, as it can be typed; b"" if no name is near.

    The candidates are what the ranks find: the programs on their PATH, or for a path its neighbours.
    """
    place, base = os.path.split(name)
    directory = os.fsencode(setting.directory)
    if b"/" in name:
        near = _nearest(base, [os.path.join(directory, place)])
        return os.path.join(place, near) if near else b""
    if base and _is_program(os.path.join(directory, base)):
        return os.path.join(b".", base)  # a shell does not look into the working directory either
    path = setting.environment.get(b"PATH", os.defpath.encode())
    return _nearest(base, [os.path.join(directory, place) for place in path.split(b":")])


def _nearest(base: bytes, directories: list[bytes]) -> bytes:
    """Return the name of the program there that is most like ``base``."""
    programs: dict[str, bytes] = {}  # directories by the name of a file in them; the first one counts
    for directory in directories:
        try:
            found = os.listdir(directory)
        except OSError:  # find_program passes over it as well
            continue
        for name in found:
            programs.setdefault(os.fsdecode(name), directory)
    programs.pop(os.fsdecode(base), None)
    for near in difflib.get_close_matches(os.fsdecode(base), programs, 5, SIMILARITY_MIN):
        if _is_program(os.path.join(programs[near], os.fsencode(near))):
            return os.fsencode(near)
    return b""


def _is_program(file: bytes) -> bool:
    return os.path.isfile(file) and os.access(file, os.X_OK)
