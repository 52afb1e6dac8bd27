"""Commands that wait for the same pods. Each holds a shared lock on one file of the state directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from types import TracebackType

from mesh.core.errors import MeshError
from mesh.hosts.kubernetes.records import Place, PodsRecords

TRIES, TRY_INTERVAL_S = 3, 0.05  # to lock a file alone: a look of ``are_waited_for`` locks it for a moment
LEFT = "-"  # begins the line of a root whose maker has left it to the commands that wait


class Waiters:
    """The commands that make or wait for the pods of one place. A context manager: within it, this command is one.

    The file has a line for each command that came, with the UID of its root. It is emptied once no command waits.
    A file system without locks has every command take itself for the only one.
    """

    def __init__(self, records: PodsRecords, place: Place) -> None:
        self._path = records.lock_path(place)
        self._descriptor = -1
        self._is_alone = False

    def __enter__(self) -> Waiters:
        """Wait until no command deletes the pods, and join those that wait. Raises MeshError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MeshError(f"cannot write {self._path}: {error.strerror}") from error
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            if self.is_alone():
                os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def note(self, uid: str) -> None:
        """Note that this command waits for the pods of a root."""
        self._add(f"{uid}\n")

    def leave(self, uid: str) -> None:
        """Note that the last command that waits has to delete the root, as its maker gives up."""
        self._add(f"{LEFT}{uid}\n")

    def is_alone(self) -> bool:
        """Return True if no other command waits now; none can come then before the end of this one's wait.

        Otherwise the others count this command no more.
        """
        for _ in range(TRIES):
            self._is_alone = self._is_alone or locks_alone(self._descriptor) is not False
            if self._is_alone:
                break
            time.sleep(TRY_INTERVAL_S)
        return self._is_alone

    def is_left(self, uid: str) -> bool:
        """Return True if the maker of a root has left it to the others."""
        return f"{LEFT}{uid}" in self._lines()

    def is_shared(self, uid: str) -> bool:
        """Return True if other commands have waited for the pods of a root as well."""
        return self._lines().count(uid) > 1

    def _add(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line.encode())

    def _lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self._path.read_text().split()
        return []


def locks_alone(descriptor: int) -> bool | None:
    """Lock a file alone; return False if others have it locked, and None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def are_waited_for(records: PodsRecords, place: Place) -> bool | None:
    """Return True if a command makes or waits for the pods of a place now; None where that is unknown."""
    try:
        descriptor = os.open(records.lock_path(place), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = locks_alone(descriptor)
    finally:
        os.close(descriptor)
    return None if found is None else not found
