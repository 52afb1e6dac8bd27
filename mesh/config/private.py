"""Where processes of one user find each other."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each command imports this before anything else
    from collections.abc import Mapping

AT_START = ("GLIBC_", "LD_", "MALLOC_", "OPENSSL_", "PYTHON")  # how variables begin that a process minds as it starts


def private_directory(environ: Mapping[str, str]) -> str:
    """A directory that is only this user's; "" where there is none: off Linux, or for want of a private place."""
    directory = environ.get("XDG_RUNTIME_DIR") or f"/tmp/mesh-{os.geteuid()}"
    try:
        found = os.lstat(directory)
    except OSError:
        return ""
    is_private = found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()
    return directory if is_private and sys.platform == "linux" else ""
