"""What a path is on this host, so that it can be compared with the same path on others."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ENTRIES = 10000  # of a directory; larger ones are not compared


def describe(path: str) -> dict[str, Any]:
    """What is there. May block for ever, where the server of a mount is gone.

    "there": False, or with "kind" ("directory", "file" or "other"), "type" and "source" of its file system, "reads",
    "writes" (whether we may), and "holds", which is equal where the contents look the same; "" if that is not known.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        return {"there": False}
    kind = "directory" if os.path.isdir(path) else "file" if os.path.isfile(path) else "other"
    reads = os.access(path, os.R_OK | (os.X_OK if kind == "directory" else 0), effective_ids=True)
    with open("/proc/self/mountinfo") as file:
        source, file_system = mount_of(path, file.read())
    holds = ""
    if reads and kind == "directory":
        holds = _entries(path)
    elif kind == "file":
        holds = f"{os.path.getsize(path)} bytes"
    return {
        "there": True,
        "kind": kind,
        "source": source,
        "type": file_system,
        "reads": reads,
        "writes": os.access(path, os.W_OK, effective_ids=True),
        "holds": holds,
    }


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Source and type of the file system that a path is on; mounts: what /proc/self/mountinfo says.

    >>> mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\\n2 1 0:9 / /nfs\\\\040a rw shared:1 - nfs4 server:/a rw\\n"
    >>> mount_of("/nfs a/data", mounts), mount_of("/nfs abc", mounts)
    (('server:/a', 'nfs4'), ('/dev/sda1', 'ext4'))
    """
    best, found = "", ("", "")
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        place = left.split()[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = path == place or path.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # the last one lies over those before it
            file_system, source = right.split(" ")[:2]
            best, found = place, (source, file_system)
    return found


def _entries(path: str) -> str:
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(os.fsencode(entry.name))
            if len(names) > MOST_ENTRIES:
                return ""
    return f"{len(names)} entries, {zlib.crc32(bytes(1).join(sorted(names))):08x}"
