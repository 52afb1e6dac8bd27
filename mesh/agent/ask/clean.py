"""Removal of the things that runs have left behind because they were cut short."""

from __future__ import annotations

import os
import re
import shutil
import time

from mesh.agent.ask.runs import orphans
from mesh.agent.base.directories import cut_short, machine_directory, machine_id, places_of, private_directories
from mesh.agent.base.light import signal
from mesh.agent.control import requests
from mesh.agent.control.takeover import end_run
from mesh.agent.link.journal import journals
from mesh.agent.process import cgroups
from mesh.agent.process.notes import left_notes
from mesh.agent.process.processes import all_processes, below, is_agent, run_of, send_signal
from mesh.protocol.replies import Cleaned, Leftover

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.ask.context import Context
    from mesh.protocol.questions import AskLeftovers
    from mesh.protocol.replies import Run

YOUNG_GROUP_S = 60.0  # in which a control group may still be waiting for its run
YOUNG_STAGING_S = 3600.0  # a sync that is under way on another machine has written lately
FILE_OF_RUN = re.compile(r"(?:spool|share|bin)-(.+)-([0-9]+)")  # in the machine's directory; its run removes it
GROUP_OF_RUN = re.compile(r"mesh-(.+?-.+?-.+?)-([0-9]+)-(.+)")


def clean(question: AskLeftovers, context: Context) -> Cleaned:
    """Name the things that runs have left behind; remove them unless it is a dry run."""
    dry_run = question.dry_run
    found = [] if dry_run else _end_over(context.over)
    runs = requests.runs()
    found += [_silent(one) for one in runs if one.state == requests.NOT_ANSWERING]
    for run, process in orphans(runs):
        what = f"{process.described()} of run {run}"  # a process that was killed has no command line any more
        stays = not dry_run and bool(send_signal([process], signal.SIGKILL))
        found.append(Leftover(what=what, bytes=0, stays=stays))
    living = _Living(runs)
    for path in _groups(living):
        if not dry_run:
            cgroups.remove(path)
        found.append(Leftover(what=path, bytes=0, stays=not dry_run and os.path.exists(path)))
    machines = [machine_directory(place) for place in places_of(context.remote_dir)]
    files = [*(note.path for note in left_notes()), *_programs(living)]
    for path in [*files, *(path for machine in machines for path in _files(machine, living))]:
        size = _size(path)
        if not dry_run:
            _remove(path)
        found.append(Leftover(what=path, bytes=size, stays=not dry_run and os.path.lexists(path)))
    return Cleaned(found=found)


def _end_over(over: Sequence[str]) -> list[Leftover]:
    """End runs whose clients are over."""
    found = []
    for run in over:
        left, was_on = end_run(run)
        if was_on:
            found.append(Leftover(what=f"run {run}, whose client is over", bytes=0, stays=bool(left)))
    return found


def _silent(run: Run) -> Leftover:
    what = f"run {run.run}: its agent does not answer, so nobody could look (`mesh stop {run.run}`)"
    return Leftover(what=what, bytes=0, stays=True)


class _Living:
    """The runs that live."""

    def __init__(self, runs: Sequence[Run]) -> None:
        """runs: the answers of all agents"""
        every = all_processes()
        agents = {process.pid for process in every if is_agent(process.pid)}
        self._with_agent = {(one.run, str(one.node)) for one in runs}
        self._with_process = {run_of(process.pid) for process in below(agents, every)}

    def has(self, run: str, node: str) -> bool:
        return (run, node) in self._with_agent or run in self._with_process


def _files(machine: str, living: _Living) -> list[str]:
    """Return the files of runs that live no more, of syncs that were killed, and journals that were read."""
    found = []
    for name in sorted(os.listdir(machine)) if os.path.isdir(machine) else []:
        of_run = FILE_OF_RUN.fullmatch(name)
        kind, _, pid = name.partition(".")[0].rpartition("-")
        dead_pack = kind == "pack" and not os.path.exists("/proc/" + pid)
        if dead_pack or (of_run and not living.has(*of_run.groups())):
            found.append(os.path.join(machine, name))
    read = [journal.path for journal in journals(machine) if journal.is_fetched and not journal.is_on]
    return [
        *found,
        *cut_short(machine),
        *_stagings(os.path.join(os.path.dirname(os.path.dirname(machine)), "workspaces")),
        *read,
    ]


def _programs(living: _Living) -> list[str]:
    """Return the files of programs that live no more."""
    found = []
    for place in private_directories():
        for name in sorted(os.listdir(place)):
            run, _, node = name.rpartition(".nodes")[0].rpartition("-")
            if name.endswith(".nodes") and run and not living.has(run, node):
                found.append(os.path.join(place, name))
    return found


def _groups(living: _Living) -> list[str]:
    """Return control groups of runs that have no agent any more; their processes have been named before."""
    place, found = cgroups.own(), []
    for name in sorted(os.listdir(place)) if place else []:
        of_run = GROUP_OF_RUN.fullmatch(name)
        if of_run and of_run.group(3) == machine_id() and not living.has(*of_run.groups()[:2]):
            path = os.path.join(place, name)
            # A container of this machine may have the same name, and a run's first process be on its way.
            if not cgroups.is_populated(path) and _age(path) > YOUNG_GROUP_S:
                found.append(path)
    return found


def _age(path: str) -> float:
    """Return the seconds since a file was made or changed; 0 if it is gone."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def _stagings(workspaces: str) -> list[str]:
    """Return the directories of syncs that were killed."""
    found = []
    for name in sorted(os.listdir(workspaces)) if os.path.isdir(workspaces) else []:
        path = os.path.join(workspaces, name)
        pid = name.rpartition(".new-")[2]
        old = pid.isdigit() and min((_age(place) for place, _, _ in os.walk(path)), default=0.0) > YOUNG_STAGING_S
        if old and not os.path.exists("/proc/" + pid):
            found.append(path)
    return found


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(path) for name in names)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:  # the answer then has that it stays
        pass
