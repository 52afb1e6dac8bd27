"""Code imports only from lower layers, and modules below the command line neither print nor exit."""

from __future__ import annotations

from pathlib import Path

from tests.layers import HEIGHT, ROOT, picture, room_of, violations

ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"


def found(path: str, source: str) -> bool:
    return bool(list(violations(ROOT / path, source)))


def test_layers() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 30
    assert {room_of(path) for path in files} <= HEIGHT.keys()
    assert [line for path in files for line in violations(path, path.read_text())] == []


def test_the_check_can_fail() -> None:
    assert found("core/x.py", "from mesh.engine import orders")
    assert found("core/x.py", "if TYPE_CHECKING:\n    from mesh.engine import orders")
    assert found("core/x.py", "import_module('mesh.engine.orders')")
    assert found("screen/x.py", "import mesh.backends.local")
    assert found("engine/x.py", "from mesh.rundir.writer import StoreSink")
    assert found("agent/x.py", "from mesh.core.run import RunSpec")
    assert found("agent/x.py", "import yaml")
    assert found("protocol/x.py", "from mesh.core.run import RunSpec")
    assert found("protocol/x.py", "import msgspec")
    assert found("config/x.py", "print('x')")
    assert found("program/runtime/x.py", "from mesh.program.graph import Program")
    assert found("program/runtime/x.py", "import msgspec")
    assert found("program/x.py", "from mesh.cli import options")
    assert not found("cli/x.py", "from mesh import api")
    assert not found("program/runtime/x.py", "from mesh.program.runtime import plain")


def test_the_picture_in_the_documents_is_the_layers() -> None:
    assert f"```\n{picture()}\n```" in ARCHITECTURE.read_text(), "paste the output of `python -m tests.layers`"
