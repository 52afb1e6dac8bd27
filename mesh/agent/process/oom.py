"""Kills by the kernel for lack of memory, counted where a process has failed."""

from __future__ import annotations

import os

from mesh.agent.base.light import contents, signal
from mesh.agent.process import cgroups

INIT_PIDS = 0xEFFFFFFC  # linux/proc_ns.h: the first PID namespace; the kernel's log names processes as that one does
RECORD_BYTES, RECORDS_MAX = 8192, 5000  # of the kernel's log, at one look
VICTIM = rb"Killed process (\d+) |oom-kill:.*[, ]pid=(\d+)"
MACHINE = "/proc/vmstat"  # counts for the whole machine


class Memory:
    """The kills of the kernel's OOM killer since this object was made."""

    def __init__(self, place: str) -> None:
        """place: the directory of the control group that the processes are in; "" if there is none"""
        self._counter = _counter_above(place) or _counter_of_v1() or MACHINE
        self._before = self._count()
        self._log = -1
        self._named: set[int] = set()  # victims in the log
        self._explained: set[int] = set()  # processes whose end was explained
        try:
            if os.stat("/proc/self/ns/pid").st_ino == INIT_PIDS:
                self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
                os.lseek(self._log, 0, os.SEEK_END)
        except OSError:  # only root may read it, as a rule
            pass

    def explains(self, pid: int, status: int) -> bool:
        """Return True if the OOM killer explains the end of a process: it killed this one, or another one of its group.

        status: from waitpid
        Where only the whole machine is counted, a kill explains no failure: it may have been any process.
        """
        kills = self._count() - self._before if status else 0
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return self._counter != MACHINE and kills > len(self._explained)
        self._read_log()
        # Another process may have sent SIGKILL: kills that are surely of other victims do not count.
        if pid not in self._named and kills <= len(self._named | self._explained):
            return False
        self._explained.add(pid)
        return True

    def _count(self) -> int:
        try:
            return count_in(contents(self._counter))
        except OSError:
            return 0

    def _read_log(self) -> None:
        for _ in range(RECORDS_MAX if self._log >= 0 else 0):
            try:
                self._named |= victims_in(os.read(self._log, RECORD_BYTES))
            except BrokenPipeError:  # some were overwritten
                pass
            except OSError:  # there is no more
                break


def count_in(text: str) -> int:
    """Return the kills in memory.events or memory.oom_control of a control group, or in /proc/vmstat.

    >>> count_in("low 0\\noom 3\\noom_kill 2\\noom_group_kill 0\\n"), count_in("pgfree 7\\n")
    (2, 0)
    """
    return next((int(line.split()[1]) for line in text.split("\n") if line.startswith("oom_kill ")), 0)


def victims_in(record: bytes) -> set[int]:
    """Return the victims in a record of the kernel's log.

    >>> victims_in(b"3,1,9,-;Memory cgroup out of memory: Killed process 412 (python3) total-vm:1kB")
    {412}
    >>> victims_in(b"6,2,9,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/a,task=python3,pid=412,uid=0")
    {412}
    """
    import re  # few agents need it

    return {int(first or second) for first, second in re.findall(VICTIM, record)}


def _counter_of_v1() -> str:
    """Return the counter of our own memory group of version 1, which counts only its own processes; "" for none."""
    path = cgroups.own("memory") + "/memory.oom_control"
    return path if os.path.exists(path) else ""


def _counter_above(place: str) -> str:
    """Return the next memory.events at or above a group, which counts the groups below too; "" if there is none."""
    while len(place) > 1:
        if os.path.exists(place + "/memory.events"):
            return place + "/memory.events"
        place = os.path.dirname(place)
    return ""
