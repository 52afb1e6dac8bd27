"""The runs of other users of a machine: each announces itself by a file in a directory that all of them may write.

The lock lies below the user's home directory, so that it counts for that user alone. An announcement has the run's id,
and its agent holds an flock on it. The reader trusts nothing of another user's file: the user is the file's owner, and
a file that does not look like an announcement is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from .lean import dumps, loads
from .processes import look_at
from .state import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PLACES = ("/run/lock", "/tmp")  # the former is never swept by age
STICKY = 0o1002  # all may write, and nobody may remove the files of others
NAME, DRAFT = "mesh-run-", "mesh-draft-"  # how names of files begin
MOST_FILES = 256  # that are read in one directory
SINCE_MAX_S = 1e11  # seconds since the epoch
MOST_BYTES = 1024  # of one
MOST_LETTERS = 64  # of a run's id


class Announcement:
    """The file of one run, until ``remove`` or the end of this process."""

    def __init__(self, run: str) -> None:
        """Write it. Raises OSError where there is no directory for it."""
        _remove_own_stale()
        told = {"run": run, "since": time.time(), "pid": os.getpid(), "start": _start(os.getpid()), "space": _space()}
        problem = OSError(errno.ENOENT, "no directory that all users may write", " or ".join(PLACES))
        for place in _places():
            name = f"{run}-{os.urandom(8).hex()}"
            draft = os.path.join(place, DRAFT + name)
            try:
                file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except OSError as error:
                problem = error
                continue
            try:
                os.write(file, dumps(told).encode())
                fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(file, 0o644)
                self._path = os.path.join(place, NAME + name)
                os.rename(draft, self._path)  # no reader finds one that is not locked yet
            except OSError as error:
                problem = error
                os.unlink(draft)
                os.close(file)
                continue
            self._file = file
            return
        raise problem

    def remove(self) -> None:
        """Remove the file; may be called again."""
        if self._file >= 0:
            try:
                os.unlink(self._path)
            except OSError:
                pass
            os.close(self._file)
            self._file = -1


def others() -> list[dict[str, Any]]:
    """Return the runs of other users on this machine, each with "user", "run" and "since", the oldest first."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for place in _places():
        for _, owner, told in _files(place):
            if owner != os.geteuid() and told is not None:
                first = found.setdefault((owner, told["run"]), {"run": told["run"], "since": told["since"]})
                first["since"] = min(first["since"], told["since"])
    return [dict(found[key], user=_name(key[0])) for key in sorted(found, key=lambda key: float(found[key]["since"]))]


def has_place() -> bool:
    """Return True if there is a directory for announcements."""
    return any(True for _ in _places())


def _places() -> Iterator[str]:
    for place in PLACES:
        try:
            found = os.stat(place)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_mode & STICKY == STICKY:
            yield place


def _files(place: str) -> Iterator[tuple[str, int, dict[str, Any] | None]]:
    """Yield the path and the owner of each file there, and what it says; None: its agent is gone, or it is nonsense."""
    count = 0
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(NAME) and count < MOST_FILES:
                    count += 1
                    try:
                        yield (entry.path, *_read(entry.path))
                    except OSError:  # it is gone, a link, or cannot be read
                        pass
    except OSError:
        pass


def _read(path: str) -> tuple[int, dict[str, Any] | None]:
    # O_NONBLOCK: nobody writes to a FIFO of that name.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        # Another name of a file may have been made by somebody who does not own it.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > MOST_BYTES:
            return found.st_uid, None
        told = _checked(os.read(file, MOST_BYTES))
        return found.st_uid, told if told is not None and _is_alive(file, told) else None
    finally:
        os.close(file)


def _checked(text: bytes) -> dict[str, Any] | None:
    try:
        told: Any = loads(text)
    except ValueError:
        return None
    if not isinstance(told, dict):
        return None
    run, since = told.get("run"), told.get("since")
    if not isinstance(run, str) or not 0 < len(run) <= MOST_LETTERS or not run.replace("-", "").isalnum():
        return None
    # The client accepts no other numbers (remote/messages.py), and True is one to isinstance.
    is_number = isinstance(since, (int, float)) and not isinstance(since, bool)
    if not run.isascii() or not is_number or not 0 <= float(since or 0) <= SINCE_MAX_S:
        return None
    return told


def _is_alive(file: int, told: dict[str, Any]) -> bool:
    """Return True if the agent holds its lock, and lives as far as we can see; anybody may lock a file to read it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        pass
    if told.get("space") != _space() or type(told.get("pid")) is not int:
        return True  # a process of a container, whose numbers we do not see
    return _start(told["pid"]) in (told.get("start"), -1)


def _start(pid: int) -> int:
    """When a process started, in clock ticks since the machine did; 0: it is gone, -1: it is hidden from us."""
    found = look_at([pid])
    if found:
        return found[0].start
    try:
        os.kill(pid, 0)
    except PermissionError:  # proc(5), hidepid
        return -1
    except (OSError, OverflowError):
        pass
    return 0


def _space() -> str:
    """Names the machine's boot and our PID namespace, in which a pid has its meaning."""
    return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _remove_own_stale() -> None:
    """Remove the files of our own agents that were killed."""
    for place in _places():
        for path, owner, told in list(_files(place)):
            if owner == os.geteuid() and told is None:
                try:
                    os.unlink(path)
                except OSError:
                    pass
