"""Ranks that wait in their debuggers: where their sockets are, and how a rank that runs is stopped."""

from __future__ import annotations

import os

from mesh.agent.base.directories import private_directories
from mesh.agent.forward import inside

SUFFIX = ".nodes/debug"  # of the directory of a run's sockets
ASKED = "-asked"
NOT_PREPARED = "it has no Python that began with --debug; `mesh stacks` shows where it is"


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
    for name in sorted(os.listdir(place)) if place and os.path.isdir(place) else ():
        rank, _, pid = name.partition("-")
        pid = pid[: -len(ASKED)] if pid.endswith(ASKED) else pid
        is_new = rank.isdigit() and pid.isdigit() and int(rank) not in found
        if is_new and os.path.exists("/proc/" + pid):
            found[int(rank)] = os.path.join(place, name)
    return found


def stop(run: str, rank: int) -> str:
    """Have a rank of this host stop; return why it cannot, or "". May block for some seconds."""
    from mesh.agent.control import requests
    from mesh.agent.process.processes import families, has_signal

    pids = [one.pid for found in requests.runs(run) for one in found.ranks if one.rank == rank and not one.ended]
    if not pids:
        return "it does not run"
    for processes in families(pids).values():
        for process in processes:
            if has_signal(str(process.pid), "SigCgt", inside.STOP_SIGNAL):
                os.kill(process.pid, inside.STOP_SIGNAL)
                return ""
    return NOT_PREPARED
