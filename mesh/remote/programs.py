"""The library of a program's nodes as it travels: ``meshrun``, and ``mesh.program`` with its runtime, in one zip."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

from mesh.remote.blob import EPOCH, FILE_MODE, MESHRUN, library

FACADE_PATH = Path(__file__).parents[1] / "program" / "__init__.py"  # it imports nothing by itself
RUNTIME_PATH = FACADE_PATH.parent / "runtime"


@functools.cache
def program_library() -> bytes:
    """Return the zip that a host keeps by its hash and puts on the path of Python for the nodes."""
    sources = {MESHRUN: library(), "mesh/__init__.py": b""}
    sources["mesh/program/__init__.py"] = FACADE_PATH.read_bytes() if FACADE_PATH.exists() else b""
    for path in sorted(RUNTIME_PATH.rglob("*.py")):
        sources[f"mesh/program/runtime/{path.relative_to(RUNTIME_PATH).as_posix()}"] = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in sources.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr, member.compress_type = FILE_MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, source)
    return packed.getvalue()
