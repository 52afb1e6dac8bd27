"""Gets the agent's modules, and imports each when it is wanted: a run needs half of them. It needs none itself.

Compiling takes longer than all else that an agent does at its start, and sending its sources to many hosts may fill an
uplink. So what one agent has compiled is kept for the next, in the directory of the doors (doors.py): nobody else can
write there, and it is the machine's own. This alone travels each time, and asks for the rest where nothing is kept.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any, Dict

    Codes = Dict[str, bytes]  # by the modules' names, each as marshal has it: what is not imported is not read

PACKAGE = "mesh_agent"
PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # as in doors.py
CHECKSUM = 8  # hexadecimal digits
WAITING = 900.0  # seconds, as in main.py
KEPT = 4  # for so many different agents: of each version of mesh that clients have


def load(key: str) -> None:
    """Run main. key: differs from that of all other sources."""
    gc.disable()  # what is made now stays
    codes, before = codes_of(key)
    package: Any = type(sys)(PACKAGE)
    package.__path__ = []
    sys.modules[PACKAGE] = package
    finder: Any = Finder(codes)
    sys.meta_path.insert(0, finder)
    __import__(f"{PACKAGE}.main")
    gc.freeze()  # children need not copy the pages of what is never looked at
    gc.enable()
    sys.modules[f"{PACKAGE}.main"].main(before)


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


def codes_of(key: str) -> tuple[Codes, bytes]:
    """The code of the modules, as an agent before us has left it, or made now; and what was read for that too much."""
    head = f"{key} {sys.version}".replace("\n", " ").encode() + b"\n"
    name = f".{sys.implementation.cache_tag}-{key}"
    place = find_place()
    codes = read(f"{place}/{name}", head) if place else {}
    if codes:
        return codes, b""
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


def made(sources: bytes) -> Codes:
    """The code of the modules, compiled. sources: JSON, the texts of the modules by name."""
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


def made_place(places: tuple[str, ...] = PLACES) -> str:
    """The same, made now; "" if it cannot be."""
    for place in places:
        try:
            os.mkdir(f"{place}/mesh-{os.geteuid()}", 0o700)
            break
        except OSError:
            pass
    return find_place(places)


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
