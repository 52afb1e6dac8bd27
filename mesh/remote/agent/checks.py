"""What a host can tell about itself before a run, without leaving anything there."""

from __future__ import annotations

import os
import pwd
import sys
import time

from .processes import find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def facts(remote_dir: str) -> dict[str, Any]:
    """Python, shell, user, time, and the place where mesh keeps its files.

    ``problem`` is why nothing can be written there, or ""; disk sizes are in bytes, for users without privileges.
    """
    place = os.path.expanduser(remote_dir)
    while not os.path.isdir(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    disk = os.statvfs(place)
    return {
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "bash": _has_bash(),
        "user": user_name(),
        "time": time.time(),
        "place": place,
        "problem": _why_not_writable(place),
        "disk_free": disk.f_bavail * disk.f_frsize,
        "disk_total": disk.f_blocks * disk.f_frsize,
        # Some file systems have no fixed number of them, and say 0 of 0.
        "inodes_free": disk.f_favail if disk.f_files else -1,
    }


def user_name() -> str:
    """Who we are; a number where the host has no name for it."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _has_bash() -> bool:
    try:
        find_program(b"bash", os.environb.get(b"PATH", os.defpath.encode()))
    except OSError:
        return False
    return True


def _why_not_writable(place: str) -> str:
    """Trying is the only way to know, with read-only and remote file systems."""
    path = os.path.join(place, f".mesh-check-{os.getpid()}")
    try:
        with open(path, "xb") as file:
            os.unlink(path)
            file.write(b"mesh")
    except OSError as error:
        return error.strerror or str(error)
    return ""
