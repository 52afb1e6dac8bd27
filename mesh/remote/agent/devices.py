"""Accelerators: who holds them before a run, and whether they are free again after it."""

from __future__ import annotations

import errno
import os
import time

from . import doors
from .lean import signal
from .processes import Process, all_processes, run_of, send_signal, variable_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

LOCKFILE = "/tmp/libtpu_lockfile"  # libtpu makes it, and leaves it there when it is killed
SHORTLY = 5.0  # seconds for a device that somebody is about to let go of
NUMBERED = "[0-9]*"  # the end of the patterns that a cluster has by default
LOOK = 0.05  # seconds between two looks
# Services that only look after the devices, as the kernel shows their names: 15 characters.
WATCHERS = frozenset(("nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nvtop", "Xorg"))


def find(patterns: Sequence[str]) -> list[str]:
    """The devices that are there, by shell patterns."""
    return sorted({path for pattern in patterns for path in _matching(pattern)})


def _matching(pattern: str) -> list[str]:
    if not any(letter in pattern for letter in "*?["):
        return [pattern] if os.path.lexists(pattern) else []
    place, _, name = pattern.rpartition("/")
    beginning = name[: -len(NUMBERED)]
    if not name.endswith(NUMBERED) or any(letter in place + beginning for letter in "*?["):
        import glob  # takes longer to import than all devices to find

        return glob.glob(pattern)
    try:
        here = os.listdir(place or "/")
    except OSError:
        return []
    numbers = tuple(beginning + digit for digit in "0123456789")
    return [f"{place}/{entry}" for entry in here if entry.startswith(numbers)]


def holders(paths: Sequence[str]) -> dict[int, list[str]]:
    """Who has which of these files open, by pid, as far as we may see: our own, or as root everybody's."""
    wanted = set(paths)
    found: dict[int, list[str]] = {}
    for name in os.listdir("/proc") if wanted else []:
        if name.isdigit():
            held = _open_files(name) & wanted
            if held:
                found[int(name)] = sorted(held)
    return found


def _open_files(pid: str) -> set[str]:
    place = f"/proc/{pid}/fd"
    files = set()
    try:
        for descriptor in os.listdir(place):
            files.add(os.readlink(os.path.join(place, descriptor)))
    except OSError:  # it has ended, or is not ours
        pass
    return files


def blocked(paths: Sequence[str]) -> list[str]:
    """Those that cannot be opened just now, as somebody has them for himself."""
    found = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EAGAIN):
                found.append(path)
    return found


def claim(patterns: Sequence[str], evict: bool, grace: float) -> dict[str, Any]:
    """Before a run: see that nobody holds a device. Takes long if somebody does.

    What earlier runs of mesh have left is ended; with evict also other processes of this user, after grace seconds.
    Returns {"ended": lines}, or "error" and "hint" with the holders' names.
    """
    paths = find(patterns)
    in_the_way, live = _look(paths)
    ended = {process.pid for process in in_the_way if _may_end(process, live, evict)}
    told = [f"ended {process.told()}, which held a device" for process in in_the_way if process.pid in ended]
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, SHORTLY)):
        deadline = time.monotonic() + patience
        victims = [process for process in in_the_way if process.pid in ended]
        if victims:
            send_signal(victims, number)
        while victims and time.monotonic() < deadline:
            time.sleep(LOOK)
            in_the_way, _ = _look(paths)
            victims = [process for process in in_the_way if process.pid in ended]
    if in_the_way:
        return _named(in_the_way, holders(paths), live)
    deadline = time.monotonic() + SHORTLY
    while blocked(paths):
        if time.monotonic() > deadline:
            return _hidden(blocked(paths))
        time.sleep(LOOK)
    _remove_lockfile(paths)
    return {"ended": told}


def in_the_way(patterns: Sequence[str]) -> dict[str, Any]:
    """Who would keep a run from its devices, as ``claim`` tells it; {} if nobody does. Ends and waits for nothing."""
    paths = find(patterns)
    found, live = _look(paths)
    if not found:
        # While a run is on, it may be about to open them, and we would be in its way.
        busy = [] if not paths or doors.runs() else blocked(paths)
        return _hidden(busy) if busy else {}
    found = [process for process in found if not _may_end(process, live, evict=False)]
    return _named(found, holders(paths), live) if found else {}


def _hidden(paths: Sequence[str]) -> dict[str, Any]:
    hint = "another user's, or one in a container: `sudo fuser -v` on the host names it"
    return {"error": f"{', '.join(paths)} is in use by a process that we may not see", "hint": hint}


def _look(paths: Sequence[str]) -> tuple[list[Process], set[str]]:
    """The processes that hold a device, and the runs of mesh that live."""
    held = holders(paths)
    if not held:
        return [], set()
    found = [process for process in all_processes() if process.pid in held and process.name not in WATCHERS]
    return found, {told["run"] for told in doors.runs()}


def _may_end(process: Process, live: set[str], evict: bool) -> bool:
    run = run_of(process.pid)
    if run in live:  # `mesh stop` is for them
        return False
    try:
        is_ours = os.stat(f"/proc/{process.pid}").st_uid == os.geteuid()
    except OSError:
        return False
    left_behind = bool(run) and not variable_of(process.pid, b"MESH_SETUP")
    return is_ours and (evict or left_behind)


def _named(found: Sequence[Process], held: dict[int, list[str]], live: set[str]) -> dict[str, Any]:
    lines, hints = [], {"wait for it, or end it; --evict ends processes of your own user": None}
    for process in found:
        run = run_of(process.pid)
        if run in live:
            hints[f"`mesh stop {run}` ends that run"] = None
        devices = ", ".join(held.get(process.pid, ["a device"]))
        lines.append(f"{devices} is held by {process.told()}, for {told_age(process.age())}")
    return {"error": "\n".join(lines), "hint": "; ".join(hints)}


def told_age(seconds: float) -> str:
    """
    >>> told_age(59), told_age(3 * 3600)
    ('59 s', '3 h')
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _remove_lockfile(paths: Sequence[str]) -> None:
    """libtpu of another user would stumble over it; nobody holds a device, so that it is a leftover."""
    try:
        if paths and not holders([LOCKFILE]):
            os.unlink(LOCKFILE)
    except OSError:  # there is none, or it is somebody else's
        pass


def wait_until_free(paths: Sequence[str], patience: float) -> list[str]:
    """After a run: wait until devices can be opened again; what then still cannot, and who holds it, in lines."""
    deadline = time.monotonic() + patience
    while True:
        left = blocked(paths)
        if not left:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK)
    held = holders(left)
    culprits = {process.pid: process.told() for process in all_processes() if process.pid in held}
    lines = []
    for path in left:
        who = [told for pid, told in culprits.items() if path in held[pid]]
        lines.append(f"{path} cannot be opened: held by {', '.join(who) or 'a process that we may not see'}")
    return lines
