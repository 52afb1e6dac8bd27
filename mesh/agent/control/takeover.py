"""End runs of other agents on this machine: runs whose client is over, and agents that do not answer."""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import contents, signal
from mesh.agent.control import requests
from mesh.agent.control.requests import NOT_ANSWERING
from mesh.agent.control.sockets import remove_socket, socket_path
from mesh.agent.process import cgroups
from mesh.agent.process.notes import remove_notes
from mesh.agent.process.processes import Process, all_processes, families, is_agent, look_at, send_signal
from mesh.agent.process.sweep import sweep
from mesh.protocol.control import Over

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh.protocol.replies import Run

LOOK_INTERVAL_S = 0.05  # between two looks whether a run has ended
KILL_INTERVAL_S = 0.01
END_LIMIT_S = 5.0  # beyond a run's grace, for SIGKILL to take effect and for a last look
SWEEP_LIMIT_S = 10.0  # for a guardian to end what its agent has left, containers too
KILL_LIMIT_S = 5.0  # for SIGKILL to take effect


def end_run(run: str) -> tuple[list[str], bool]:
    """End a run whose client is over, and wait until nothing of it is left. May block for its grace and more.

    Returns lines about processes that could not be ended, and False if the run had ended before.
    """
    # An agent of a detached run refuses: its client may have left in this moment.
    runs = [one for one in requests.describe(run, Over()) if not one.detached]
    at_work, stuck = wait_until_ended(runs, max([one.grace or 0.0 for one in runs], default=0.0) + END_LIMIT_S)
    left = [line for agent in sorted(at_work | stuck) for line in end_agent(*agent)]
    return left, any(one.state != "ended" for one in runs)


def wait_until_ended(runs: Sequence[Run], seconds: float) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Wait until agents have ended their runs. Returns the agents that are still at work, and those that do not answer.

    runs: the answers of the agents; an agent is named by its run and node
    """
    deadline = time.monotonic() + seconds
    at_work = _agents(runs)
    stuck = _agents(one for one in runs if one.state == NOT_ANSWERING)
    while at_work - stuck and time.monotonic() < deadline:
        time.sleep(LOOK_INTERVAL_S)
        now = [one for run in {run for run, _ in at_work - stuck} for one in requests.runs(run)]
        stuck |= at_work & _agents(one for one in now if one.state == NOT_ANSWERING)
        at_work &= _agents(one for one in now if one.state != "ended") | stuck
    return at_work - stuck, stuck


def _agents(runs: Iterable[Run]) -> set[tuple[str, int]]:
    return {(one.run, one.node) for one in runs}


def end_agent(run: str, node: int) -> list[str]:
    """Kill an agent that does not answer, its guardian and all processes below. Returns lines about those left."""
    left: list[Process] = []
    groups: list[str] = []
    holders = {process.pid: process for process in look_at(_holders(socket_path(run, node)))}
    # The agent itself: its child processes may have its socket as well.
    for agent in [process for process in holders.values() if process.parent not in holders]:
        root = agent
        if is_agent(agent.parent):
            (root,) = look_at([agent.parent]) or [agent]
        groups.append(os.path.join(cgroups.of(agent.pid), cgroups.name_of(run, node)))
        if root is not agent:
            send_signal([agent], signal.SIGKILL)
            _wait_for_guardian(root)  # it ends the processes below it, if it can
        left += _kill_below(root)
        left += send_signal(look_at([root.pid]), signal.SIGKILL)
    for group in groups:
        left += sweep("", group)
    remove_socket(run, node)
    remove_notes(run, node)
    return [process.described() for process in left]


def _wait_for_guardian(guardian: Process) -> None:
    deadline = time.monotonic() + SWEEP_LIMIT_S
    while time.monotonic() < deadline:
        found = look_at([guardian.pid])
        if not found or found[0].start != guardian.start or found[0].state in "Tt":
            return
        time.sleep(LOOK_INTERVAL_S)


def _kill_below(root: Process) -> list[Process]:
    """Kill everything below a subreaper, from which nothing escapes while it lives. Returns those left."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while True:
        family = families([root.pid])[root.pid]
        if not family or family[0].start != root.start:
            return []
        found = [process for process in family if process.pid != root.pid]
        foreign = send_signal(found, signal.SIGKILL)
        if not found:
            return []
        if time.monotonic() > deadline or len(foreign) == len(found):
            return found
        time.sleep(KILL_INTERVAL_S)


def _holders(path: str) -> list[int]:
    """The processes that have a control socket open. It was bound under another name, see ``ControlSocket``."""
    place, name = os.path.split(path)
    inodes = set()
    for line in contents("/proc/net/unix").split("\n"):
        words = line.split()
        if words[7:] in ([path], [f"{place}/.{name}"]):
            inodes.add(f"socket:[{words[6]}]")
    return [process.pid for process in all_processes() if inodes & _open_files(process.pid)]


def _open_files(pid: int) -> set[str]:
    found: set[str] = set()
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has just ended, or is another user's
        return found
    for name in names:
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:  # it was closed just now
            pass
    return found
