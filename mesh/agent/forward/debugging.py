"""Ranks that wait in their debuggers: where their sockets are, and how a rank that runs is stopped."""

from __future__ import annotations

import os

from mesh.agent.base.directories import node_directory, private_directories, remove_nodes
from mesh.agent.forward import inside

SUFFIX = ".nodes/debug"  # of the directory of a run's sockets
ASKED = "-asked"
NO_PYTHON = "no Python runs in it"


def source() -> bytes:
    """Return what stands in sitecustomize behind the part for stacks."""
    spec = inside.__spec__
    assert spec is not None
    assert spec.origin is not None
    text: bytes = spec.loader.get_data(spec.origin)  # type: ignore[union-attr]
    code = "\n_mesh_debugger = {'__name__': 'mesh_debugger'}\nexec(%r, _mesh_debugger)\n_mesh_debugger['install']()\n"
    return (code % text.decode()).encode()


def directory(run: str, node: int) -> str:
    """Return the directory of the sockets of a run's ranks on this host; "" if there is none."""
    paths = [os.path.join(place, f"{run}-{node}{SUFFIX}") for place in private_directories()]
    return next((path for path in paths if os.path.isdir(path)), "")


def waiting(place: str) -> dict[int, str]:
    """Return the sockets of ranks that wait, by rank; those of ranks that a client has stopped end with ASKED.

    place: their directory
    """
    found: dict[int, str] = {}
    for name in _names(place):
        rank, _, pid = name.partition("-")
        pid = pid[: -len(ASKED)] if pid.endswith(ASKED) else pid
        is_new = rank.isdigit() and pid.isdigit() and int(rank) not in found
        if is_new and os.path.exists("/proc/" + pid):
            found[int(rank)] = os.path.join(place, name)
    return found


def identity(path: str) -> tuple[int, int]:
    """Return numbers that differ between two sockets that were made at the same path; zeros for none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_ctime_ns


def _names(place: str) -> list[str]:
    try:
        return sorted(os.listdir(place)) if place else []
    except OSError:  # the run has ended
        return []


def stop(run: str, node: int, rank: int) -> str:
    """Have a rank of this host stop; return why it cannot, or "". May block for some seconds."""
    from mesh.agent.ask.stacks import is_python
    from mesh.agent.control import requests
    from mesh.agent.process.processes import families, has_signal

    pids = [one.pid for found in requests.runs(run) for one in found.ranks if one.rank == rank and not one.ended]
    if not pids:
        return "it does not run"
    processes = [process for family in families(pids).values() for process in family]
    for process in processes:
        if has_signal(str(process.pid), "SigCgt", inside.STOP_SIGNAL):
            try:
                os.kill(process.pid, inside.STOP_SIGNAL)
            except OSError:  # it has just ended
                continue
            return ""
    found = next(filter(is_python, processes), None)
    return _stop_unprepared(run, node, rank, found.pid) if found else NO_PYTHON


def _stop_unprepared(run: str, node: int, rank: int, pid: int) -> str:
    """Have a process load the debugger, and stop; return why it cannot, or ""."""
    from mesh.agent.control import requests
    from mesh.agent.forward import attaching

    try:
        failure = attaching.attach(pid, rank, os.path.join(node_directory(run, node), "debug"))
        if not failure:
            os.kill(pid, inside.STOP_SIGNAL)
    except ProcessLookupError:
        failure = "it does not run"
    except OSError as error:
        failure = f"its debugger cannot be written ({error.strerror})"
    if failure and not requests.runs(run):  # its agent has ended, and removes nothing any more
        remove_nodes(run, node)
    return failure
