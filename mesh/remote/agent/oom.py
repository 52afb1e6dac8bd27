"""Whether the kernel has killed a process for lack of memory. Looked at only when one has died."""

from __future__ import annotations

import os
import re
import signal

from .cgroups import MOUNTS, OWN, path_in, place_in, read

INIT_PIDS = 0xEFFFFFFC  # linux/proc_ns.h: the first PID namespace; the kernel's log names processes as that one does
RECORD, RECORDS = 8192, 5000  # bytes of one at most; how many of them are read
VICTIM = re.compile(rb"Killed process (\d+) |oom-kill:.*[, ]pid=(\d+)")


class Memory:
    """What the kernel tells about its OOM killer since this was made."""

    def __init__(self, place: str) -> None:
        """place: the directory of the cgroup (v2) that the processes are in; "" if there is none."""
        self._counters = [path for path in (_counter_above(place), _counter_v1()) if path]
        self._before = self._killed()
        self._log = -1
        self._victims: set[int] = set()
        try:
            if os.stat("/proc/self/ns/pid").st_ino == INIT_PIDS:
                self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._log, 0, os.SEEK_END)
        except OSError:  # only root may read it, as a rule
            pass

    def explains(self, pid: int, status: int) -> bool:
        """Whether the OOM killer ended this process; or, if it failed, any other that nobody has told of.

        status: from waitpid
        """
        if not status:
            return False
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        is_counted = self._killed() > self._before
        is_victim = was_killed and (is_counted or pid in self._named())
        if is_victim and is_counted:
            self._before += 1  # the next one that is killed may have been killed by somebody else
        return is_victim or (not was_killed and is_counted)

    def _killed(self) -> int:
        return sum(count_in(read(path)) for path in self._counters)

    def _named(self) -> set[int]:
        """The processes that the kernel's log names."""
        for _ in range(RECORDS if self._log >= 0 else 0):
            try:
                self._victims |= victims_in(os.read(self._log, RECORD))
            except BrokenPipeError:  # some were overwritten
                pass
            except OSError:  # there is no more
                break
        return self._victims


def count_in(text: str) -> int:
    """How many processes were killed, from memory.events (v2) or memory.oom_control (v1).

    >>> count_in("low 0\\noom 3\\noom_kill 2\\noom_group_kill 0\\n"), count_in("oom_kill_disable 0\\n")
    (2, 0)
    """
    return int(path_in("\n" + text, "oom_kill ") or 0)


def victims_in(record: bytes) -> set[int]:
    """The processes that a record of the kernel's log tells to be killed.

    >>> victims_in(b"3,1,9,-;Memory cgroup out of memory: Killed process 412 (python3) total-vm:1kB")
    {412}
    >>> victims_in(b"6,2,9,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/a,task=python3,pid=412,uid=0")
    {412}
    """
    return {int(first or second) for first, second in VICTIM.findall(record)}


def _counter_above(place: str) -> str:
    """The next memory.events at or above a cgroup: it counts what is below as well."""
    while len(place) > 1:
        path = place + "/memory.events"
        if os.path.exists(path):
            return path
        place = os.path.dirname(place)
    return ""


def _counter_v1() -> str:
    for line in read(OWN).split("\n"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if "memory" in controllers.split(","):
            is_it = lambda kind, options: kind == "cgroup" and "memory" in options.split(",")  # noqa: E731
            place = place_in(read(MOUNTS), path, is_it)
            return place and place + "/memory.oom_control"
    return ""
