"""The directory of one version of the agent: found, checked and kept in use. It travels with starter.py."""

import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # as PRIVATE_PLACES in base/directories.py
PREFIX = ".agent-"  # of a directory's name; the key follows
LOCK_NAME = "in-use"  # a file in the directory; processes of an agent hold a shared flock(2) on it
LOCK_LIMIT_S = 10.0  # for another process to look whether a version is in use, or to remove it
LOCK_INTERVAL_S = 0.01


def find(key: str, size: int, places: "Tuple[str, ...]" = PLACES) -> str:
    """Return the whole directory of this version, in use from now on; "" if there is none."""
    for place in places:
        path = f"{place}/mesh-{os.geteuid()}/{PREFIX}{key}"
        try:
            if is_private(os.path.dirname(path)) and use(path) and size_of(path) == size:
                return path
        except OSError:  # there is none, or it was removed just now
            pass
    return ""


def is_private(path: str) -> bool:
    """Return True for a directory that is this user's alone. Raises OSError."""
    found = os.lstat(path)
    return found.st_mode & 0o170077 == 0o040000 and found.st_uid == os.geteuid()


def use(path: str) -> bool:
    """Keep a directory from being removed while this process or a child lives. False if it is being removed."""
    lock = os.open(path + "/" + LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOCK_INTERVAL_S)
    if os.fstat(lock).st_ino != os.stat(path + "/" + LOCK_NAME).st_ino:
        os.close(lock)
        return False
    os.utime(lock)  # the order in which unused versions are removed
    return True


def size_of(path: str) -> int:
    """Return the bytes of all modules below a directory."""
    size = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                size += entry.stat().st_size
            elif entry.name != "__pycache__" and entry.is_dir():
                size += size_of(entry.path)
    return size
