"""Questions that a client asks of a host without a run of its own."""

from __future__ import annotations

import os
import re
import signal
import time

from . import cgroups, doors, stacks
from .checks import facts
from .doors import below
from .gpus import count_gpus
from .notes import left_notes, strays
from .processes import all_processes, is_agent, run_of, send_signal, variable_of
from .reach import close_ports, open_ports, try_all
from .state import is_home_read_only, machine_directory, machine_id, places_of
from .tape import tapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .processes import Process

MARGIN = 10.0  # seconds beyond a run's grace, for SIGKILL to take effect and for a look that all is gone
YOUNG = 60.0  # seconds in which a control group may still be waiting for its run
# What a run keeps in the machine's directory, and removes at its end.
OF_A_RUN = re.compile(r"(?:spool|share|bin)-(.+)-([0-9]+)")

OF_A_GROUP = re.compile(r"mesh-(.+?-.+?-.+?)-([0-9]+)-(.+)")


def answer(question: dict[str, Any], remote_dir: str, given: bytes) -> dict[str, Any]:
    """By "question": "check" (checks.py), "listen", "try" and "hush" (reach.py), "runs", "gpus", "worker" (tpu.py),
    "tapes", "detach" with "run", "pass" with "run", "signal", "ranks" (None: all) and "id", "stop" with "run" ("" for
    all) and "grace", "clean" with "dry_run" and "over" (runs whose client is over), or "stacks" with "run" and "tool"
    (stacks.py).

    given: what came with it
    May block. Raises OSError.
    """
    if question["question"] == "check":
        return facts(question, remote_dir)
    if question["question"] == "worker":
        from .tpu import worker_number

        return worker_number()
    if question["question"] == "gpus":
        return {"gpus": count_gpus()}
    if question["question"] == "listen":
        return open_ports(question["key"], question["ports"])
    if question["question"] == "try":
        return try_all(question["key"], question["targets"])
    if question["question"] == "hush":
        return close_ports()
    if question["question"] == "runs":
        runs = doors.runs(patience=doors.LIST_LIMIT_S)
        orphans = [{"run": run, "told": process.told()} for run, process in _orphans(runs)]
        return {"runs": runs, "orphans": orphans}
    if question["question"] == "tapes":
        return {"tapes": [tape for place in places_of(remote_dir) for tape in tapes(machine_directory(place))]}
    if question["question"] == "detach":
        return {"told": doors.tell_runs(question["run"], {"type": "detach"})}
    if question["question"] == "pass":
        request = {"type": "pass", **{name: question[name] for name in ("signal", "ranks", "id")}}
        return {"told": doors.tell_runs(question["run"], request)}
    if question["question"] == "clean":
        machines = [machine_directory(place) for place in places_of(remote_dir)]
        return {"found": _clean(machines, question["dry_run"], question["over"])}
    if question["question"] == "stacks":
        # Not one in /tmp that nobody has looked at: what is kept there is executed.
        place = places_of(remote_dir)[-1] if is_home_read_only(remote_dir) else remote_dir
        return stacks.tell(doors.runs(question["run"]), place, question["tool"], given)
    return _stop(question["run"], question["grace"])


def _stop(run: str, grace: float | None) -> dict[str, Any]:
    """End runs, and wait until all their processes are gone. An agent that does not answer is ended with its ranks.

    grace: seconds from SIGTERM to SIGKILL; None: what each run was started with
    """
    from .takeover import end_agent, wait_until_ended

    stopped = doors.stop_runs(run, grace)
    longest = max([told.get("grace", MARGIN) if grace is None else grace for told in stopped], default=0.0)
    at_work, stuck = wait_until_ended(stopped, longest + MARGIN)
    left = at_work | {agent for agent in stuck if end_agent(*agent)}
    for orphan in [] if left else [name for name, _ in _orphans(doors.runs()) if name == run or not run]:
        stopped.append({"run": orphan, "node": -1})
        if doors.sweep(orphan):
            left.add((orphan, -1))
        else:
            for note in left_notes(orphan):
                doors.remove_door(note.run, note.node)
    return {"stopped": stopped, "left": sorted({run for run, _ in left})}


