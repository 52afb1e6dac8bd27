"""Gets the agent's modules, and imports each when it is wanted: a run needs half of them. It needs none itself.

Compiling takes longer than all else that an agent does at its start, and sending its sources to many hosts may fill an
uplink. So what one agent has compiled is kept for the next, in the directory of the doors (doors.py): nobody else can
write there, and it is the machine's own. Where nothing is kept this asks for it; it has travelled with the starter.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys
import zlib

from .starter import PLACES, find_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

    from .guardian import Guardian
    from .starter import Codes

PACKAGE = "mesh_agent"
WAITING = 900.0  # seconds, as in main.py
KEPT = 4  # for so many different agents: of each version of mesh that clients have


def load(key: str, head: bytes, name: str, codes: Codes | None) -> None:
    """Run main. codes: what was kept here of these sources, under a name and with a head."""
    gc.disable()  # what is made now stays
    read: Callable[[str], bytes]
    if codes:
        read, before = codes.read, b""
    else:
        made, before = newly_made(key, head, name)
        read = made.__getitem__
    package: Any = type(sys)(PACKAGE)
    package.__path__ = []
    sys.modules[PACKAGE] = package
    finder: Any = Finder(read)
    sys.meta_path.insert(0, finder)
    __import__(f"{PACKAGE}.guardian")
    sys.modules[f"{PACKAGE}.guardian"].guard(lambda guardian: serve(before, guardian))


def serve(before: bytes, guardian: Guardian) -> None:
    """Be the agent."""
    __import__(f"{PACKAGE}.main")
    gc.freeze()  # children need not copy the pages of what is never looked at
    gc.enable()
    sys.modules[f"{PACKAGE}.main"].main(before, guardian)


class Finder:
    """Gives the modules to Python's import."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        """read: gives the code of a module, as marshal has it."""
        self._read = read

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name.rpartition(".")[0] != PACKAGE:
            return None
        frozen: Any = sys.modules["_frozen_importlib"]  # importlib itself takes longer
        return frozen.ModuleSpec(name, self)

    def create_module(self, spec: object) -> None:
        """Python is to make it."""

    def exec_module(self, module: ModuleType) -> None:
        code: CodeType = marshal.loads(self._read(module.__name__.rpartition(".")[2]))
        exec(code, module.__dict__)


def newly_made(key: str, head: bytes, name: str) -> tuple[dict[str, bytes], bytes]:
    """The code of the modules, made now and kept for the next agent; and what was read for that too much."""
    os.write(1, b"\nlacks %s\n" % key.encode())
    sources, before = fetched()
    codes = made(sources)
    place = find_place() or made_place()
    if place:
        keep(f"{place}/{name}", head, to_bytes(codes))
    return codes, before


def fetched() -> tuple[bytes, bytes]:
    """The sources, which the client sends between its requests; and those."""
    said, others = b"", b""
    while True:
        while b"\n" not in said:
            said += more()
        line, _, said = said.partition(b"\n")
        size = line[:-1].rpartition(b',"size":')[2]  # the last word of a header; frames.py has the format
        count = int(size) if size.isdigit() else 0
        while len(said) < count:
            said += more()
        data, said = said[:count], said[count:]
        if line.startswith(b'{"type":"agent"'):
            return zlib.decompress(data), others + said
        others += line + b"\n" + data


def more() -> bytes:
    """What has come."""
    import select  # as in main.py: an agent that is kept waits for its command, and its connection may be dead

    return (select.select([0], [], [], WAITING)[0] and os.read(0, 65536)) or sys.exit(1)


def made(sources: bytes) -> dict[str, bytes]:
    """The code of the modules, compiled. sources: JSON, the texts of the modules by name."""
    import __future__

    import json

    texts, flags = json.loads(sources), __future__.annotations.compiler_flag
    compiled = {name: compile(text, f"{PACKAGE}/{name}.py", "exec", flags) for name, text in texts.items()}
    return {name: marshal.dumps(code) for name, code in compiled.items()}


def to_bytes(codes: dict[str, bytes]) -> bytes:
    """What ``find`` reads, less its head."""
    size = len(index_of(codes, 0))  # every number takes as many bytes
    data = index_of(codes, size) + b"".join(codes.values())
    return b"%08x%s" % (zlib.crc32(data), data)


def index_of(codes: dict[str, bytes], place: int) -> bytes:
    """Where each of them is, and how long, if the first is at a place."""
    index = {}
    for name, code in codes.items():
        index[name] = place, len(code)
        place += len(code)
    return marshal.dumps(index, 2)  # later versions of marshal refer to what came before


def made_place(places: tuple[str, ...] = PLACES) -> str:
    """The same, made now; "" if it cannot be."""
    for place in places:
        try:
            os.mkdir(f"{place}/mesh-{os.geteuid()}", 0o700)
            break
        except OSError:
            pass
    return find_place(places)


def keep(path: str, head: bytes, data: bytes) -> None:
    """Keep it for the next agent, if it can be, and forget the oldest of others."""
    place, name = os.path.split(path)
    new = f"{path}.{os.getpid()}"
    try:
        with open(new, "wb") as file:
            file.write(head + data)
        os.replace(new, path)
        others = [f"{place}/{other}" for other in os.listdir(place) if other.startswith(name.rpartition("-")[0] + "-")]
        for other in sorted(others, key=os.path.getmtime)[:-KEPT]:
            os.unlink(other)
    except OSError:
        try:
            os.unlink(new)  # the disk may be full
        except OSError:
            pass
