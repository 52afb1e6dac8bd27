"""Notes of a run without a control group: its processes are found by them after agent and guardian were killed.

A process that clears its environment and leaves its session shows no sign of its run in the process table. It still
holds the pipes that it was given, or stands below a process, or in a session, that is surely the run's.
"""

from __future__ import annotations

import os
import time

from mesh.agent.base.directories import boot_id, private_directories, private_directory
from mesh.agent.base.light import contents, dumps
from mesh.agent.process.processes import Process, all_processes, below, is_agent, is_own, look_at, variable_of
from mesh.protocol.coding import loads
from mesh.protocol.kinds import COUNT, NAME, PATH, PID, RANK, TEXT, Wrong, as_it_is, listed
from mesh.protocol.records import Record, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PREFIX = ".note-"
INIT_PID = 1  # the pid to which orphans are handed
NO_NOTES = "perhaps processes that have cleared their environment: the notes about them are gone"
NAMED_PROCESSES = 5  # of those that may be the run's; the others are counted


class _RunLine(Record):
    """The first line of the notes."""

    run: str = field(NAME)
    node: int = field(RANK)
    boot: str = field(TEXT)
    namespace: str = field(TEXT)
    agent: Sequence[int] = field(listed(COUNT, 2, 2))  # pid and start
    began: int = field(COUNT)  # clock ticks since boot
    places: Sequence[str] = field(listed(PATH))


class _SessionLine(Record):
    """A process that leads a session of its own."""

    session: int = field(PID)
    start: Sequence[int] = field(listed(COUNT))  # of the leader; empty if it had ended
    pipes: Sequence[int] = field(listed(COUNT))  # their inodes


class Notes:
    """The notes of one agent: a file beside its control socket, removed when the agent leaves."""

    def __init__(self, run: str, node: int, places: Sequence[str]) -> None:
        """Begin them. Raises OSError.

        places: directories that only this run uses
        """
        self._path = os.path.join(private_directory(), f"{PREFIX}{run}-{node}")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        (agent,) = look_at([os.getpid()])
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        here, identity = {"boot": boot_id(), "namespace": _namespace()}, [agent.pid, agent.start]
        self._write(_RunLine(run=run, node=node, agent=identity, began=ticks, places=places, **here))

    def add(self, session: int, pipes: Iterable[int]) -> None:
        """Note a process that leads a session of its own. pipes: the agent's ends of those that it was given"""
        start = [process.start for process in look_at([session])]
        self._write(_SessionLine(session=session, start=start, pipes=[os.fstat(pipe).st_ino for pipe in pipes]))

    def remove(self) -> None:
        """Remove the file when the agent leaves."""
        os.close(self._file)
        _unlink(self._path)

    def _write(self, line: Record) -> None:
        os.write(self._file, dumps(line.to_json()).encode() + b"\n")


class Note:
    """The notes that a killed agent has left."""

    def __init__(self, path: str) -> None:
        """Read them. Raises OSError, ValueError or Wrong."""
        first, *rest = [loads(line) for line in contents(path).splitlines()] or [None]
        about = _RunLine.take(first, as_it_is)
        others = [_SessionLine.take(line, as_it_is) for line in rest]
        self.path, self.run, self.node, self.began = path, about.run, about.node, about.began
        self.agent, self.agent_start = about.agent
        self.is_of_here = (about.boot, about.namespace) == (boot_id(), _namespace())
        self.places = tuple(f"{place}/" for place in about.places)
        self.sessions = {other.session: set(other.start) for other in others}
        self.pipes = {f"pipe:[{pipe}]" for other in others for pipe in other.pipes}

    @property
    def is_left(self) -> bool:
        """True if its agent was a process that could be seen from here, and is gone."""
        return self.is_of_here and not any(found.start == self.agent_start for found in look_at([self.agent]))

    def shows(self, process: Process) -> bool:
        """Return True if a process is the run's beyond doubt, by itself."""
        if process.start < self.agent_start:
            return False
        if self._is_session(process.session) or variable_of(process.pid, b"MESH_RUN_ID") == self.run.encode():
            return True
        held = (os.path.join(place, name) for place, name in _links(process.pid))
        return any(link in self.pipes or f"{link}/".startswith(self.places) for link in map(_target, held))

    def _is_session(self, session: int) -> bool:
        """Return True for a session that a rank leads or has led; its number may have been given to another since."""
        starts = self.sessions.get(session)
        return starts is not None and all(leader.start in starts for leader in look_at([session]))


def left_notes(run: str = "") -> list[Note]:
    """Return the notes of agents that were killed, of one run or ("") of all."""
    found = []
    for place in private_directories():
        for name in sorted(os.listdir(place)):
            if name.startswith(f"{PREFIX}{run}"):
                try:
                    note = Note(os.path.join(place, name))
                except (OSError, ValueError, Wrong):  # it was removed, or never completed
                    continue
                if note.is_left and run in ("", note.run):
                    found.append(note)
    return found


def remove_notes(run: str, node: int) -> None:
    """Remove the notes of an agent that was killed."""
    for place in private_directories():
        _unlink(os.path.join(place, f"{PREFIX}{run}-{node}"))


def strays(note: Note) -> list[Process]:
    """Return the processes that are surely the run's and have lost their agent."""
    return _divide(note)[0]


def unverified(run: str, node: int) -> list[str]:
    """Return lines about what may be left of a run, after all that is surely the run's has ended."""
    notes = [note for note in left_notes(run) if note.node == node]
    if not notes:
        return [NO_NOTES]
    perhaps = [process for note in notes for process in _divide(note)[1]]
    lines = [f"perhaps {process.described()}, started since the run began" for process in perhaps[:NAMED_PROCESSES]]
    more = len(perhaps) - len(lines)
    return lines + ([f"perhaps {more} more"] if more > 0 else [])


def _divide(note: Note) -> tuple[list[Process], list[Process]]:
    """Return the processes that are the run's, and this user's other orphans since it began."""
    every = all_processes()
    kept = {process.pid for process in below({p.pid for p in every if is_agent(p.pid)}, every)} | {os.getpid()}
    alive = {process.pid for process in every}
    others = {process.pid: process for process in every if process.pid not in kept}
    found = {pid for pid, process in others.items() if note.shows(process)}
    while True:
        # A process is in the session of its parent. One whose leader lives and is not the run's began before the run.
        sessions = {others[pid].session for pid in found}
        sessions = {pid for pid in sessions if pid in found or pid not in alive}
        more = {pid for pid, process in others.items() if process.parent in found or process.session in sessions}
        if more <= found:
            break
        found |= more
    perhaps = [
        process
        for pid, process in others.items()
        if pid not in found and process.parent == INIT_PID and process.start >= note.began and is_own(pid)
    ]
    return [others[pid] for pid in found], perhaps


def _links(pid: int) -> list[tuple[str, str]]:
    place = f"/proc/{pid}"
    try:
        return [(place, "cwd"), (place, "exe"), *((f"{place}/fd", name) for name in os.listdir(f"{place}/fd"))]
    except OSError:  # it has ended, or is another user's
        return []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # there is none
        pass
