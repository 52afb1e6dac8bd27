"""Control groups (version 2): all processes in the group of a run belong to it, whatever became of their parents.

A run has one only where mesh may make a group below its own: as root, or in one that was delegated to it. On other
systemd hosts a login has a scope of its own, session-N.scope, which at least has all processes that came of it.
"""

from __future__ import annotations

import os
import struct

from mesh.agent.base.directories import machine_id
from mesh.agent.base.light import call, contents, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CLONE3 = 435  # asm-generic/unistd.h: the same on every kind of machine
CLONE_INTO_CGROUP = 0x200000000  # linux/sched.h


def own(controller: str = "") -> str:
    """Return the directory of this process's group, "" if there is none: of version 2, or of a version 1 controller.

    It is looked for once, because an agent never changes its group.
    """
    if controller not in _own:
        _own[controller] = of("self", controller)
    return _own[controller]


_own: dict[str, str] = {}


def of(process: int | str, controller: str = "") -> str:
    """Return the directory of the group that a process is in, as ``own`` does."""
    try:
        groups = [line.split(":", 2)[1:] for line in contents(f"/proc/{process}/cgroup").rstrip("\n").split("\n")]
        (path,) = [path for controllers, path in groups if controller in controllers.split(",")]
        for line in contents("/proc/self/mountinfo").rstrip("\n").split("\n"):
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind == "cgroup" and controller in options.split(",") if controller else kind == "cgroup2":
                root, place = before.split()[3:5]
                if root == "/" or path == root or path.startswith(root + "/"):
                    return os.path.normpath(place + "/" + (path[len(root) :] if root != "/" else path))
    except (OSError, ValueError):
        pass
    return ""


def name_of(run: str, node: int) -> str:
    """Return the name of a run's group; hosts that are containers of one machine may share the tree of groups."""
    return f"mesh-{run}-{node}-{machine_id()}"


def make(name: str) -> str:
    """Make a group below our own, and return its directory; "" where that is impossible."""
    place = own()
    path = os.path.join(place, name)
    try:
        if place:
            os.mkdir(path)
            if os.access(os.path.join(path, "cgroup.procs"), os.W_OK):
                return path
            os.rmdir(path)
    except OSError:
        pass
    return ""


def fork(path: str) -> int:
    """Fork as ``os.fork`` does, with the child in a group; "": in the parent's.

    The child is born there where the kernel can do that. Entering a group takes 17 ms and more (RCU).
    """
    child = _clone_into(path) if path else -1
    if child >= 0:
        return child
    child = os.fork()
    if path and not child:
        enter(path)
    return child


def _clone_into(path: str) -> int:
    """Fork into a group and return as fork(2) does; -1 where the kernel is older than 5.7, or does not allow it.

    Python's own care for threads at a fork is left out, so there must be no other thread.
    """
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:  # struct clone_args: flags, exit_signal as the fifth, cgroup as the last of eleven
        about = struct.pack("=11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, directory)
        return call("syscall", CLONE3, about, len(about))
    except OSError:  # a C library without that function
        return -1
    finally:
        os.close(directory)


def enter(path: str) -> None:
    """Move this process into a group."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "wb", buffering=0) as file:
            file.write(b"0")
    except OSError:  # it was removed: the walk over /proc finds this process as well
        pass


def members(path: str) -> set[int]:
    """Return the processes in a group and in those below it, as far as this user can see them."""
    found: set[int] = set()
    for place in _groups(path) if is_populated(path) else ():
        try:
            found.update(map(int, contents(os.path.join(place, "cgroup.procs")).split()))
        except OSError:
            pass
    return found - {0}


def is_populated(path: str) -> bool:
    """Return True unless all in a group and below it has ended, also exiting and hidden processes."""
    try:
        return bool(path) and "populated 1" in contents(os.path.join(path, "cgroup.events"))
    except OSError:
        return False


def kill(path: str) -> None:
    """Kill all in a group and below it in one step, which no fork escapes. Older kernels cannot do that."""
    try:
        with open(os.path.join(path, "cgroup.kill"), "wb", buffering=0) as file:
            file.write(b"1")
    except OSError:  # each of them is killed by itself then
        pass


def remove(path: str) -> None:
    """Remove an empty group, with those below it."""
    try:
        if path:
            os.rmdir(path)
    except OSError:  # there are others in it
        for place in _groups(path):
            try:
                os.rmdir(place)
            except OSError:
                pass


def _groups(path: str) -> Iterable[str]:
    """Return a group and all below it, the deepest first."""
    return [place for place, _, _ in os.walk(path, topdown=False)] if path else []


def scope_of(path: str) -> str:
    """Return the group itself if it is that of one login, else ""."""
    name = os.path.basename(path)
    session, _, kind = name.partition(".")
    return path if kind == "scope" and session[:8] == "session-" and session[8:].isalnum() else ""
