"""The run as other processes of its user see it."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.run.decide import Decisions
    from mesh.agent.run.parts import Parts


def describe(parts: Parts, decisions: Decisions, began: float) -> dict[str, object]:
    """Return the state of a run: the record Run of the protocol. began: seconds since the epoch"""
    begin = parts.begin
    pids = {process.pid for process in parts.processes.family()}
    held = holders(begin.devices)
    ranks = parts.ranks.ranks.values()
    return {
        "run": begin.run,
        "node": begin.node,
        "about": parts.detachment.about,
        "grace": begin.grace,
        "workspace": parts.state.workspace,
        "began": began,
        "attached": not decisions.is_silent(time.monotonic()) or len(parts.followers) > 0,
        "detached": decisions.is_detached,
        "tied": begin.tied,
        "state": _state(parts, decisions),
        "processes": len(pids),
        "ranks": [{"rank": rank.rank, "pid": rank.pid, "ended": rank.status >= 0} for rank in ranks],
        "devices": sorted({path for pid in pids for path in held.get(pid, ())}),
    }


def holders(patterns: Sequence[str]) -> dict[int, list[str]]:
    """Return the devices of these patterns, by the processes that hold them. An error in it ends no run."""
    try:
        from mesh.agent.run import devices

        return devices.holders(devices.find(patterns))
    except Exception:  # Python's own modules may have been removed since the run began
        return {}


def _state(parts: Parts, decisions: Decisions) -> str:
    """Return in a word how far the run is here."""
    if decisions.is_clear:
        return "ended"
    if decisions.is_over:
        return "ending"
    if parts.ranks.ranks or parts.ranks.has_begun:
        return "running"
    if parts.answering.is_pulling:
        return "pulling"
    return "preparing" if parts.locking.is_held else "waiting"
