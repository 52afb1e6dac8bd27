"""The end of a run whose agent was killed: processes that carry its id, control group and containers."""

from __future__ import annotations

import os
import time

from mesh.agent.base.light import signal
from mesh.agent.process import cgroups
from mesh.agent.process.containers import containers_of
from mesh.agent.process.notes import left_notes, remove_notes, strays, unverified
from mesh.agent.process.processes import Process, all_processes, below, is_agent, look_at, send_signal, variable_of

SIGKILL_TIMEOUT_S = 5.0
LOOK_INTERVAL_S = 0.01


def end_rest(run: str, node: int, remote_dir: str, cgroup: str, *, was_restarted: bool) -> list[str]:
    """End the rest of a run whose agent was killed. Return lines about all that stays or cannot be verified.

    cgroup: the run's; "": it had none; was_restarted: the machine, since the run began
    """
    left = [process.described() for process in sweep(run, cgroup)]
    left += containers_of(remote_dir, run, node).stop(0.0)
    if not cgroup and not was_restarted:
        left += unverified(run, node)
    remove_notes(run, node)
    return left


def sweep(run: str, cgroup: str = "") -> list[Process]:
    """Kill processes with the run's id, those that came of them, and those in a control group. Return what is left.

    run: "" for none, and processes of an agent that lives are spared; cgroup: "" for none; the caller's own is left out
    """
    deadline = time.monotonic() + SIGKILL_TIMEOUT_S
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
        time.sleep(LOOK_INTERVAL_S)


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
