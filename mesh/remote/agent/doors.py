"""Doors: an agent listens on a socket that only its user can reach, so that a new channel or a question finds it."""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from . import cgroups
from .containers import Containers
from .frames import encode
from .lean import Socket, dumps, loads, signal, socket
from .processes import Process, all_processes, is_agent, look_at, send_signal, variable_of
from .state import machine_directory, machine_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DESCRIPTOR = struct.calcsize("i")  # bytes of one that travels
MAX_REQUEST = 65536  # bytes; a request is sent in one piece
PLACES = ("/tmp", "/dev/shm", "/var/tmp")  # one of them can be written, or there are no doors
NOT_ANSWERING = "not answering"  # the state of a run whose agent is there, but does nothing
KEPT_GROUP = "mesh-kept-by-agent-"  # the beginning of a name in ``group_of``
PATIENCE = 5.0  # seconds: for an answer of an agent, and for SIGKILL to take effect
CONNECT_INTERVAL_S = 0.02  # between two attempts to connect to an agent for which others wait
LIST_LIMIT_S = 3.0  # for the answers of all agents to `mesh ps`, which gives a host 5 s


def directory() -> str:
    """Where this user's agents make their doors, made if need be. Raises OSError if there is no place for it.

    Not below the home directory, which may be on a file system without sockets, or too long for one (107 bytes).
    """
    problem: OSError | None = None
    for place in PLACES:
        path = f"{place}/mesh-{os.geteuid()}"
        try:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            if _is_ours(path) and os.access(path, os.W_OK):
                return path
            raise PermissionError(1, "is not ours alone, or cannot be written", path)
        except OSError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def directories() -> list[str]:
    """Where there may be doors of this user's agents."""
    paths = [f"{place}/mesh-{os.geteuid()}" for place in PLACES]
    return [path for path in paths if os.path.isdir(path) and _is_ours(path)]


def _is_ours(path: str) -> bool:
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def door_of(run: str, node: int) -> str:
    """The socket of an agent; several hosts of a run may be one machine."""
    name = f"{run}-{node}"
    paths = [os.path.join(place, name) for place in directories()]
    return next((path for path in paths if os.path.exists(path)), "/nowhere")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # somebody else has
        pass


def remove_door(run: str, node: int) -> None:
    """Remove the socket of an agent that was killed, and its notes."""
    from .notes import remove_notes

    path = door_of(run, node)
    if not is_open(path):
        _unlink(path)
    remove_notes(run, node)


class Door:
    """Our own."""

    def __init__(self, run: str, node: int) -> None:
        """Raises OSError if there is no way to make one."""
        place = directory()
        self._path = os.path.join(place, f"{run}-{node}")
        self._socket = Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unopened = os.path.join(place, f".{run}-{node}")  # before listen() it looks like that of a killed agent
        self._socket.bind(unopened)
        self._socket.listen(8)
        os.rename(unopened, self._path)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> tuple[dict[str, Any], list[int], Socket] | None:
        """Whoever knocks: the request, the descriptors that came with it, and the way to answer."""
        try:
            visitor, _ = self._socket.accept()
        except OSError:
            return None
        visitor.settimeout(1.0)
        try:
            text, ancillary, _, _ = visitor.recvmsg(MAX_REQUEST, socket.CMSG_SPACE(2 * DESCRIPTOR))
            came = b"".join(data for _, _, data in ancillary)
            return loads(text), list(struct.unpack(f"{len(came) // DESCRIPTOR}i", came)), visitor
        except (OSError, ValueError):
            visitor.close()
            return None

    def close(self) -> None:
        self._socket.close()
        _unlink(self._path)


def rights_of(*descriptors: int) -> tuple[int, int, bytes]:
    """What hands descriptors on with a message."""
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors)


def knock(path: str, request: dict[str, Any], descriptors: list[int], limit_s: float = float("inf")) -> Socket:
    """Ask the agent behind a door. Raises OSError if nobody is there.

    limit_s: BlockingIOError is raised when so many others have been waiting for the agent for so long
    """
    visitor = Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deadline = time.monotonic() + limit_s
    try:
        while not _connect(visitor, path):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
            time.sleep(CONNECT_INTERVAL_S)
        rights = [rights_of(*descriptors)] if descriptors else []
        visitor.sendmsg([dumps(request).encode()], rights)
    except OSError:
        visitor.close()
        raise
    return visitor


def _connect(visitor: Socket, path: str) -> bool:
    """Connect; False if too many others wait for the agent. Raises OSError if nobody is there."""
    visitor.setblocking(False)  # a stopped agent would hold us up for ever
    try:
        visitor.connect(path)
    except BlockingIOError:
        return False
    visitor.setblocking(True)
    return True


