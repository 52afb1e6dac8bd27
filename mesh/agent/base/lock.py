"""The lock of the machine, which one run at a time holds, and its owner."""

from __future__ import annotations

import fcntl
import os
import time

from mesh.agent.base.directories import machine_directory
from mesh.protocol.coding import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK_NAME = "lock"  # of the file in the machine's directory
OWNER_BYTES = 1 << 20
PROBES, PROBE_INTERVAL_S = 3, 0.02  # of ``lock_owner``
TAKE_LIMIT_S = 1.0  # taking the lock and writing the owner are two steps, far shorter than this
TAKE_INTERVAL_S = 0.01  # between two attempts


class Busy(Exception):
    """The failure to take the lock because another run has it; ``owner`` is the object that it wrote there."""

    def __init__(self, owner: dict[str, object]) -> None:
        Exception.__init__(self, "busy")
        self.owner = owner


class MachineLock:
    """The lock of the machine, as one run takes it.

    Agents of the same run share it: a cluster may name one machine twice. The kernel drops the lock with the last of
    them, however it ends, so there is no stale one to judge.
    """

    def __init__(self, directory: str) -> None:
        """directory: of the machine"""
        self._path = os.path.join(directory, LOCK_NAME)
        self._file = -1

    def take(self, owner: Mapping[str, object]) -> int:
        """Take the lock until ``release`` or the end of this process. Raises Busy and OSError.

        owner: written into the file; it has "run"
        Returns the descriptor, always the same: a process with a copy of it has the lock too.
        """
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + TAKE_LIMIT_S
        while not self._try(owner):
            if time.monotonic() > deadline:
                raise Busy(_owner_in(self._file))
            time.sleep(TAKE_INTERVAL_S)
        return self._file

    def change_owner(self, owner: Mapping[str, object]) -> None:
        """Write another description of the owner into the lock that this run holds. Raises OSError."""
        if self._file >= 0:
            # It is written at once, so that there is always something to be read; a longer text stands behind spaces.
            size = os.fstat(self._file).st_size
            os.pwrite(self._file, dumps(owner).encode().ljust(size), 0)

    def release(self) -> None:
        """Give the lock up, also for processes that have a copy of its descriptor."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _try(self, owner: Mapping[str, object]) -> bool:
        """Try to take it. False if another process is just now changing the lock or its owner. Raises Busy."""
        if _flock(self._file, fcntl.LOCK_EX):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, dumps(owner).encode(), 0)
            return _flock(self._file, fcntl.LOCK_SH)
        if not _flock(self._file, fcntl.LOCK_SH):
            return False
        holder = _owner_in(self._file)
        if holder.get("run") == owner["run"]:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        if holder:
            raise Busy(holder)
        return False


def lock_owner(remote_dir: str) -> dict[str, object] | None:
    """Return the owner of the machine's lock; None if no run has it.

    For an instant this process has the lock. A run that wants it then waits, and so do other readers.
    """
    try:
        lock = os.open(os.path.join(machine_directory(remote_dir), LOCK_NAME), os.O_RDWR)
    except OSError:  # there has been no run
        return None
    try:
        for probe in range(PROBES):
            time.sleep(PROBE_INTERVAL_S if probe else 0.0)
            if _flock(lock, fcntl.LOCK_EX):
                return None
        return _owner_in(lock)
    finally:
        os.close(lock)


def _flock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner_in(lock: int) -> dict[str, object]:
    try:
        owner = loads(os.pread(lock, OWNER_BYTES, 0).strip())
    except ValueError:
        owner = {}
    return owner if isinstance(owner, dict) else {}
