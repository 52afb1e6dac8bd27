"""Notes of a run without a control group: its processes are found by them after agent and guardian were killed.

A process that clears its environment and leaves its session shows no sign of its run in the process table. It still
holds the pipes that it was given, or stands below a process, or in a session, that is known to be the run's.
"""

from __future__ import annotations

import os
import time

from .doors import below, directories, directory
from .lean import contents, dumps, loads
from .processes import Process, all_processes, is_agent, look_at, variable_of
from .state import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

PREFIX = ".note-"
INIT = 1  # the pid to which orphans are handed
NAMED_PROCESSES = 5  # of those that may be the run's; the others are counted


class Notes:
    """The notes of one agent: a file beside its control socket, removed when the agent leaves."""

    def __init__(self, run: str, node: int, places: Sequence[str]) -> None:
        """Begin them. Raises OSError.

        places: directories that only this run uses
        """
        self._path = os.path.join(directory(), f"{PREFIX}{run}-{node}")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        (agent,) = look_at([os.getpid()])
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        about = {"boot": boot_id(), "namespace": _namespace(), "agent": [agent.pid, agent.start]}
        self._write({"run": run, "node": node, **about, "began": ticks, "places": list(places)})

    def add(self, session: int, pipes: Iterable[int]) -> None:
        """Note a process that leads a session of its own. pipes: our ends of those that it was given"""
        start = [process.start for process in look_at([session])]
        self._write({"session": session, "start": start, "pipes": [os.fstat(pipe).st_ino for pipe in pipes]})

    def remove(self) -> None:
        os.close(self._file)
        _unlink(self._path)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, dumps(line).encode() + b"\n")


class Note:
    """The notes that a killed agent has left."""

    def __init__(self, path: str) -> None:
        """Raises OSError, ValueError, KeyError, TypeError or IndexError for a file that cannot be read as such."""
        first, *others = [loads(line) for line in contents(path).splitlines()]
        self.path = path
        self.run, self.node = str(first["run"]), int(first["node"])
        self.began = int(first["began"])  # clock ticks since boot
        self.agent, self.agent_start = map(int, first["agent"])
        self.is_of_here = (first["boot"], first["namespace"]) == (boot_id(), _namespace())
        self.places = tuple(f"{place}/" for place in first["places"])
        self.sessions = {int(other["session"]): set(map(int, other["start"])) for other in others}
        self.pipes = {f"pipe:[{pipe}]" for other in others for pipe in other["pipes"]}

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
    for place in directories():
        for name in sorted(os.listdir(place)):
            if name.startswith(f"{PREFIX}{run}"):
                try:
                    note = Note(os.path.join(place, name))
                except (OSError, ValueError, KeyError, TypeError, IndexError):  # it was removed, or never completed
                    continue
                if note.is_left and run in ("", note.run):
                    found.append(note)
    return found


def remove_notes(run: str, node: int) -> None:
    """Remove the notes of an agent that was killed."""
    for place in directories():
        _unlink(os.path.join(place, f"{PREFIX}{run}-{node}"))


def strays(note: Note) -> list[Process]:
    """Return the processes that are surely the run's and have lost their agent."""
    return _divide(note)[0]


def unverified(run: str, node: int) -> list[str]:
    """Return lines about what may be left of a run, after all that is surely the run's has ended."""
    notes = [note for note in left_notes(run) if note.node == node]
    if not notes:
        return ["perhaps processes that have cleared their environment: the notes about them are gone"]
    perhaps = [process for note in notes for process in _divide(note)[1]]
    lines = [f"perhaps {process.told()}, started since the run began" for process in perhaps[:NAMED_PROCESSES]]
    more = len(perhaps) - len(lines)
    return lines + ([f"perhaps {more} more"] if more > 0 else [])


def _divide(note: Note) -> tuple[list[Process], list[Process]]:
    """Return the processes that are the run's, and our user's other orphans since it began."""
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
        if pid not in found and process.parent == INIT and process.start >= note.began and _is_ours(pid)
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


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:  # there is none
        pass