def is_open(path: str) -> bool:
    """Whether an agent is behind a door."""
    with Socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as visitor:
        try:
            _connect(visitor, path)
        except OSError:
            return False
    return True


def other_runs(run: str) -> list[str]:
    """Return the ids of all runs but one that have a control socket here."""
    return sorted({os.path.basename(path).rpartition("-")[0] for path in _paths()} - {run})


def send_over(runs: list[str]) -> None:
    """Tell the agents of these runs that their clients are over. Never blocks, and waits for no answer."""
    for path in _paths():
        if os.path.basename(path).rpartition("-")[0] in runs:
            try:
                knock(path, {"type": "over"}, [], limit_s=0.0).close()
            except OSError:  # the agent is gone, or takes nothing
                pass


def bring_channel(begin: dict[str, Any]) -> None:
    """Give our stdin and stdout, a new channel, to the agent of a run, and stay as long as it needs them.

    begin: "run", "node", and "have": how much of the agent's stream the client has; for the case that there is no
    agent any more also "remote_dir", "cgroup": where its processes were, and "age": of the run, in seconds
    If there is no agent any more, what is left of its run is ended, and the client is told.
    """
    try:
        visitor = knock(door_of(begin["run"], begin["node"]), {"type": "channel", "have": begin["have"]}, [0, 1])
    except OSError:
        was_restarted = time.clock_gettime(time.CLOCK_BOOTTIME) < begin.get("age", 0.0)
        os.write(1, encode({"type": "no-agent", "left": end_rest(begin, begin["cgroup"], was_restarted)}))
        return
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    visitor.recv(1)  # nothing is sent: it returns when the agent is done with the channel


def runs(run: str = "", patience: float = PATIENCE) -> list[dict[str, Any]]:
    """What the agents of this user tell of their runs, or of one. patience: seconds for all their answers"""
    return tell_runs(run, {"type": "about"}, patience)


def stop_runs(run: str = "", grace: float | None = None) -> list[dict[str, Any]]:
    """Have the agents of a run, or of all, end it; return what they were.

    grace: seconds from SIGTERM to SIGKILL; None: what each run was started with
    """
    return tell_runs(run, {"type": "stop", "grace": grace})


def tell_runs(run: str, request: dict[str, Any], patience: float = PATIENCE) -> list[dict[str, Any]]:
    """Have the agents of a run, or ("") of all, do something; return what they answer.

    patience: seconds for the answers of all, which are asked before the first answer is awaited
    """
    paths = [path for path in _paths() if not run or os.path.basename(path).rpartition("-")[0] == run]
    deadline = time.monotonic() + patience
    asked: list[tuple[str, Socket]] = []
    busy: list[str] = []  # too many others wait for these agents
    for path in paths:
        try:
            visitor = _send(path, request, 0.0)
        except BlockingIOError:
            busy.append(path)
            continue
        if visitor:
            asked.append((path, visitor))
    answers = [_answer(path, visitor, deadline) for path, visitor in asked]
    for path in busy:
        try:
            visitor = _send(path, request, max(0.0, deadline - time.monotonic()))
        except BlockingIOError:
            answers.append(_not_answering(path))
            continue
        if visitor:
            answers.append(_answer(path, visitor, deadline))
    return [told for told in answers if told]


def _not_answering(path: str) -> dict[str, Any]:
    """Return what is known of a run whose agent does not answer, from its door's name."""
    run, _, node = os.path.basename(path).rpartition("-")
    return {"run": run, "node": int(node), "about": {}, "attached": True, "state": NOT_ANSWERING, "ranks": []}


def _paths() -> list[str]:
    """All doors; the loader has files there whose names begin with a dot."""
    return [
        os.path.join(place, name)
        for place in directories()
        for name in sorted(os.listdir(place))
        if not name.startswith(".")
    ]


def _send(path: str, request: dict[str, Any], limit_s: float) -> Socket | None:
    """Ask the agent behind a door; None if nobody is there, and then the door is removed.

    limit_s: BlockingIOError is raised for an agent that accepts no connection for so long
    """
    try:
        return knock(path, request, [], limit_s)
    except ConnectionRefusedError:
        _unlink(path)
        return None
    except BlockingIOError:
        raise
    except OSError:
        return None


