"""The ranks of this node's agents, for a signal that all of them get."""

from __future__ import annotations

import os

AGENT_NAME = b"mesh-agent"
RANK_MARKS = (b"RANK=", b"MESH_RUN_ID=")  # variables that begin so, which each rank has


def signal_ranks(number: int, ancestor: int) -> int:
    """Send a signal to each rank whose agent descends from a process; return how many there were."""
    parents, names = processes()
    count = 0
    for pid, parent in parents.items():
        if names.get(parent) == AGENT_NAME and descends(parent, ancestor, parents) and _is_rank(pid):
            try:
                os.kill(pid, number)
                count += 1
            except OSError:  # it has just ended
                pass
    return count


def processes() -> tuple[dict[int, int], dict[int, bytes]]:
    """Return the parent and the name of each process."""
    parents: dict[int, int] = {}
    names: dict[int, bytes] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # a name may hold parentheses
                    name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            except OSError:
                continue
            parents[int(entry)], names[int(entry)] = int(rest.split()[1]), name
    return parents, names


def descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    """Return True if a process is another one, or was started below it. parents: by process"""
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def _is_rank(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return all(any(one.startswith(mark) for one in variables) for mark in RANK_MARKS)
