"""The sizes of the workspaces on this host."""

from __future__ import annotations

import os

from mesh.agent.base.directories import Directories
from mesh.protocol.answers import WorkspaceSizes

BLOCK_BYTES = 512  # linux/stat.h: the unit of st_blocks


def workspace_sizes(remote_dir: str) -> WorkspaceSizes:
    """Return the bytes on disk of each workspace by its name. May take long where there are many files."""
    place = Directories(remote_dir, "").workspaces
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    # Names that begin with a dot are records of ours beside a workspace.
    return WorkspaceSizes(sizes={name: size_on_disk(os.path.join(place, name)) for name in names if name[0] != "."})


def size_on_disk(path: str) -> int:
    """Return the bytes that a directory takes with all in it; follow no links, and skip what vanishes meanwhile."""
    total = 0
    try:
        entries = list(os.scandir(path))
    except OSError:
        return 0
    for entry in entries:
        try:
            total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
            if entry.is_dir(follow_symlinks=False):
                total += size_on_disk(entry.path)
        except OSError:
            pass
    return total
