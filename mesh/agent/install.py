"""Unpacks the agent into a private directory of this machine, from where all later runs of this version import it.

While this runs, the agent's modules come from the zip, in memory. Where no directory can be had, they go on to.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
import zipfile

from mesh.agent.version import LOCK_NAME, PLACES, PREFIX, is_private, size_of, use

KEPT_VERSIONS = 3  # unused ones that stay, the newest: a host may have clients with different versions of mesh
DRAFT_PREFIX = ".new-agent-"
DRAFT_AGE_LIMIT_S = 3600.0  # an older draft that no process uses is that of a killed process


def install(key: str, size: int) -> str:
    """Unpack the zip that this module came from; return its directory, in use. "" where there is no room for it.

    key, size: as for ``start``
    """
    package = sys.modules[__name__.partition(".")[0]]
    archive = str(package.__path__[0]).rpartition("/")[0]
    path = ""
    for public in PLACES:
        place = f"{public}/mesh-{os.geteuid()}"
        try:
            if not os.path.isdir(place):
                os.mkdir(place, 0o700)
            if not is_private(place):
                continue
            path = _unpack(archive, f"{place}/{PREFIX}{key}", size)
            _remove_unused(place, key)
            break
        except OSError:  # the disk is full, or read-only
            continue
    if path:  # what is imported from now on comes from files, which are compiled once
        for name in [name for name in sys.modules if name.partition(".")[0] == package.__name__]:
            del sys.modules[name]
    return path


def _unpack(archive: str, path: str, size: int) -> str:
    """Unpack beside the path, then rename. Raises OSError."""
    place = os.path.dirname(path)
    draft = f"{place}/{DRAFT_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(draft, 0o700)
    try:
        os.close(os.open(f"{draft}/{LOCK_NAME}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        use(draft)
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(draft)
        if os.path.isdir(path) and not _is_whole(path, size):  # a cleaner of /tmp has removed files by their age
            os.rename(path, f"{draft}/damaged")
            shutil.rmtree(f"{draft}/damaged", ignore_errors=True)
        try:
            os.rename(draft, path)
        except OSError:  # another agent has been faster
            if not use(path) or size_of(path) != size:
                raise
        return path
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_whole(path: str, size: int) -> bool:
    return os.path.exists(f"{path}/{LOCK_NAME}") and size_of(path) == size


def _remove_unused(place: str, key: str) -> None:
    """Remove versions that no agent uses, but for the newest ones, and drafts of processes that were killed."""
    versions: list[tuple[float, str]] = []
    for name in os.listdir(place):
        path = f"{place}/{name}"
        try:
            if name.startswith(PREFIX) and name != PREFIX + key:
                if not _is_used(path):
                    versions.append((os.stat(f"{path}/{LOCK_NAME}").st_mtime, path))
            elif name.startswith(DRAFT_PREFIX) and _is_left(path):
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # it is not complete yet, or somebody else removes it
            continue
    for _, path in sorted(versions)[:-KEPT_VERSIONS]:
        _remove(path)


def _is_left(draft: str) -> bool:
    """Return True for the draft of a process that was killed. Raises OSError.

    A young one may be that of a process which has not locked it yet.
    """
    try:
        made = os.stat(f"{draft}/{LOCK_NAME}").st_mtime
    except FileNotFoundError:
        return time.time() - os.stat(draft).st_mtime > DRAFT_AGE_LIMIT_S
    return time.time() - made > DRAFT_AGE_LIMIT_S and not _is_used(draft)


def _is_used(path: str) -> bool:
    lock = os.open(f"{path}/{LOCK_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _remove(path: str) -> None:
    """Remove a version, unless an agent has begun to use it."""
    lock = os.open(f"{path}/{LOCK_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft = f"{os.path.dirname(path)}/{DRAFT_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        os.rename(path, draft)  # at once: nobody finds a part of it
        shutil.rmtree(draft, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(lock)
