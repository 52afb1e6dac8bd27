"""The library of nodes as it travels: ``meshrun``, ``mesh.program`` and ``mesh.launchpad`` without their client."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

from mesh.remote.blob import EPOCH, FILE_MODE, MESHRUN, library

MESH_PATH = Path(__file__).parents[1]
PODS = ("launchpad/lp_k8s/__init__.py", "launchpad/lp_k8s/util.py")
# The facades import nothing of the client by themselves.
FACADES = ("program/__init__.py", "launchpad/__init__.py", "launchpad/lp_ssh.py", *PODS)
RUNTIMES = ("program/runtime", "launchpad/runtime")


@functools.cache
def program_library() -> bytes:
    """Return the zip that a host keeps by its hash and puts on the path of Python for the nodes."""
    sources = {MESHRUN: library(), "mesh/__init__.py": b""}
    paths = [MESH_PATH / name for name in FACADES] + [path for name in RUNTIMES for path in _modules(MESH_PATH / name)]
    for path in paths:
        sources[f"mesh/{path.relative_to(MESH_PATH).as_posix()}"] = path.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in sources.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr, member.compress_type = FILE_MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, source)
    return packed.getvalue()


def _modules(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.py"))
