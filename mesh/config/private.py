"""The private directory of a user, through which processes find each other."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each command imports this before anything else
    from collections.abc import Mapping

# Prefixes of variables that a process reads when it starts.
AT_START = ("GLIBC_", "LD_", "MALLOC_", "OPENSSL_", "PYTHON")


def private_directory(environ: Mapping[str, str]) -> str:
    """Return a directory that only this user can enter; "" off Linux, or without a private place."""
    directory = environ.get("XDG_RUNTIME_DIR") or f"/tmp/mesh-{os.geteuid()}"
    try:
        found = os.lstat(directory)
    except OSError:
        return ""
    is_private = found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()
    return directory if is_private and sys.platform == "linux" else ""
