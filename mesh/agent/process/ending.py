"""The end of a run on this host: signal, grace, SIGKILL, and a look whether all processes are gone."""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import signal
from mesh.agent.process import cgroups
from mesh.agent.process.processes import UNSEEN, Process, below, descendants, has_children, look_at, send_signal

LOOK_INTERVAL_S = 0.05  # between two looks at /proc
SIGKILL_TIMEOUT_S = 5.0  # after which the rest is named; uninterruptible sleep takes longer


class Ending:
    """The end of processes by the clock. All of them descend from the agent, which is their subreaper."""

    def __init__(self) -> None:
        self.ordered = False  # everything is to end, and the agent is to leave
        self.ordered_at = 0.0
        self.spared: set[int] = set()  # processes that end by themselves once asked to
        self.cgroup = ""  # all its processes are the run's as well
        self.stays: dict[int, int] = {}  # processes that modules have left: their start by their pid; not the run's
        self.ours = 0  # a child that works for the agent and is not the run's; 0: there is none
        self._kill_at: float | None = None  # monotonic, like every time here
        self._killed_at: float | None = None
        self._look_at = 0.0
        self._foreign: dict[int, Process] = {}  # processes of other users

    def signal(self, number: int, grace: float) -> None:
        """Signal every process of the run, and kill the rest after grace seconds."""
        self._send([p for p in self.family() if p.pid not in self.spared], number)
        self.kill_by(grace)

    @property
    def is_hard(self) -> bool:
        """True once SIGKILL was sent."""
        return self._killed_at is not None

    def family(self) -> list[Process]:
        """Return every process of the run, but for one that forks and ends during the look."""
        if self.is_empty():
            return []
        family = {process.pid: process for process in self._below() if process.pid != self.ours}
        others = cgroups.members(self.cgroup) - family.keys() - {self.ours}
        return [*family.values(), *look_at(others)]

    def is_empty(self) -> bool:
        """Return True if there is surely no process of the run. A child that has ended counts until it is waited for.

        Both facts hold for all processes at once; a look at /proc meets one after the other.
        """
        if cgroups.is_populated(self.cgroup):
            return False
        return not (self._below() if self.stays else has_children())

    def _below(self) -> list[Process]:
        """Return the processes below this one that are the run's."""
        found = descendants(os.getpid()) if has_children() else []
        kept = {process.pid for process in found if self.stays.get(process.pid) == process.start}
        families = {process.pid for process in below(kept, found)} if kept else ()
        return [process for process in found if process.pid not in families]

    def kill_by(self, seconds: float) -> None:
        """Kill every process of the run after so many seconds, or at an earlier time that was set before."""
        moment = time.monotonic() + seconds
        self._kill_at = moment if self._kill_at is None else min(self._kill_at, moment)

    def order(self, number: int, grace: float) -> None:
        """End everything: send a signal now, and SIGKILL after grace seconds."""
        self.ordered, self.ordered_at = True, time.monotonic()
        self._killed_at = None  # an earlier kill was for the ranks; what is left now has its own time
        self.look_now()
        self.signal(number, grace)

    def look_now(self) -> None:
        """Have the next step look at all processes, because the one that has just ended may have been the last."""
        self._look_at = 0.0

    def kill_at(self) -> float:
        """Return the monotonic time of the next SIGKILL; 0.0 if none is due."""
        return self._kill_at or 0.0

    def next(self) -> float:
        """Return the latest monotonic time of the next ``step``."""
        moments = [moment for moment in (self._kill_at, self._look_at if self.ordered else None) if moment is not None]
        return min(moments, default=float("inf"))

    def step(self) -> list[Process] | None:
        """Do what is due. Return None until all processes are gone or cannot be ended, then those that are left."""
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()
            self._kill_at = now + LOOK_INTERVAL_S if self.ordered else None
        if not self.ordered or now < self._look_at:
            return None
        self._look_at = now + LOOK_INTERVAL_S
        left = self.family()
        if not left and self.is_empty():
            return []
        if self._killed_at is not None and self._is_hopeless(left, now - self._killed_at):
            return left or [UNSEEN]
        return None

    def _is_hopeless(self, left: list[Process], waited: float) -> bool:
        return waited > SIGKILL_TIMEOUT_S or (bool(left) and all(process.pid in self._foreign for process in left))

    def _kill(self) -> None:
        """Kill until a look finds no new process: one may fork during a look."""
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        if self.cgroup:
            cgroups.kill(self.cgroup)
        seen: set[tuple[int, int]] = set()
        while True:
            found = [p for p in self.family() if (p.pid, p.start) not in seen]
            if not found:
                return
            seen.update((process.pid, process.start) for process in found)
            self._send(found, signal.SIGKILL)

    def _send(self, processes: list[Process], number: int) -> None:
        self._foreign.update((process.pid, process) for process in send_signal(processes, number))
