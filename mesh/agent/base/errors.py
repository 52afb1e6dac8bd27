"""Failures of the operating system, in words for users."""

from __future__ import annotations

import errno
import os

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class LinkRefused(OSError):
    """A symbolic link in a place that mesh does not write or delete behind."""

    def __init__(self, reason: str, path: str | bytes, hint: str) -> None:
        OSError.__init__(self, errno.ELOOP, reason, path)
        self.hint = hint


def why(error: OSError) -> str:
    """Return an OSError in words, with the path."""
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return text + ": " + os.fsencode(error.filename).decode("utf-8", "replace")


def hint(error: OSError) -> str:
    """Return the next step for a user on whose host mesh cannot write."""
    if isinstance(error, LinkRefused):
        return error.hint
    if error.errno in NO_ROOM:
        return "free some space on the host, or leave more out with ignore: in mesh.yaml"
    return "remote_dir: in cluster.yaml names another place for what mesh keeps on the host"


def no_room(number: int, place: str, needed: int) -> str:
    """Return a full disk in words, with the place, the bytes that are needed at most (0: unknown) and those free."""
    parts = []
    if needed:
        parts.append(f"up to {needed / 1e6:.1f} MB needed")
    if number == errno.ENOSPC:  # a quota has other limits than the disk
        try:
            disk = os.statvfs(place)
            parts.append(f"{disk.f_bavail * disk.f_frsize / 1e6:.1f} MB free")
        except OSError:
            pass
    return ": ".join(part for part in (os.strerror(number), place, ", ".join(parts)) if part)
