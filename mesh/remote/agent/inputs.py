"""What a prerun entry with inputs depends on: their contents, and the Python that it finds."""

from __future__ import annotations

import errno
import os
import stat

from .lean import dumps
from .manifest import CONTENT, FILE, KIND, PATH, read_record, status_of
from .spawning import find_program
from .store import hash_file, hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WILD = frozenset("*?[")
# What package managers leave of each package, below a virtual or conda environment.
PACKAGES = (b"lib/python*/site-packages/*.dist-info", b"lib/python*/site-packages/*.egg-info", b"conda-meta/*.json")


def contents(workspace: str, record: str, inputs: Iterable[str]) -> dict[str, str]:
    """A hash for each input; "" where nothing is there. Raises OSError if something cannot be read.

    An input is a path or a pattern, and stands for what the last sync has brought: that path, what is below it. What
    hosts make there (``__pycache__``, ``.venv``) does not count, unless the path itself was made by them.
    record: the path of the last sync's
    """
    root = os.fsencode(workspace)
    found: dict[str, list[list[str]]] = {written: [] for written in inputs}
    parts = {written: _parts(written) for written in found}
    known = read_record(record)
    statuses = dict(zip((entry[PATH] for entry in known.entries), known.statuses()))
    for entry in known.entries:
        way = entry[PATH].split("/")
        named = [written for written in found if covers(parts[written], way)]
        if not named:
            continue
        full = root + b"/" + entry[PATH].encode("latin-1")
        # The last sync's hash holds for a file that was not touched since.
        is_known = entry[KIND] == FILE and entry[PATH] in statuses and statuses[entry[PATH]] == _status(full)
        told = [FILE, entry[CONTENT]] if is_known else _look(full)
        for written in named:
            found[written].append([entry[PATH], *told])
    for written, listed in found.items():
        if not listed and not WILD.intersection(written):
            listed += _tree(root + b"/" + os.fsencode(written), "")
    return {written: hash_of(dumps(listed).encode()) if listed else "" for written, listed in found.items()}


def covers(parts: Sequence[str], way: Sequence[str]) -> bool:
    """Whether a path, by its parts, or something that it is below, is what a pattern says, by its parts.

    >>> covers(["src"], ["src", "a.py"]), covers(["*.txt"], ["b.txt"]), covers(["*.txt"], ["src", "b.txt"])
    (True, True, False)
    >>> covers(["**", "*.txt"], ["b.txt"]), covers(["**", "*.txt"], ["a", "b", "c.txt"]), covers([], ["a"])
    (True, True, True)
    """
    from fnmatch import fnmatchcase

    if not parts:
        return True
    if not way:
        return False
    if parts[0] == "**":
        return covers(parts[1:], way) or covers(parts, way[1:])
    return (parts[0] == way[0] or fnmatchcase(way[0], parts[0])) and covers(parts[1:], way[1:])


def surroundings(environment: Mapping[bytes, bytes], directory: str) -> str:
    """A hash of what an entry finds there: the interpreter, and the packages of the environments that it may be about.

    These are the active ones, and ``.venv`` and ``.conda`` in the working directory.
    """
    from glob import escape, glob

    told: list[str] = []
    for name in (b"python3", b"python"):
        try:
            program = find_program(name, environment.get(b"PATH", os.defpath.encode()))
        except FileNotFoundError:
            program = b""
        told.append(os.path.realpath(program).decode("latin-1") if program else "")
    active = [environment.get(name, b"") for name in (b"VIRTUAL_ENV", b"CONDA_PREFIX")]
    usual = [os.path.join(os.fsencode(directory), name) for name in (b".venv", b".conda")]
    for place in [*active, *usual]:
        told.append(place.decode("latin-1"))
        names = [os.path.basename(path) for what in PACKAGES if place for path in glob(escape(place) + b"/" + what)]
        told += sorted(name.decode("latin-1") for name in names)
    return hash_of(dumps(told).encode())


def _parts(written: str) -> list[str]:
    """An input as paths of the manifest are written."""
    return [] if written == "." else os.fsencode(written).decode("latin-1").split("/")


def _status(full: bytes) -> object:
    try:
        return status_of(os.lstat(full))
    except OSError:
        return None


def _look(full: bytes) -> list[str]:
    """Kind and content of what is at a path; [] if nothing is."""
    try:
        mode = os.lstat(full).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return []
    if stat.S_ISDIR(mode):
        return ["d"]
    if stat.S_ISLNK(mode):  # what it leads to counts as well, if that is a file
        target = os.path.realpath(full)
        return ["l", os.readlink(full).decode("latin-1"), hash_file(target) if os.path.isfile(target) else ""]
    if not stat.S_ISREG(mode):
        return ["special"]
    content = hash_file(full)
    if not content:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), full)
    return [FILE, content]


def _tree(full: bytes, path: str) -> list[list[str]]:
    """Everything from a path on, whoever made it."""
    told = _look(full)
    if not told:
        return []
    listed = [[path, *told]]
    for name in sorted(os.listdir(full)) if told == ["d"] else ():
        listed += _tree(full + b"/" + name, path + "/" + name.decode("latin-1"))
    return listed
