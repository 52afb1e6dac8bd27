"""Sockets and locks of keepers: where a command and its keeper find each other.

There is one keeper for each home directory and ssh-agent. A keeper of another version of mesh is stopped by a new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import glob
import hashlib
import os
import socket
import struct
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

from mesh.backends.ssh import VARIABLES
from mesh.keeper.packets import AskAbout, ask
from mesh.remote.blob import opening

FIRST_SOCKETS = ".mesh-keeper-" + "[0-9a-f]" * 16  # as the first mesh 0.1.0 named them, without the home
LOCK_SUFFIX = ".lock"  # of the file beside a keeper's socket that the keeper holds locked


def socket_of(environ: Mapping[str, str]) -> str:
    """Return the path of the keeper's socket; "" where there can be no keeper."""
    beginning = beginning_of(environ)
    variables = "\n".join(environ.get(name, "") for name in VARIABLES)
    login = hashlib.blake2b(os.fsencode(variables), digest_size=4).hexdigest()
    version = hashlib.blake2b(_code(), digest_size=6).hexdigest()
    return f"{beginning}{login}-{version}" if beginning else ""


def beginning_of(environ: Mapping[str, str]) -> str:
    """Return the path that the sockets of all keepers of this home begin with; "" where there can be no keeper."""
    directory = _private_directory(environ)
    home = hashlib.blake2b(os.fsencode(environ.get("HOME", "")), digest_size=4).hexdigest()
    return f"{directory}/.mesh-keeper-{home}-" if directory else ""


def files(environ: Mapping[str, str]) -> list[str]:
    """Return the sockets of all keepers of this home, also of other versions of mesh, and their locks."""
    beginning = beginning_of(environ)
    if not beginning:
        return []
    first = glob.glob(f"{glob.escape(os.path.dirname(beginning))}/{FIRST_SOCKETS}")
    return [*glob.glob(f"{glob.escape(beginning)}*"), *(path for path in first if _is_of_home(path, environ))]


def _is_of_home(path: str, environ: Mapping[str, str]) -> bool:
    """Return True if the environment of the process behind a socket has this HOME."""
    with contextlib.suppress(OSError), ask(path, AskAbout()) as way:
        pid = struct.unpack_from("i", way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
        return b"HOME=" + os.fsencode(environ.get("HOME", "")) in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def other_versions(path: str, environ: Mapping[str, str]) -> list[str]:
    """Return the sockets of keepers of other versions that serve the same commands as the keeper at ``path``."""
    same = path.rpartition("-")[0]
    sockets = [other for other in files(environ) if not other.endswith(LOCK_SUFFIX) and other != path]
    return [
        other
        for other in sockets
        if other.rpartition("-")[0] == same or fnmatch.fnmatch(os.path.basename(other), FIRST_SOCKETS)
    ]


def lock_file(path: str) -> IO[bytes]:
    """Open the lock that belongs to a socket. Raises OSError."""
    return open(os.open(path + LOCK_SUFFIX, os.O_WRONLY | os.O_CREAT, 0o600), "wb")


def has_lock(lock: IO[bytes]) -> bool:
    """Take a lock if it is free, and return True if it is ours."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _private_directory(environ: Mapping[str, str]) -> str:
    """Return a directory that only this user can enter; "" off Linux, or where none is private."""
    directory = environ.get("XDG_RUNTIME_DIR") or f"/tmp/mesh-{os.geteuid()}"
    try:
        found = os.lstat(directory)
    except OSError:
        return ""
    is_private = found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()
    return directory if is_private and sys.platform == "linux" else ""


@cache
def _code() -> bytes:
    """Return the code that a keeper and its commands must have in common."""
    return opening() + b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
