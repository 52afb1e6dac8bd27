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

from mesh.agent.base.directories import boot_id
from mesh.agent.base.light import dumps, loads
from mesh.agent.process.processes import look_at
from mesh.protocol.answers import OtherUser
from mesh.protocol.kinds import PID, SIGNED, TEXT, TIME, Wrong, as_it_is, text
from mesh.protocol.records import Record, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = ("/run/lock", "/tmp")  # the former is never swept by age
STICKY_MODE = 0o1002  # all may write, and no user may remove the files of others
NAME, DRAFT = "mesh-run-", "mesh-draft-"  # how names of files begin
FILES_MAX = 256  # that are read in one directory
FILE_BYTES = 1024
RUN_CHARACTERS = 64
HIDDEN, GONE = -1, 0  # the start of a process that this user may not see; of none


class _Announced(Record):
    """The content of an announcement."""

    run: str = field(text(RUN_CHARACTERS))
    since: float = field(TIME)
    pid: int = field(PID)
    start: int = field(SIGNED)  # clock ticks since boot
    space: str = field(TEXT)

    def verify(self) -> None:
        if not self.run.isascii() or not self.run.replace("-", "").isalnum():
            raise Wrong("run: expected letters and digits")


class Announcement:
    """The file of one run, until ``remove`` or the end of this process."""

    def __init__(self, run: str) -> None:
        """Write it. Raises OSError where there is no directory for it."""
        _remove_stale()
        own, start = os.getpid(), _start(os.getpid())
        announced = _Announced(run=run, since=time.time(), pid=own, start=start, space=_space())
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
                os.write(file, dumps(announced.to_json()).encode())
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


def others() -> list[OtherUser]:
    """Return the runs of other users on this machine, the oldest first."""
    since: dict[tuple[int, str], float] = {}
    for place in _places():
        for _, owner, announced in _files(place):
            if owner != os.geteuid() and announced is not None:
                key = owner, announced.run
                since[key] = min(announced.since, since.get(key, announced.since))
    return [OtherUser(user=_name(key[0]), run=key[1], since=since[key]) for key in sorted(since, key=since.__getitem__)]


def has_place() -> bool:
    """Return True if there is a directory for announcements."""
    return any(True for _ in _places())


def _places() -> Iterator[str]:
    for place in PLACES:
        try:
            found = os.stat(place)
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_mode & STICKY_MODE == STICKY_MODE:
            yield place


def _files(place: str) -> Iterator[tuple[str, int, _Announced | None]]:
    """Yield path, owner and content of each file there; None: its agent is gone, or it is no announcement."""
    count = 0
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.name.startswith(NAME) and count < FILES_MAX:
                    count += 1
                    try:
                        yield (entry.path, *_read(entry.path))
                    except OSError:  # it is gone, a link, or cannot be read
                        pass
    except OSError:
        pass


def _read(path: str) -> tuple[int, _Announced | None]:
    # O_NONBLOCK: no process writes to a FIFO of that name.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        # Another name of a file may have been made by a user who does not own it.
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > FILE_BYTES:
            return found.st_uid, None
        try:
            announced = _Announced.take(loads(os.read(file, FILE_BYTES)), as_it_is)
        except (ValueError, Wrong):
            return found.st_uid, None
        return found.st_uid, announced if _is_alive(file, announced) else None
    finally:
        os.close(file)


def _is_alive(file: int, announced: _Announced) -> bool:
    """Return True if the agent holds its lock, and lives as far as can be seen; any reader may lock the file too."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        pass
    if announced.space != _space():
        return True  # a process of a container, whose pid has another meaning here
    return _start(announced.pid) in (announced.start, HIDDEN)


def _start(pid: int) -> int:
    """Return the start of a process in clock ticks since boot, HIDDEN or GONE."""
    found = look_at([pid])
    if found:
        return found[0].start
    try:
        os.kill(pid, 0)
    except PermissionError:  # proc(5), hidepid
        return HIDDEN
    except (OSError, OverflowError):
        pass
    return GONE


def _space() -> str:
    """Return the machine's boot and this PID namespace, in which a pid has its meaning."""
    return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _remove_stale() -> None:
    """Remove the files of this user's agents that were killed."""
    for place in _places():
        for path, owner, announced in list(_files(place)):
            if owner == os.geteuid() and announced is None:
                try:
                    os.unlink(path)
                except OSError:
                    pass
