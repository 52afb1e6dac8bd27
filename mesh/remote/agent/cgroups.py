"""The run's own cgroup (v2), where one may be made: what is born into it is found again, whatever it does."""

from __future__ import annotations

import os

from . import processes
from .processes import Process, descendants, look_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MOUNTS, OWN = "/proc/self/mountinfo", "/proc/self/cgroup"


def own_path() -> str:
    """Our own cgroup in the v2 hierarchy, as the kernel names it; "" without cgroups."""
    return path_in(read(OWN), "0::")


def directory_of(path: str) -> str:
    """Where a cgroup of the v2 hierarchy is found; "" if it is out of our sight."""
    return place_in(read(MOUNTS), path, lambda kind, options: kind == "cgroup2") if path else ""


def path_in(text: str, start: str) -> str:
    """
    >>> path_in("4:memory:/m\\n0::/user.slice/session-3.scope\\n", "0::")
    '/user.slice/session-3.scope'
    """
    return next((line[len(start) :] for line in text.split("\n") if line.startswith(start)), "")


def place_in(mounts: str, path: str, counts: Callable[[str, str], bool]) -> str:
    """The directory of a cgroup, from the text of mountinfo; counts: whether to take (type, options) of a mount.

    In a container without a cgroup namespace, the mount shows a part of the hierarchy only. In one with a namespace,
    what is outside of it begins with "/..".

    >>> mounts = "38 31 0:38 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\\n"
    >>> place_in(mounts, "/docker/a/b", lambda kind, options: True)
    '/sys/fs/cgroup/b'
    >>> place_in(mounts, "/docker/c", lambda kind, options: True)
    ''
    """
    for line in mounts.split("\n"):
        fields, _, rest = line.partition(" - ")
        if rest and counts(rest.split()[0], rest.split()[-1]):
            root, place = (field.replace("\\040", " ") for field in fields.split()[3:5])
            inside = os.path.relpath(path, root)
            if ".." not in (inside.split("/")[0], path.split("/")[1]):
                return os.path.normpath(os.path.join(place, inside))
    return ""


def read(path: str) -> str:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> bool:
    """Whether the kernel took it."""
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        return False
    return True


def members(directory: str) -> list[Process]:
    """What is in exactly this cgroup and has not ended."""
    found = (look_at(pid) for pid in read(directory + "/cgroup.procs").split())
    return [process for process in found if process is not None and process.state not in "ZX"]


class Group:
    """The cgroup of the run on this host, below that of the agent. Where there is none, it has no members."""

    def __init__(self, path: str, run: str, node: int) -> None:
        """path: the agent's own, as own_path() tells it. Hosts that are containers may share one hierarchy."""
        self.outside = directory_of(path)
        self.directory = f"{self.outside}/mesh-{run}-{node}" if self.outside else ""

    def make(self) -> None:
        """Make it if we may; from now on what we start is born into it."""
        if not self.directory:
            return
        self.remove()
        try:
            os.mkdir(self.directory)
        except OSError:  # nothing of it is ours to make, as a rule; or what an agent like us has left is still there
            return
        processes.BIRTHPLACE[:] = [self.directory + "/cgroup.procs"]

    def members(self) -> list[Process]:
        """Everything in it, and in what was made below it."""
        found = []
        for place, _, _ in os.walk(self.directory) if self.directory else ():
            found += members(place)
        return found

    def family(self) -> list[Process]:
        """Every process below ours or in the group that has not ended."""
        found = descendants(os.getpid())
        known = {process.pid for process in found}
        return found + [process for process in self.members() if process.pid not in known]

    def kill(self) -> None:
        """Kill all members in one step, which no fork escapes. Where the kernel has no way to, nothing happens."""
        if self.directory:
            write(self.directory + "/cgroup.kill", "1")

    def let_go(self) -> None:
        """Move all members out: they stay on purpose."""
        for _ in range(100):  # one may fork while we move it
            found = self.members()
            moved = [write(self.outside + "/cgroup.procs", str(process.pid)) for process in found]
            if not any(moved):
                return

    def remove(self) -> None:
        """Remove it, if nothing is left in it."""
        for place, _, _ in os.walk(self.directory, topdown=False) if self.directory else ():
            try:
                os.rmdir(place)
            except OSError:
                pass


def session_members(path: str) -> list[Process]:
    """What is left in the login session that an agent was in; nothing if that is ours, or was none.

    systemd puts what each login starts into a cgroup of its own, which tells also what has cleared its environment.
    """
    name = os.path.basename(path)
    if not name.startswith("session-") or not name.endswith(".scope") or path == own_path():
        return []
    place = directory_of(path)
    # sshd's own belong to the connection and end with it; some are root's.
    return [process for process in members(place) if not process.name.startswith("sshd")] if place else []
