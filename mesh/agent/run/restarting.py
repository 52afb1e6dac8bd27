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
    from collections.abc import Callable, Sequence

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

    def __init__(self, leader: int) -> None:
        """leader: the pid of the rank, which leads a session"""
        self._leader = leader
        self._known: dict[int, int] = {}  # start time by pid

    def look(self) -> list[Process]:
        """Return the processes that have not ended."""
        every = all_processes()
        ours = below({os.getpid()}, every)  # the kernel may have reused a pid for another process
        roots = {one.pid for one in ours if one.session == self._leader or self._known.get(one.pid) == one.start}
        found = below(roots, ours) if roots else []
        self._known.update({one.pid: one.start for one in found})
        return found


class _Asked:
    """A rank whose processes must end before its restart."""

    def __init__(self, family: Family, kill_at: float) -> None:
        self.family, self.kill_at = family, kill_at


class Restarts:
    """The commands of all ranks, and the restarts in progress."""

    def __init__(self, port: RanksPort, loop: Loop, containers: Containers, grace: float) -> None:
        """grace: seconds from SIGTERM to SIGKILL, for requests without their own"""
        self._port, self._loop, self._containers, self._grace = port, loop, containers, grace
        self._starts: dict[int, Start] = {}
        self._asked: dict[int, _Asked] = {}
        self._attempts: dict[int, int] = {}  # restarts of each rank
        self.on_ready: Callable[[Rank], None] = lambda rank: None  # its processes have ended, and it can be started
        self.on_stuck: Callable[[Rank, str], None] = lambda rank, why: None  # they do not end

    @property
    def is_possible(self) -> bool:
        """True unless mesh ends the run."""
        return not (self._port.stops_ranks or self._port.is_over)

    def note_start(self, rank: int, argv: Sequence[str], setting: Setting, wants_stdin: bool) -> None:
        """Keep how a rank was started."""
        self._starts[rank] = argv, setting, wants_stdin

    def is_asked(self, rank: int) -> bool:
        """Return True while the restart of a rank is in progress."""
        return rank in self._asked

    def attempt(self, rank: int) -> int:
        """Return how often a rank was started again."""
        return self._attempts.get(rank, 0)

    def ask(self, rank: Rank, grace: float | None) -> str:
        """Begin the restart of a rank: end its processes. Return why that is impossible, or ""."""
        if rank.rank in self._asked:
            return ""
        if rank.status >= 0 or rank.rank not in self._starts:
            return "it has ended"
        if self._containers.used():
            return IN_CONTAINER
        now = time.monotonic()
        asked = _Asked(Family(rank.pid), now + (self._grace if grace is None else grace))
        self._asked[rank.rank] = asked
        send_signal(asked.family.look(), signal.SIGTERM)
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
            self.on_ready(rank)
            return
        if left and now >= asked.kill_at + SIGKILL_TIMEOUT_S:
            self.drop(rank.rank)
            self.on_stuck(rank, f"{left[0].described()} does not end")
            return
        if now >= asked.kill_at:
            send_signal(left, signal.SIGKILL)
        self._look_at(rank, now)
