"""Packages of the Python that ranks run, read from the names of its directories: no interpreter is started."""

from __future__ import annotations

import os

from mesh.agent.process.spawning import find_program
from mesh.protocol.answers import PACKAGES_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

    from mesh.agent.process.spawning import Setting

FIRST_LINE_BYTES = 256  # linux/binfmts.h: BINPRM_BUF_SIZE
SHELLS = (b"bash", b"sh", b"dash", b"zsh", b"env")
SUFFIXES = (".dist-info", ".egg-info")


def packages(program: bytes, setting: Setting) -> Dict[str, str]:
    """Return the versions of packages by their names; {} if the command is no Python's and no shell's.

    program: the first word of the command. "python" has the version of Python, "" if no name shows it.
    """
    try:
        interpreter = _interpreter(program, setting)
    except OSError:
        return {}
    if not interpreter:
        return {}
    found: Dict[str, str] = {}
    prefix, real = _prefix(interpreter), _prefix(os.path.realpath(interpreter))
    version = os.path.basename(os.path.realpath(interpreter))[len("python") :]
    venv = _venv(prefix)
    prefixes = [prefix] if venv else [prefix, real]
    if venv.get("include-system-site-packages") == "true":
        prefixes.append(real)
    if version or venv:
        found["python"] = venv.get("version", version)
    for place in _places(prefixes, version):
        _read(place, found)
    return dict(sorted(found.items())[:PACKAGES_MAX])


def _interpreter(program: bytes, setting: Setting) -> str:
    """Return the path of the Python of a command, also of one that is a script; "": it has none. Raises OSError."""
    path = setting.environment.get(b"PATH", os.defpath.encode())
    directory = os.fsencode(setting.directory)
    file = find_program(program, path, directory)
    name = os.path.basename(file)
    if not name.startswith(b"python"):
        words = _first_line(file) if name not in SHELLS else [b"env", b"python3"]
        names = [word for word in words if os.path.basename(word).startswith(b"python")]
        if not names:
            return ""
        file = find_program(names[0], path, directory)
    return os.path.abspath(os.fsdecode(file))


def _first_line(file: bytes) -> List[bytes]:
    """Return the words by which the kernel starts a script; [] of other programs. Raises OSError."""
    with open(file, "rb") as script:
        head = script.read(FIRST_LINE_BYTES)
    return head[2:].split(b"\n")[0].split() if head.startswith(b"#!") else []


def _prefix(interpreter: str) -> str:
    return os.path.dirname(os.path.dirname(interpreter))


def _venv(prefix: str) -> Dict[str, str]:
    """Return the settings of a virtual environment; {} if it is none."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), errors="replace") as file:
            pairs = [line.partition("=") for line in file.read(1 << 16).splitlines()]
    except OSError:
        return {}
    return {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


def _places(prefixes: List[str], version: str) -> List[str]:
    """Return the directories in which packages may be, the first ones first. version: of Python, "3.11"; "": unknown"""
    found = []
    for prefix in prefixes:
        for below in ("lib", "lib64", "local/lib"):
            parent = os.path.join(prefix, below)
            try:
                names = [name for name in sorted(os.listdir(parent)) if name.startswith("python")]
            except OSError:
                continue
            wanted = ("python" + version, "python3") if version not in ("", "3") else names
            found += [os.path.join(parent, name) for name in names if name in wanted]
    return [os.path.join(place, kind) for place in dict.fromkeys(found) for kind in ("site-packages", "dist-packages")]


def _read(place: str, found: Dict[str, str]) -> None:
    """Add the packages of a directory, except those that an earlier one has."""
    try:
        names = os.listdir(place)
    except OSError:
        return
    for name in names:
        stem, suffix = os.path.splitext(name)
        words = stem.split("-")
        if suffix in SUFFIXES and len(words) > 1:
            found.setdefault(words[0].lower().replace("_", "-"), words[1])
