"""Makes modules of the agent's sources, each when it is imported: a run needs half of them. It needs none itself.

Compiling takes longer than all else that an agent does at its start. What one agent has compiled is kept for the next,
in the directory of the doors (doors.py): nobody else can write there, and it is the machine's own.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys
import types
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Dict

    Codes = Dict[str, bytes]  # by the modules' names, each as marshal has it: what is not imported is not read

PACKAGE = "mesh_agent"
PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # as in doors.py
CHECKSUM = 8  # hexadecimal digits


def load(sources: bytes, key: str) -> None:
    """Run main.

    sources: JSON, the texts of the modules by name
    key: differs from that of all other sources
    """
    package = types.ModuleType(PACKAGE)
    package.__path__ = []
    sys.modules[PACKAGE] = package
    gc.disable()  # what is made now stays
    finder: Any = Finder(compiled(sources, key))
    sys.meta_path.insert(0, finder)
    __import__(f"{PACKAGE}.main")
    gc.freeze()  # children need not copy the pages of what is never looked at
    gc.enable()
    sys.modules[f"{PACKAGE}.main"].main()


class Finder:
    """Gives the modules to Python's import."""

    def __init__(self, codes: Codes) -> None:
        self._codes = codes

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name.rpartition(".")[0] != PACKAGE:
            return None
        frozen: Any = sys.modules["_frozen_importlib"]  # importlib itself takes longer
        return frozen.ModuleSpec(name, self)

    def create_module(self, spec: object) -> None:
        """Python is to make it."""

    def exec_module(self, module: ModuleType) -> None:
        code: CodeType = marshal.loads(self._codes[module.__name__.rpartition(".")[2]])
        exec(code, module.__dict__)


def compiled(sources: bytes, key: str) -> Codes:
    """The code of the modules, as an agent before us has left it, or made now."""
    head = f"{key} {sys.version}".replace("\n", " ").encode() + b"\n"
    place = find_place()
    path = f"{place}/.{sys.implementation.cache_tag}"
    codes = read(path, head) if place else {}
    if not codes:
        codes = made(sources)
        if place:
            keep(path, head, to_bytes(codes))
    return codes


def made(sources: bytes) -> Codes:
    """The code of the modules, compiled."""
    import json

    texts = json.loads(sources)
    return {name: marshal.dumps(compile(text, f"{PACKAGE}/{name}.py", "exec")) for name, text in texts.items()}


def to_bytes(codes: Codes) -> bytes:
    """What ``read`` reads, less its head."""
    data = marshal.dumps(codes)
    return b"%08x%s" % (zlib.crc32(data), data)


def find_place(places: tuple[str, ...] = PLACES) -> str:
    """The directory of the doors, if there is one already that is ours alone; "" otherwise."""
    for place in places:
        path = f"{place}/mesh-{os.geteuid()}"
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid():  # a directory, for nobody else
            return path
    return ""


def read(path: str, head: bytes) -> Codes:
    """What was kept there; {} unless it is whole, and of the same sources and interpreter."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        begin = len(head) + CHECKSUM
        if data.startswith(head) and int(data[len(head) : begin], 16) == zlib.crc32(data[begin:]):
            codes: Codes = marshal.loads(data[begin:])
            return codes
    except (OSError, ValueError):
        pass
    return {}


def keep(path: str, head: bytes, data: bytes) -> None:
    """Keep it for the next agent, if it can be."""
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "wb") as file:
            file.write(head + data)
        os.replace(new, path)
    except OSError:
        try:
            os.unlink(new)  # the disk may be full
        except OSError:
            pass
