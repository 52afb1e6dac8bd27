"""The program of a declared job's pods as it travels: a zip that begins a run by itself, with the agent in it."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

from mesh.remote.blob import EPOCH, FILE_MODE, blob, boot, library, opening

MESH_PATH = Path(__file__).parents[1]
MAIN = b"import sys\n\nfrom mesh.agent.declared.main import run\n\nrun(sys.argv[1:])\n"
MODULES = ("__init__.py", "agent/__init__.py", "agent/link/__init__.py", "agent/link/tls.py")
ROOMS = ("agent/declared", "protocol")


@functools.cache
def pack() -> bytes:
    """Return the zip, which a pod's Python runs as a program."""
    modules = [path for room in ROOMS for path in sorted((MESH_PATH / room).glob("*.py"))]
    members = {"__main__.py": MAIN}
    for path in [*(MESH_PATH / name for name in MODULES), *modules]:
        name = path.relative_to(MESH_PATH).as_posix()
        members[f"mesh/{name}"] = b"" if name == "__init__.py" else path.read_bytes()  # that of the client imports more
    members |= {"agent.zip": blob(), "opening": opening(), "library": library(), "boot": boot().encode()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr, member.compress_type = FILE_MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return packed.getvalue()
