"""The client's own program uv, for hosts that have none."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from mesh.modules.uv import NO_UV, LocalUv

PLACES = ("~/.local/bin", "~/.cargo/bin")
ELF = b"\x7fELF"


def local_uv(workspace: Path) -> LocalUv:
    """Return the program if a lock file needs it; a script that only finds it (pyenv) is of no use elsewhere.

    workspace: the local directory that holds uv.lock
    """
    if platform.system() != "Linux" or not (workspace / "uv.lock").is_file():
        return NO_UV
    path = os.pathsep.join([os.environ.get("PATH", ""), *(os.path.expanduser(place) for place in PLACES)])
    program = shutil.which("uv", path=path)
    if program is None:
        return NO_UV
    try:
        with open(program, "rb") as file:
            if file.read(len(ELF)) != ELF:
                return NO_UV
            file.seek(0)
            return LocalUv(data=file.read(), platform=f"{platform.system()} {platform.machine()}")
    except OSError:
        return NO_UV
