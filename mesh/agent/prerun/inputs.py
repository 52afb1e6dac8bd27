"""The dependencies of a prerun entry with inputs: their contents, and the Python that it finds."""

from __future__ import annotations

import errno
import os
import stat

from mesh.agent.base.light import dumps
from mesh.agent.process.spawning import find_program
from mesh.agent.sync.contents import hash_file, hash_of
from mesh.agent.sync.manifest import CONTENT, FILE, KIND, PATH, read_record, status_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WILD = frozenset("*?[")
# The files that package managers make for each package, below a virtual or conda environment.
PACKAGES = (b"lib/python*/site-packages/*.dist-info", b"lib/python*/site-packages/*.egg-info", b"conda-meta/*.json")


def contents(workspace: str, record: str, inputs: Iterable[str]) -> dict[str, str]:
    """Return a hash for each input; "" where nothing is there. Raises OSError if something cannot be read.

    An input is a path or a pattern, and stands for the files of the last sync at that path and below. Files that hosts
    make there (``__pycache__``, ``.venv``) do not count, unless the path itself was made by them.
    record: the path of the record
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
        description = [FILE, entry[CONTENT]] if is_known else _description(full)
        for written in named:
            found[written].append([entry[PATH], *description])
    for written, listed in found.items():
        if not listed and not WILD.intersection(written):
            listed += _tree(root + b"/" + os.fsencode(written), "")
    return {written: hash_of(dumps(listed).encode()) if listed else "" for written, listed in found.items()}


def covers(parts: Sequence[str], way: Sequence[str]) -> bool:
    """Return True if a path or a directory above it matches a pattern; both as lists of their parts.

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
    """Return a hash of the interpreter that an entry finds, and of the packages in the environments that it may change.

    These are the active ones, and ``.venv`` and ``.conda`` in the working directory.
    """
    from glob import escape, glob

    found: list[str] = []
    for name in (b"python3", b"python"):
        try:
            program = find_program(name, environment.get(b"PATH", os.defpath.encode()))
        except FileNotFoundError:
            program = b""
        found.append(os.path.realpath(program).decode("latin-1") if program else "")
    active = [environment.get(name, b"") for name in (b"VIRTUAL_ENV", b"CONDA_PREFIX")]
    usual = [os.path.join(os.fsencode(directory), name) for name in (b".venv", b".conda")]
    for prefix in [*active, *usual]:
        found.append(prefix.decode("latin-1"))
        names = [
            os.path.basename(path) for pattern in PACKAGES if prefix for path in glob(escape(prefix) + b"/" + pattern)
        ]
        found += sorted(name.decode("latin-1") for name in names)
    return hash_of(dumps(found).encode())


def _parts(written: str) -> list[str]:
    """Return the parts of an input, as paths of the manifest are written."""
    return [] if written == "." else os.fsencode(written).decode("latin-1").split("/")


def _status(full: bytes) -> object:
    try:
        return status_of(os.lstat(full))
    except OSError:
        return None


def _description(full: bytes) -> list[str]:
    """Return kind and content of a path; [] if nothing is there."""
    try:
        mode = os.lstat(full).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return []
    if stat.S_ISDIR(mode):
        return ["d"]
    if stat.S_ISLNK(mode):  # its target counts as well, if that is a file
        target = os.path.realpath(full)
        return ["l", os.readlink(full).decode("latin-1"), hash_file(target) if os.path.isfile(target) else ""]
    if not stat.S_ISREG(mode):
        return ["special"]
    content = hash_file(full)
    if not content:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), full)
    return [FILE, content]


def _tree(full: bytes, path: str) -> list[list[str]]:
    """Return everything from a path on, also if hosts made it."""
    description = _description(full)
    if not description:
        return []
    listed = [[path, *description]]
    for name in sorted(os.listdir(full)) if description == ["d"] else ():
        listed += _tree(full + b"/" + name, path + "/" + name.decode("latin-1"))
    return listed
