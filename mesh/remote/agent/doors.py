"""Doors: an agent listens on a socket that only its user can reach, so that a new channel or a question finds it."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import stat
import time

from . import cgroups
from .containers import Containers
from .frames import encode
from .processes import Process, all_processes, look_at, send_signal, variable_of
from .state import machine_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_REQUEST = 65536  # bytes; a request is sent in one piece
PATIENCE = 5.0  # seconds: for an answer of an agent, and for SIGKILL to take effect


def directory() -> str:
    """Where the doors of this user's agents are, made if need be. Raises OSError if somebody else was there first.

    Not below the home directory, which may be on a file system without sockets, or too long for one (107 bytes).
    """
    path = f"/tmp/mesh-{os.geteuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(1, "is not ours alone", path)
    return path


def door_of(run: str, node: int) -> str:
    """The socket of an agent; several hosts of a run may be one machine."""
    return os.path.join(directory(), f"{run}-{node}")


class Door:
    """Our own."""

    def __init__(self, run: str, node: int) -> None:
        """Raises OSError if there is no way to make one."""
        self._path = door_of(run, node)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        self._socket.bind(self._path)
        self._socket.listen(8)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> tuple[dict[str, Any], list[int], socket.socket] | None:
        """Whoever knocks: the request, the descriptors that came with it, and the way to answer."""
        try:
            visitor, _ = self._socket.accept()
        except OSError:
            return None
        visitor.settimeout(1.0)
        try:
            text, ancillary, _, _ = visitor.recvmsg(MAX_REQUEST, socket.CMSG_SPACE(2 * array.array("i").itemsize))
            descriptors = array.array("i")
            for _, _, data in ancillary:
                descriptors.frombytes(data)
            return json.loads(text), list(descriptors), visitor
        except (OSError, ValueError):
            visitor.close()
            return None

    def close(self) -> None:
        self._socket.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass


def knock(path: str, request: dict[str, Any], descriptors: list[int]) -> socket.socket:
    """Ask the agent behind a door. Raises OSError if nobody is there."""
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        visitor.connect(path)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        visitor.sendmsg([json.dumps(request).encode()], rights)
    except OSError:
        visitor.close()
        raise
    return visitor


def bring_channel(begin: dict[str, Any]) -> None:
    """Give our stdin and stdout, a new channel, to the agent of a run, and stay as long as it needs them.

    begin: "run", "node", and "have": how much of the agent's stream the client has; for the case that there is no
    agent any more also "remote_dir", and "cgroup": where its processes were
    If there is no agent any more, what is left of its run is ended, and the client is told.
    """
    try:
        visitor = knock(door_of(begin["run"], begin["node"]), {"type": "channel", "have": begin["have"]}, [0, 1])
    except OSError:
        left = [process.told() for process in sweep(begin["run"], begin["cgroup"])]
        left += containers_of(begin["remote_dir"], begin["run"], begin["node"]).stop(0.0)
        os.write(1, encode({"type": "no-agent", "left": left}))
        return
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    visitor.recv(1)  # nothing is sent: it returns when the agent is done with the channel


def runs() -> list[dict[str, Any]]:
    """What the agents of this user tell of their runs."""
    found = []
    for path in _paths():
        told = _ask(path, {"type": "about"})
        if told:
            found.append(told)
    return found


def stop_runs(run: str = "", grace: float | None = None) -> list[dict[str, Any]]:
    """Have the agents of a run, or of all, end it; return what they were.

    grace: seconds from SIGTERM to SIGKILL; None: what each run was started with
    """
    found = []
    for path in _paths():
        if not run or os.path.basename(path).rpartition("-")[0] == run:
            told = _ask(path, {"type": "stop", "grace": grace})
            if told:
                found.append(told)
    return found


def _paths() -> list[str]:
    place = directory()
    return [os.path.join(place, name) for name in sorted(os.listdir(place))]


def _ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the agent behind a door; {} if nobody is there, and then the door is removed."""
    try:
        visitor = knock(path, request, [])
    except ConnectionRefusedError:
        os.unlink(path)
        return {}
    except OSError:
        return {}
    visitor.settimeout(PATIENCE)
    try:
        told: dict[str, Any] = json.loads(visitor.recv(MAX_REQUEST))
        return told
    except (OSError, ValueError):
        return {}
    finally:
        visitor.close()


def containers_of(remote_dir: str, run: str, node: int) -> Containers:
    return Containers(os.path.join(machine_directory(remote_dir), f"bin-{run}-{node}"), run)


def sweep(run: str, cgroup: str = "") -> list[Process]:
    """Kill what carries the run's id, what came of it, and what is in a control group; return what is left.

    run: "" for none; cgroup: "" for none, and ours is taken for none
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        found = _of_run(run) if run else []
        if cgroup != cgroups.own():
            found += look_at(cgroups.members(cgroup) - {process.pid for process in found})
        if not found:
            cgroups.remove(cgroup if "/mesh-" in cgroup else "")
            return []
        foreign = send_signal(found, signal.SIGKILL)
        if time.monotonic() > deadline or len(foreign) == len(found):
            return found
        time.sleep(0.01)


def _of_run(run: str) -> list[Process]:
    wanted = run.encode()
    marked = {process.pid for process in all_processes() if variable_of(process.pid, b"MESH_RUN_ID") == wanted}
    return below(marked, lambda process: process.pid != os.getpid())


def below(roots: set[int], counts: Callable[[Process], bool]) -> list[Process]:
    """These processes and all that descend from them."""
    every = all_processes()
    family = set(roots)
    grows = True
    while grows:
        more = {process.pid for process in every if process.parent in family} - family
        family |= more
        grows = bool(more)
    return [process for process in every if process.pid in family and counts(process)]
