"""The layers of ``mesh/``: which room may import which, and their picture in docs/architecture.md.

``python -m tests.layers`` prints the picture. Each room's line is the first sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import mesh

ROOT = Path(mesh.__file__).parent
# From the top. A room imports from lower layers only; rooms of one layer do not import each other.
LAYERS = (
    ("__main__", "__init__"),
    ("tasks",),
    ("cli",),
    ("launchpad",),
    ("compat", "program", "ui"),
    ("api",),
    ("app",),
    ("check", "keeper", "jobs", "pages"),
    ("engine",),
    ("hosts",),
    ("modules", "config", "workspace", "remote", "backends", "rundir", "screen"),
    ("verdict",),
    ("agent",),
    ("protocol",),
    ("core",),
)
# The engine is given these rooms' objects behind the interfaces of core.
FORBIDDEN = {"engine": {"modules", "config", "workspace", "backends", "hosts", "rundir", "screen", "verdict"}}
HEIGHT = {room: -depth for depth, rooms in enumerate(LAYERS) for room in rooms}
SHIPPED = ("agent", "protocol")  # to hosts, where there is nothing else of mesh
RUNTIMES = ("program/runtime/", "launchpad/runtime/")  # are shipped as well, to hosts that may have these packages:
OPTIONAL = ("numpy", "cloudpickle", "absl")
LEAVES = ("launchpad/leaving.py",)  # ends the interpreter with the status of its program
MODULE_NAME = re.compile(r"mesh(\.\w+)+")


def room_of(path: Path) -> str:
    """Return the room of a file: the first part of its path below ``mesh/``."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(nodes: Iterable[ast.AST], *, strings: bool) -> Iterator[str]:
    """Yield the absolute names that a module imports, also under TYPE_CHECKING and in functions.

    nodes: all of its tree. strings: also names of modules that stand in strings
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif strings and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value,) if MODULE_NAME.fullmatch(node.value) else ()


def violations(path: Path, source: str) -> Iterator[str]:
    """Yield a line for each import against the layers, and each call that prints or exits below the command line."""
    nodes, room = list(ast.walk(ast.parse(source))), room_of(path)
    place = path.relative_to(ROOT).as_posix()
    in_runtime = place.startswith(RUNTIMES)
    in_agent = room in SHIPPED or in_runtime
    own = ("mesh.agent.", "mesh.protocol.")
    if in_runtime:
        own = ("mesh.program.runtime.", *(("mesh.launchpad.runtime.",) if room == "launchpad" else ()))
    for name in imports(nodes, strings=not in_agent):
        first, _, rest = name.partition(".")
        if in_agent:
            known = first in sys.stdlib_module_names or first == "typing_extensions"  # which only mypy reads
            known = known or (in_runtime and first in OPTIONAL)
            if not known and not name.startswith(own):
                yield f"{path}: the agent imports {name}"
            if first != "mesh":
                continue
        other = rest.partition(".")[0]
        if first != "mesh" or other in (room, "__init__", "__version__") or other not in HEIGHT:
            continue
        if HEIGHT[other] >= HEIGHT[room] or other in FORBIDDEN.get(room, ()):
            yield f"{path}: {room} imports {name}"
    if room not in ("cli", "__main__") and not in_agent and place not in LEAVES:
        for node in nodes:
            called = dotted(node.func) if isinstance(node, ast.Call) else ""
            if called in ("print", "sys.exit", "exit", "os._exit"):
                yield f"{path}:{getattr(node, 'lineno', 0)}: {called}"


def dotted(node: ast.AST) -> str:
    """Return a name, or a name and an attribute of it; "" for all else."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute(value=ast.Name()):
            return f"{node.value.id}.{node.attr}"
    return ""


def picture() -> str:
    """Return the layers as text, the highest first, one room a line, with a rule between layers."""
    blocks = []
    for rooms in LAYERS[1:]:
        blocks.append("\n".join(f"{name(room):<12}{summary(room)}" for room in rooms))
    width = max(len(line) for block in blocks for line in block.splitlines())
    return f"\n{'-' * width}\n".join(blocks)


def name(room: str) -> str:
    """Return how a room is written: a package with a slash."""
    return f"{room}/" if (ROOT / room).is_dir() else f"{room}.py"


def summary(room: str) -> str:
    """Return the first sentence of a room's docstring."""
    path = ROOT / room / "__init__.py" if (ROOT / room).is_dir() else ROOT / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.split(r"(?<=\.)\s|\n\n|:\s+``", text.replace("\n", " ", 1))[0].strip().replace("``", "")


if __name__ == "__main__":
    print(picture())
