"""The program on a node that clients reach by SSH: it reports agents, and ends those of its allocation at its end."""

from __future__ import annotations

import os
import select
import signal

from mesh.agent.switchboard.ranks import AGENT_NAME, descends, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List

REPORT_INTERVAL_S = 2.0
STEP_NAME = b"slurmstepd"  # of the process above all processes of a step
VARIABLE = b"MESH_ALLOCATION="  # of agents and ranks on an allocation that is reached by SSH, with its number
ORDER_BYTES = 4096


class Watch:
    """Writes a line for each look to standard output. It ends with its standard input, or by SIGTERM."""

    def __init__(self, name: str, job: str) -> None:
        """name: of this node, in its lines; job: the number of the allocation"""
        self._name, self._job = name, job
        self._is_ending = False

    def run(self) -> None:
        """Report until the end of the allocation, and send SIGTERM to the agents of its runs then."""
        woken, wake = os.pipe()
        for descriptor in (woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        poll = select.poll()
        for descriptor in (woken, 0):
            poll.register(descriptor, select.POLLIN)
        while not self._is_ending:
            parents, names = processes()
            marks = [allocation_of(agent) for agent in agents_by_ssh(parents, names)]
            self._report(any(mark in ("", self._job) for mark in marks))
            if not self._is_ending and 0 in dict(poll.poll(REPORT_INTERVAL_S * 1000)):
                self._obey(os.read(0, ORDER_BYTES))
        for agent in self._own_agents():
            _send(agent, signal.SIGTERM)

    def _report(self, is_busy: bool) -> None:
        """Write a line for the holder. That it cannot be written is the end of the allocation: srun is gone."""
        try:
            os.write(1, f"{self._name} {is_busy:d}\n".encode())
        except OSError:
            self._is_ending = True

    def _end(self, number: int, frame: object) -> None:
        self._is_ending = True

    def _obey(self, orders: bytes) -> None:
        """Carry out lines of the holder, as `signal 10`. An end of them is that of the allocation."""
        self._is_ending = self._is_ending or not orders
        for line in orders.splitlines():
            word, _, number = line.partition(b" ")
            if word == b"signal":
                for rank in self._own_ranks():
                    _send(rank, int(number))

    def _own_ranks(self) -> List[int]:
        """Return the processes that agents have started as ranks of this allocation."""
        parents, names = processes()
        agents = set(agents_by_ssh(parents, names))
        return [pid for pid, parent in parents.items() if parent in agents and allocation_of(pid) == self._job]

    def _own_agents(self) -> List[int]:
        """Return the agents of this allocation, also those without a rank."""
        return [agent for agent in agents_by_ssh(*processes()) if allocation_of(agent) == self._job]


def agents_by_ssh(parents: Dict[int, int], names: Dict[int, bytes]) -> List[int]:
    """Return this user's agents that are in no step of Slurm. parents, names: of all processes, by their numbers

    >>> parents = {1: 0, 2: 1, 3: 1, 4: 3, 5: 4}
    >>> names = {1: b"init", 2: b"sshd", 3: STEP_NAME, 4: AGENT_NAME, 5: b"sleep"}
    >>> agents_by_ssh(parents, names)
    []
    """
    steps = [pid for pid, name in names.items() if name == STEP_NAME]
    found = [pid for pid, name in names.items() if name == AGENT_NAME and _is_mine(pid)]
    return [pid for pid in found if not any(descends(pid, step, parents) for step in steps)]


def _is_mine(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:  # it has just ended
        return False


def allocation_of(pid: int) -> str:
    """Return the number of the allocation that a process is marked with; "" for none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    return next((one[len(VARIABLE) :].decode() for one in variables if one.startswith(VARIABLE)), "")


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has just ended
        pass
