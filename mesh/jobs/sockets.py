"""The steward's Unix socket: where it is, and who may connect."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Mapping

from mesh.core.errors import MeshError
from mesh.jobs.place import StorePlace

PATH_BYTES_MAX = 107  # unix(7)
CONNECT_TIMEOUT_S = 5.0


def socket_path(environ: Mapping[str, str], place: StorePlace) -> str:
    """Return the path of the socket of a store's steward, in a directory that only this user can enter.

    Raises MeshError if there is none.
    """
    where = place.url or os.path.realpath(place.directory)
    name = f".mesh-serve-{hashlib.blake2b(os.fsencode(where), digest_size=8).hexdigest()}.sock"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(os.fsencode(f"{runtime}/{name}")) <= PATH_BYTES_MAX and _is_private(runtime):
        return f"{runtime}/{name}"
    directory = f"/tmp/mesh-{os.geteuid()}"
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise MeshError(f"{directory}: cannot be made ({error.strerror})") from error
    if not _is_private(directory):
        hint = f"ls -ld {directory}; it must be a directory of yours with mode 0700"
        raise MeshError(f"{directory}: other users can enter it", hint=hint)
    return f"{directory}/{name}"


def listen(path: str) -> socket.socket:
    """Listen at a path that only this user may use. The caller holds the lock of the store. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def connect(path: str, timeout: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """Connect to a steward of this user. Raises OSError if none listens."""
    way = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    way.settimeout(timeout)
    try:
        way.connect(path)
        if peer(way)[1] != os.geteuid():
            raise PermissionError(f"{path}: another user listens there")
    except OSError:
        way.close()
        raise
    return way


def peer(way: socket.socket) -> tuple[int, int]:
    """Return the process and user at the other end; process 0 where the system has no way to ask."""
    if sys.platform == "linux":
        found = way.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", found)
        return pid, uid
    return 0, os.geteuid()  # macOS: the directory and the mode of the socket keep others out


def _is_private(directory: str) -> bool:
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.geteuid()