def _orphans(runs: list[dict[str, Any]]) -> list[tuple[str, Process]]:
    """Our user's processes of runs that have no agent any more, less what a setup has left there on purpose.

    runs: what all agents have answered
    """
    every = all_processes()
    kept = {process.pid for process in below({process.pid for process in every if is_agent(process.pid)}, every)}
    live = {told["run"] for told in runs} | {run_of(pid) for pid in kept}
    found = []
    for process in every:
        run = run_of(process.pid) if process.pid not in kept else ""
        if run and run not in live and _is_ours(process.pid) and not variable_of(process.pid, b"MESH_SETUP"):
            found.append((run, process))
    known = {process.pid for _, process in found}
    hidden = [(note.run, process) for note in left_notes() for process in strays(note)]
    return found + [(run, process) for run, process in hidden if process.pid not in known]


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _live(runs: list[dict[str, Any]]) -> tuple[set[tuple[str, str]], set[str]]:
    """The runs that live: by run and node, and those that are known by a process only."""
    every = all_processes()
    agents = {process.pid for process in every if is_agent(process.pid)}
    known = {run_of(process.pid) for process in below(agents, every)}
    return {(told["run"], str(told["node"])) for told in runs}, known


def _clean(machines: list[str], dry_run: bool, over: list[str]) -> list[dict[str, Any]]:
    """What runs have left because they were cut short: each with "what" and "bytes"; removed unless it is a dry run.

    over: runs whose client is over
    """
    found: list[dict[str, Any]] = []
    for run in [] if dry_run else over:
        from .takeover import end_run

        ended = end_run(run)
        if ended["was_on"]:
            found.append({"what": f"run {run}, whose client is over", "bytes": 0, "stays": bool(ended["left"])})
    runs = doors.runs()
    for told in runs:
        if told["state"] == doors.NOT_ANSWERING:
            what = f"run {told['run']}: its agent does not answer, so nobody could look (`mesh stop {told['run']}`)"
            found.append({"what": what, "bytes": 0, "stays": True})
    for run, process in _orphans(runs):
        found.append({"what": f"{process.told()} of run {run}", "bytes": 0})
        if not dry_run:
            found[-1]["stays"] = bool(send_signal([process], signal.SIGKILL))
    live = _live(runs)
    for path in _groups(live):
        found.append({"what": path, "bytes": 0})
        if not dry_run:
            cgroups.remove(path)
            found[-1]["stays"] = os.path.exists(path)
    notes = [note.path for note in left_notes()]
    for path in [*notes, *(path for machine in machines for path in _files_of(machine, live))]:
        found.append({"what": path, "bytes": _size(path)})
        if not dry_run:
            _remove(path)
            found[-1]["stays"] = os.path.lexists(path)
    return found


def _files_of(machine: str, live: tuple[set[tuple[str, str]], set[str]]) -> list[str]:
    workspaces = os.path.join(os.path.dirname(os.path.dirname(machine)), "workspaces")
    read = [tape["path"] for tape in tapes(machine) if tape["is_fetched"] and not tape["is_on"]]
    return [*_leftovers(machine, live), *_stagings(workspaces), *read]


def _lives(live: tuple[set[tuple[str, str]], set[str]], run: str, node: str) -> bool:
    return (run, node) in live[0] or run in live[1]


def _leftovers(machine: str, live: tuple[set[tuple[str, str]], set[str]]) -> list[str]:
    found = []
    for name in sorted(os.listdir(machine)) if os.path.isdir(machine) else []:
        of_run = OF_A_RUN.fullmatch(name)
        kind, _, pid = name.partition(".")[0].rpartition("-")
        dead_pack = kind == "pack" and not os.path.exists("/proc/" + pid)
        if dead_pack or (of_run and not _lives(live, *of_run.groups())):
            found.append(os.path.join(machine, name))
    return found


def _groups(live: tuple[set[tuple[str, str]], set[str]]) -> list[str]:
    """Control groups of runs that have no agent any more; their processes have been named before."""
    place, found = cgroups.own(), []
    for name in sorted(os.listdir(place)) if place else []:
        of_run = OF_A_GROUP.fullmatch(name)
        if of_run and of_run.group(3) == machine_id() and not _lives(live, *of_run.groups()[:2]):
            path = os.path.join(place, name)
            # A container of this machine may have the same name as we, and a run's first process be on its way.
            if not cgroups.is_populated(path) and _age(path) > YOUNG:
                found.append(path)
    return found


def _age(path: str) -> float:
    """Seconds since it was made or changed; 0 if it is gone."""
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


def _stagings(workspaces: str) -> list[str]:
    """What a sync that was killed has left; one that is under way on another machine has written lately."""
    found = []
    for name in sorted(os.listdir(workspaces)) if os.path.isdir(workspaces) else []:
        path = os.path.join(workspaces, name)
        pid = name.rpartition(".new-")[2]
        old = pid.isdigit() and min((_age(place) for place, _, _ in os.walk(path)), default=0.0) > 3600
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
            import shutil

            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:  # whoever looks then sees that it stays
        pass
