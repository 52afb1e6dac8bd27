"""The switchboard's program as it travels: ``python3 ZIP board`` and ``python3 ZIP node``."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

MESH_PATH = Path(__file__).parents[2]
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every member, so that the zip is the same for the same modules
FILE_MODE = 0o600
MAIN = b"import sys\n\nfrom mesh.agent.switchboard.main import main\n\nsys.exit(main())\n"
MODULES = ("__init__.py", "agent/__init__.py", "agent/link/__init__.py", "agent/link/tls.py")


@functools.cache
def pack() -> bytes:
    """Return the zip, which a host's Python runs as a program or imports from."""
    own = sorted((MESH_PATH / "agent/switchboard").glob("*.py"))
    sources = {"__main__.py": MAIN}
    for path in [*(MESH_PATH / name for name in MODULES), *own]:
        name = path.relative_to(MESH_PATH).as_posix()
        sources[f"mesh/{name}"] = b"" if name == "__init__.py" else path.read_bytes()  # that of the client imports more
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in sources.items():
            member = zipfile.ZipInfo(name, EPOCH)
            member.external_attr, member.compress_type = FILE_MODE << 16, zipfile.ZIP_DEFLATED
            archive.writestr(member, source)
    return packed.getvalue()
