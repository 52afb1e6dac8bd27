"""Accelerators: their holders before a run, and the wait until they are free after it."""

from __future__ import annotations

import errno
import os
import time

from mesh.agent.base.light import signal
from mesh.agent.control import requests
from mesh.agent.process.processes import Process, all_processes, run_of, send_signal, variable_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.base.background import Answer

LOCKFILE = "/tmp/libtpu_lockfile"  # libtpu makes it, and leaves it there when it is killed
RELEASE_LIMIT_S = 5.0  # for a process that is about to close a device
NUMBERED = "[0-9]*"  # the end of the patterns that a cluster has by default
POLL_S = 0.05
# Services that only look after the devices, as the kernel shows their names: 15 characters.
WATCHERS = frozenset(("nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-smi", "nvtop", "Xorg"))


def find(patterns: Sequence[str]) -> list[str]:
    """Return the devices that are there, by shell patterns."""
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
    """Return the files among these that each process has open, by pid: processes of this user, or as root all."""
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
    """Return the devices that cannot be opened now, because a process has exclusive use of them."""
    found = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY))
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EAGAIN):
                found.append(path)
    return found


def claim(patterns: Sequence[str], evict: bool, grace: float) -> Answer:
    """Check before a run that no process holds a device. Takes long if one does.

    Processes that earlier runs of mesh left are ended; with evict also others of this user, after grace seconds.
    Returns {"ended": lines}, or "error" and "hint" with the holders' names.
    """
    paths = find(patterns)
    in_the_way, live = _look(paths)
    ended = {process.pid for process in in_the_way if _may_end(process, live, evict)}
    told = [f"ended {process.described()}, which held a device" for process in in_the_way if process.pid in ended]
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, RELEASE_LIMIT_S)):
        deadline = time.monotonic() + patience
        victims = [process for process in in_the_way if process.pid in ended]
        if victims:
            send_signal(victims, number)
        while victims and time.monotonic() < deadline:
            time.sleep(POLL_S)
            in_the_way, _ = _look(paths)
            victims = [process for process in in_the_way if process.pid in ended]
    if in_the_way:
        return _named(in_the_way, holders(paths), live)
    deadline = time.monotonic() + RELEASE_LIMIT_S
    while blocked(paths):
        if time.monotonic() > deadline:
            return _hidden(blocked(paths))
        time.sleep(POLL_S)
    _remove_lockfile(paths)
    return {"ended": told}


def in_the_way(patterns: Sequence[str]) -> Answer:
    """Return the holders that keep a run from its devices, as ``claim`` does; {} if there are none. Ends no process."""
    paths = find(patterns)
    found, live = _look(paths)
    if not found:
        # A run that is on may be about to open them, and opening them here would be in its way.
        busy = [] if not paths or requests.runs() else blocked(paths)
        return _hidden(busy) if busy else {}
    found = [process for process in found if not _may_end(process, live, evict=False)]
    return _named(found, holders(paths), live) if found else {}


def _hidden(paths: Sequence[str]) -> Answer:
    hint = "another user's, or one in a container: `sudo fuser -v` on the host names it"
    return {"error": f"{', '.join(paths)} is in use by a process that we may not see", "hint": hint}


def _look(paths: Sequence[str]) -> tuple[list[Process], set[str]]:
    """Return the processes that hold a device, and the runs of mesh that are on."""
    held = holders(paths)
    if not held:
        return [], set()
    found = [process for process in all_processes() if process.pid in held and process.name not in WATCHERS]
    return found, {one.run for one in requests.runs()}


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


def _named(found: Sequence[Process], held: dict[int, list[str]], live: set[str]) -> Answer:
    lines, hints = [], {"wait for it, or end it; --evict ends processes of your own user": None}
    for process in found:
        run = run_of(process.pid)
        if run in live:
            hints[f"`mesh stop {run}` ends that run"] = None
        devices = ", ".join(held.get(process.pid, ["a device"]))
        lines.append(f"{devices} is held by {process.described()}, for {told_age(process.age())}")
    return {"error": "\n".join(lines), "hint": "; ".join(hints)}


def told_age(seconds: float) -> str:
    """Return a span of time in one unit.

    >>> told_age(59), told_age(3 * 3600)
    ('59 s', '3 h')
    """
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _remove_lockfile(paths: Sequence[str]) -> None:
    """Remove a left lock file of libtpu, which keeps another user from starting. No process holds a device then."""
    try:
        if paths and not holders([LOCKFILE]):
            os.unlink(LOCKFILE)
    except OSError:  # there is none, or it is another user's
        pass


def wait_until_free(paths: Sequence[str], patience: float) -> list[str]:
    """Wait after a run until devices can be opened. Return a line with the holder for each one that cannot."""
    deadline = time.monotonic() + patience
    while True:
        left = blocked(paths)
        if not left:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    held = holders(left)
    culprits = {process.pid: process.described() for process in all_processes() if process.pid in held}
    lines = []
    for path in left:
        who = [told for pid, told in culprits.items() if path in held[pid]]
        lines.append(f"{path} cannot be opened: held by {', '.join(who) or 'a process that we may not see'}")
    return lines
