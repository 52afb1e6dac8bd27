"""Control groups (version 2): what is in the group of a run belongs to it, whatever became of its parents.

Only where we may make a group below our own (as root, or in one that was delegated to us). On other systemd hosts a
login has a scope of its own, session-N.scope, which at least tells what has come of it.
"""

from __future__ import annotations

import os
import struct

from .lean import call, contents, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CLONE3 = 435  # asm-generic/unistd.h: the same on every kind of machine
CLONE_INTO_CGROUP = 0x200000000  # linux/sched.h


def own(controller: str = "") -> str:
    """The directory of the group that we are in, "" if there is none: of version 2, or of a controller of version 1.

    Looked for once: an agent goes into no other one, nor do its children that ask.
    """
    if controller not in _own:
        _own[controller] = of("self", controller)
    return _own[controller]


_own: dict[str, str] = {}


def of(process: int | str, controller: str = "") -> str:
    """The directory of the group that a process is in, as ``own`` has it."""
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


def make(name: str) -> str:
    """Make a group below our own, and return its directory; "" where that cannot be."""
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
    """Fork as ``os.fork`` does. The child is in a group; "": in ours.

    Born into it where that can be: to enter one waits for each processor to have a pause (RCU), 17 ms and more.
    """
    child = _clone_into(path) if path else -1
    if child >= 0:
        return child
    child = os.fork()
    if path and not child:
        enter(path)
    return child


def _clone_into(path: str) -> int:
    """What fork(2) returns; -1 where the kernel is older than 5.7, or somebody forbids that.

    It goes round all that Python does about threads when it forks: there must be no other one.
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
    """Be in a group from now on, with all our children to come."""
    try:
        with open(os.path.join(path, "cgroup.procs"), "wb", buffering=0) as file:
            file.write(b"0")
    except OSError:  # it was removed: the walk over /proc finds us as well
        pass


def members(path: str) -> set[int]:
    """The processes in a group and those below it, as far as we can see them."""
    found: set[int] = set()
    for place in _groups(path) if is_populated(path) else ():
        try:
            found.update(map(int, contents(os.path.join(place, "cgroup.procs")).split()))
        except OSError:
            pass
    return found - {0}


def is_populated(path: str) -> bool:
    """Whether anything in a group or below it has not ended yet, also what is exiting or cannot be seen from here."""
    try:
        return bool(path) and "populated 1" in contents(os.path.join(path, "cgroup.events"))
    except OSError:
        return False


def kill(path: str) -> None:
    """Kill all in a group of ours and below it in one step, which no fork escapes; older kernels have no way to."""
    try:
        with open(os.path.join(path, "cgroup.kill"), "wb", buffering=0) as file:
            file.write(b"1")
    except OSError:  # each of them is killed by itself then
        pass


def remove(path: str) -> None:
    """Remove a group in which nothing is left, with those below it."""
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
    """A group and all below it, the deepest first."""
    return [place for place, _, _ in os.walk(path, topdown=False)] if path else []


def scope_of(path: str) -> str:
    """The group itself if it is that of one login, else ""."""
    name = os.path.basename(path)
    session, _, kind = name.partition(".")
    return path if kind == "scope" and session[:8] == "session-" and session[8:].isalnum() else ""
