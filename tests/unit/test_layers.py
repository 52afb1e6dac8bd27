"""Code imports only from lower layers, and what is below the command line neither prints nor exits."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import mesh

ROOT = Path(mesh.__file__).parent
# From the bottom; parts of one line are beside each other and do not import each other.
LAYERS = [
    {"core"},
    {"verdict"},
    {"config", "workspace", "remote", "backends", "rundir", "screen"},
    {"hosts"},
    {"engine"},
    {"check", "keeper"},
    {"app"},
    {"api"},
    {"compat"},
    {"cli"},
    {"tasks"},
    {"__main__", "__init__"},
]
# What the pure and concrete parts must not know, beyond the order of the layers.
FORBIDDEN = {"engine": {"config", "workspace", "backends", "hosts", "rundir", "screen", "verdict"}}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """The absolute names that a module imports, ``mesh.core.run`` for ``from mesh.core import run``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: Path, source: str) -> list[str]:
    tree, part = ast.parse(source), part_of(path)
    found = []
    in_agent = "agent" in path.parts
    for name in imports(tree):
        first, _, rest = name.partition(".")
        if in_agent:
            if first not in sys.stdlib_module_names:
                found.append(f"{path}: the agent imports {name}")
            continue
        other = rest.partition(".")[0]
        if first != "mesh" or other == part or other not in LEVEL:
            continue
        if other == "__init__" or other == "__version__":
            continue
        if LEVEL[other] >= LEVEL[part] or other in FORBIDDEN.get(part, ()):
            found.append(f"{path}: {part} imports {name}")
    if part not in ("cli", "__main__") and not in_agent:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "os._exit"):
                found.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}")
    return found


def test_layers() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 30
    assert {part_of(path) for path in files} <= LEVEL.keys()
    assert [text for path in files for text in violations(path, path.read_text())] == []


def test_the_check_can_fail() -> None:
    assert violations(ROOT / "core/x.py", "from mesh.engine import orders")
    assert violations(ROOT / "screen/x.py", "import mesh.backends.ssh.backend")
    assert violations(ROOT / "engine/x.py", "from mesh.rundir.writer import StoreSink")
    assert violations(ROOT / "remote/agent/x.py", "from mesh.core.run import RunSpec")
    assert violations(ROOT / "remote/agent/x.py", "import yaml")
    assert violations(ROOT / "config/x.py", "print('x')")
    assert not violations(ROOT / "cli/x.py", "from mesh import api")
