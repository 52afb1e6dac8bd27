"""Memory of a host, and the limit of the container that the agent is in."""

from __future__ import annotations

import os

ROOT = "/sys/fs/cgroup"
# Files with a control group's limit, use and statistics, and the name of the statistic for reclaimable cache.
V2 = ("memory.max", "memory.current", "memory.stat", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")


class Memory:
    """Memory in bytes: free for new processes, in total, and the limit of the container (0: no limit)."""

    def __init__(self, free: int, total: int, limit: int) -> None:
        self.free, self.total, self.limit = free, total, limit


def read_memory(root: str = ROOT, own: str = "/proc/self/cgroup", info: str = "/proc/meminfo") -> Memory:
    """Return the memory of this host, or of the container that it is. root, own, info: where the kernel shows them"""
    found = {}
    with open(info) as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    free, total, limit = found.get("MemAvailable", found["MemFree"]), found["MemTotal"], 0
    for directory, names in _groups(root, own):
        own_limit = _number(os.path.join(directory, names[0]))
        if not 0 < own_limit < total:
            continue
        used = _number(os.path.join(directory, names[1])) - _statistic(os.path.join(directory, names[2]), names[3])
        total = limit = own_limit
        free = min(free, max(0, own_limit - used))
    return Memory(free, total, limit)


def shm_total() -> int:
    """Return the bytes of /dev/shm; -1 if there is none."""
    if not os.path.ismount("/dev/shm"):
        return -1
    found = os.statvfs("/dev/shm")
    return found.f_blocks * found.f_frsize


def _groups(root: str, own: str) -> list[tuple[str, tuple[str, str, str, str]]]:
    """Return the directories of this process's control groups and of those above, the root's first."""
    try:
        with open(own) as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            base, names = root, V2
        elif "memory" in kinds.split(","):
            base, names = os.path.join(root, "memory"), V1
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        found += [(os.path.join(base, *parts[:count]), names) for count in range(len(parts) + 1)]
    return found


def _number(path: str) -> int:
    """Return the number in a file; 0 if there is none, as in "max"."""
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _statistic(path: str, word: str) -> int:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == word:
                    return int(value)
    except (OSError, ValueError):
        pass
    return 0
