"""Restart of ranks on request: ends their processes and starts new ones. Nodes of programs have their own restart."""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import partial, signal
from mesh.agent.process.processes import all_processes, below, send_signal
from mesh.agent.process.spawning import Setting
from mesh.agent.run.rank import start_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mesh.agent.loop import Loop
    from mesh.agent.port import RanksPort
    from mesh.agent.process.containers import Containers
    from mesh.agent.process.processes import Process
    from mesh.agent.run.rank import Rank

    Start = tuple[Sequence[str], Setting, bool]

LOOK_INTERVAL_S = 0.05  # between two looks whether all processes of a rank have ended
SIGKILL_TIMEOUT_S = 5.0  # after which a process that is left is named; uninterruptible sleep takes longer
IN_CONTAINER = "ranks run in containers here, and the processes of one rank there cannot be ended alone"


class Family:
    """The process of a rank and all its descendants, also those whose parents have ended."""

    def __init__(self, rank: Rank, environment: Mapping[bytes, bytes]) -> None:
        """rank: its process leads a session; environment: that it was started with"""
        self._leader = rank.pid
        self._marks = marks_of(rank.rank, environment)
        self._known: dict[int, int] = {}  # start time by pid

    def look(self) -> list[Process]:
        """Return the processes that have not ended."""
        every = all_processes()
        ours = below({os.getpid()}, every)  # the kernel may have reused a pid for another process
        roots = {one.pid for one in ours if one.session == self._leader or self._known.get(one.pid) == one.start}
        found = below(roots, ours) if roots else []
        known = {one.pid for one in found}
        # A daemon has a session and, once its parent has ended, a parent of its own: this agent, the subreaper.
        strays = {one.pid for one in ours if one.parent == os.getpid() and one.pid not in known and self._owns(one)}
        found += below(strays, ours) if strays else []
        self._known.update({one.pid: one.start for one in found})
        return found

    def _owns(self, process: Process) -> bool:
        """Return True if a process has the environment of this rank."""
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                return self._marks <= set(file.read().split(b"\0"))
        except OSError:  # it has ended, or is another user's
            return False


def marks_of(rank: int, environment: Mapping[bytes, bytes]) -> set[bytes]:
    """Return the variables by which the processes of a rank are recognised.

    Launchers within a rank, such as torchrun, set RANK anew for their workers, but not the rank's number for JAX.

    >>> sorted(marks_of(1, {b"RANK": b"1", b"JAX_PROCESS_ID": b"1", b"MESH_RUN_ID": b"r"}))
    [b'JAX_PROCESS_ID=1', b'MESH_RUN_ID=r']
    >>> sorted(marks_of(1, {b"RANK": b"1", b"JAX_PROCESS_ID": b"0", b"MESH_RUN_ID": b"r"}))  # set by the user
    [b'MESH_RUN_ID=r', b'RANK=1']
    """
    number = b"%d" % rank
    own = b"JAX_PROCESS_ID" if environment.get(b"JAX_PROCESS_ID") == number else b"RANK"
    return {b"MESH_RUN_ID=" + environment.get(b"MESH_RUN_ID", b""), own + b"=" + number}


class _Asked:
    """A rank whose processes must end before its restart."""

    def __init__(self, family: Family, kill_at: float, is_leaving: bool) -> None:
        self.family, self.kill_at = family, kill_at
        self.is_leaving = is_leaving  # the new process is on another host