def _answer(path: str, visitor: Socket, deadline: float) -> dict[str, Any]:
    """Return the answer of the agent behind a door; {} if it has ended. An agent that is late lives all the same."""
    visitor.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        told: dict[str, Any] = loads(visitor.recv(MAX_REQUEST))
        return told
    except socket.timeout:
        return _not_answering(path)
    except (OSError, ValueError):
        return {}
    finally:
        visitor.close()


def containers_of(remote_dir: str, run: str, node: int) -> Containers:
    return Containers(os.path.join(machine_directory(remote_dir), f"bin-{run}-{node}"), run)


def end_rest(about: dict[str, Any], cgroup: str, was_restarted: bool) -> list[str]:
    """End what is left of a run whose agent was killed; return what stays and what cannot be verified, in lines.

    about: "run", "node" and "remote_dir"; was_restarted: the machine, since the run began
    """
    run, node = about["run"], about["node"]
    left = [process.told() for process in sweep(run, cgroup)]
    left += containers_of(about["remote_dir"], run, node).stop(0.0)
    if not cgroup and not was_restarted:
        from .notes import unverified

        left += unverified(run, node)
    remove_door(run, node)
    remove_kept_groups()
    return left


def group_of(guardian: int) -> str:
    """Return the name of the control group that a waiting agent makes, by its guardian's pid: it knows no run yet."""
    return f"{KEPT_GROUP}{guardian}-{machine_id()}"


def remove_kept_groups() -> None:
    """Remove the empty control groups of agents that were killed together with their guardians while they waited."""
    place = cgroups.own()
    for name in os.listdir(place) if place else ():
        guardian = name[len(KEPT_GROUP) :].partition("-")[0]
        if guardian.isdigit() and name == group_of(int(guardian)) and not is_agent(int(guardian)):
            path = os.path.join(place, name)
            if not cgroups.is_populated(path):
                cgroups.remove(path)


def sweep(run: str, cgroup: str = "") -> list[Process]:
    """Kill what carries the run's id, what came of it, and what is in a control group; return what is left.

    run: "" for none, and processes of an agent that lives are spared; cgroup: "" for none, and ours is taken for none
    """
    from .notes import left_notes, strays

    deadline = time.monotonic() + PATIENCE
    notes = left_notes(run) if run else []
    ours = cgroup if os.path.basename(cgroup).startswith("mesh-") else ""
    seen: dict[int, Process] = {}  # those that are exiting are in no list of a group, but may still hold a device
    while True:
        marked = {process.pid: process for process in (_of_run(run) if run else [])}
        found = list({**marked, **{process.pid: process for note in notes for process in strays(note)}}.values())
        if cgroup != cgroups.own():
            others = look_at(cgroups.members(cgroup) - {process.pid for process in found})
            # In a login's scope there are those of its connection: they end with it, and one of them is root's.
            found += [process for process in others if not process.name.startswith("sshd")]
        exiting = look_at(seen.keys() - {process.pid for process in found})
        found += [process for process in exiting if process.start == seen[process.pid].start]
        seen = {process.pid: process for process in found}
        if not found and not (cgroups.is_populated(ours) and time.monotonic() < deadline):
            cgroups.remove(ours)
            return []
        foreign = send_signal(found, signal.SIGKILL)
        if time.monotonic() > deadline or 0 < len(foreign) == len(found):
            return found
        time.sleep(0.01)


def _of_run(run: str) -> list[Process]:
    """Return the processes of a run that have lost their agent.

    Another host of the run may be this machine, or share its process IDs (containers, several sshd): the processes
    of its agent carry the same id. Only the process table shows those, as each container may have a /tmp of its own.
    """
    found = _without_agent(run)
    # A look at all processes takes time: one whose parent ended meanwhile seems to be below no agent.
    again = {(process.pid, process.start) for process in _without_agent(run)} if found else set()
    return [process for process in found if (process.pid, process.start) in again]


def _without_agent(run: str) -> list[Process]:
    wanted, every = run.encode(), all_processes()
    marked = {process.pid for process in every if variable_of(process.pid, b"MESH_RUN_ID") == wanted}
    if not marked:
        return []
    agents = {process.pid for process in every if process.pid not in marked and is_agent(process.pid)}
    kept = {process.pid for process in below(agents, every)} | {os.getpid()}
    return [process for process in below(marked - kept, every) if process.pid not in kept]


def below(roots: set[int], every: list[Process]) -> list[Process]:
    """Return these processes and all that descend from them, out of every process of the machine."""
    family = set(roots)
    grows = True
    while grows:
        more = {process.pid for process in every if process.parent in family} - family
        family |= more
        grows = bool(more)
    return [process for process in every if process.pid in family]
