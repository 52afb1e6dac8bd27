"""The properties of a path, by which it is compared with the same path on other hosts."""

from __future__ import annotations

import os
import zlib

from mesh.protocol.replies import PathAbsent, PathPresent

ENTRIES_MAX = 10000  # of a directory; larger ones are not compared


def describe(path: str) -> PathAbsent | PathPresent:
    """Return the properties of a path. May block for ever, where the server of a mount is gone."""
    path = os.path.realpath(path)
    if not os.path.exists(path):
        return PathAbsent(there=False)
    kind = "directory" if os.path.isdir(path) else "file" if os.path.isfile(path) else "other"
    reads = os.access(path, os.R_OK | (os.X_OK if kind == "directory" else 0), effective_ids=True)
    with open("/proc/self/mountinfo") as file:
        source, file_system = mount_of(path, file.read())
    holds = ""
    if reads and kind == "directory":
        holds = _entries(path)
    elif kind == "file":
        holds = f"{os.path.getsize(path)} bytes"
    writes = os.access(path, os.W_OK, effective_ids=True)
    return PathPresent(there=True, kind=kind, source=source, type=file_system, reads=reads, writes=writes, holds=holds)


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Return source and type of the file system that a path is on. mounts: the text of /proc/self/mountinfo

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
            if len(names) > ENTRIES_MAX:
                return ""
    return f"{len(names)} entries, {zlib.crc32(bytes(1).join(sorted(names))):08x}"