class Restarts:
    """The commands of all ranks, and the restarts in progress."""

    def __init__(self, port: RanksPort, loop: Loop, containers: Containers, grace: float) -> None:
        """grace: seconds from SIGTERM to SIGKILL, for requests without their own"""
        self._port, self._loop, self._containers, self._grace = port, loop, containers, grace
        self._starts: dict[int, Start] = {}
        self._asked: dict[int, _Asked] = {}
        self._attempts: dict[int, int] = {}  # restarts of each rank
        self.on_ready: Callable[[Rank], None] = lambda rank: None  # its processes have ended, and it can be started
        self.on_left: Callable[[Rank], None] = lambda rank: None  # they have ended, and it goes to another host
        # They do not end; the last argument is True if it was to go to another host.
        self.on_stuck: Callable[[Rank, str, bool], None] = lambda rank, why, was_leaving: None

    @property
    def is_possible(self) -> bool:
        """True unless mesh ends the run."""
        return not (self._port.stops_ranks or self._port.is_over)

    def note_start(self, rank: int, start: Start, attempt: int = 0) -> None:
        """Keep how a rank was started. attempt: how often it was started before, here or on another host"""
        self._starts[rank] = start
        self._attempts[rank] = attempt

    def forget(self, rank: int) -> None:
        """Forget a rank that has gone to another host."""
        self._starts.pop(rank, None)
        self._attempts.pop(rank, None)

    def is_asked(self, rank: int) -> bool:
        """Return True while the restart of a rank is in progress."""
        return rank in self._asked

    def attempt(self, rank: int) -> int:
        """Return how often a rank was started again."""
        return self._attempts.get(rank, 0)

    def is_leaving(self, rank: int) -> bool:
        """Return True while the processes of a rank end because it goes to another host."""
        return rank in self._asked and self._asked[rank].is_leaving

    def ask(self, rank: Rank, grace: float | None, *, is_leaving: bool = False) -> str:
        """Begin the restart of a rank: end its processes. Return why that is impossible, or "".

        is_leaving: it will start on another host
        """
        if rank.rank in self._asked:
            is_same = self._asked[rank.rank].is_leaving == is_leaving
            return "" if is_same else "its processes are being ended already"
        if rank.status >= 0 or rank.rank not in self._starts:
            return "it has ended"
        if self._containers.used():
            return IN_CONTAINER
        now, environment = time.monotonic(), self._starts[rank.rank][1].environment
        seconds = self._grace if grace is None else grace
        asked = self._asked[rank.rank] = _Asked(Family(rank, environment), now + seconds, is_leaving)
        send_signal(asked.family.look(), signal.SIGTERM if seconds else signal.SIGKILL)
        self._look_at(rank, now)
        return ""

    def drop(self, rank: int) -> bool:
        """Cancel the restart of a rank; return True if there was one."""
        self._loop.cancel(("make way", rank))
        return self._asked.pop(rank, None) is not None

    def start(self, rank: int) -> Rank:
        """Start a new process of a rank with the command and setting of the first. Raises OSError."""
        argv, setting, wants_stdin = self._starts[rank]
        self._attempts[rank] = self.attempt(rank) + 1
        environment = dict(setting.environment)
        if b"MESH_JOB_ID" not in environment:  # a job counts its own attempts there
            environment[b"MESH_ATTEMPT"] = b"%d" % self._attempts[rank]
        own = Setting(environment, setting.directory, setting.umask, setting.limits, setting.cgroup)
        own.terminal = setting.terminal
        return start_rank(rank, argv, own, wants_stdin)

    def _look_at(self, rank: Rank, when: float) -> None:
        self._loop.at(("make way", rank.rank), when + LOOK_INTERVAL_S, partial(self._look, rank))

    def _look(self, rank: Rank) -> None:
        """Continue the restart once no process of the rank is left and its output is relayed."""
        asked, now = self._asked.get(rank.rank), time.monotonic()
        if asked is None or not self.is_possible:
            return
        left = asked.family.look()
        if not left and rank.all_relayed():
            self.drop(rank.rank)
            (self.on_left if asked.is_leaving else self.on_ready)(rank)
            return
        if left and now >= asked.kill_at + SIGKILL_TIMEOUT_S:
            self.drop(rank.rank)
            self.on_stuck(rank, f"{left[0].described()} does not end", asked.is_leaving)
            return
        if now >= asked.kill_at:
            send_signal(left, signal.SIGKILL)
        self._look_at(rank, now)
