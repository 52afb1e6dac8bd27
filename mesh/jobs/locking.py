"""The lock of a store: one steward at a time on a machine, and none before the children of the last one are gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from mesh.core.errors import MeshError
from mesh.core.outcome import EXIT_BUSY
from mesh.jobs.place import StorePlace

LOCK_FILE = "serve.lock"
CHILDREN_END_S = 30.0  # for the children of a dead steward to be killed by the kernel
POLL_S = 0.05


class AlreadyServed(MeshError):
    """Another steward looks after the store."""

    exit_code = EXIT_BUSY


def take_lock(place: StorePlace, patience: float = CHILDREN_END_S) -> int:
    """Return a descriptor that holds the store's lock. Children inherit it, so that it is free once all are gone.

    Raises AlreadyServed, naming the process that has it.
    """
    path = place.directory / LOCK_FILE
    try:
        os.makedirs(place.directory, mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MeshError(f"{path}: cannot be made ({error.strerror})") from error
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            if _is_alive(holder) or time.monotonic() > deadline:
                os.close(lock)
                message = f"{place.name}: another steward looks after it (pid {holder or 'unknown'})"
                raise AlreadyServed(message, hint="mesh serve status") from None
            time.sleep(POLL_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _is_alive(pid: str) -> bool:
    """Return True for a process that has not ended."""
    if not pid.isdigit():
        return False
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
        return state != ["Z"]
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(int(pid), 0)
    except OSError:
        return False
    return True
