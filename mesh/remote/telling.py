"""Events made from the messages of an agent."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from mesh.core.events import (
    Answered,
    Busy,
    Ended,
    Exited,
    Gone,
    HostEvent,
    Lacks,
    LeftOut,
    Locked,
    OtherRun,
    PrepareFailed,
    PrerunDecided,
    Ready,
    Started,
    Stopped,
    Synced,
)
from mesh.remote import messages
from mesh.remote.agent.frames import FrameError

RECENT_S = 43200.0  # a time within the last 12 hours is shown without its date


def event_of(
    header: Mapping[str, Any], data: bytes, *, node: int, sent: int, lacks_bytes: int, offset: float
) -> HostEvent:
    """Return the event of a message, whose header was checked. Raises FrameError if it makes no event.

    sent: bytes of the workspace so far; lacks_bytes: of the longest list of what the host lacks
    offset: seconds that the host's clock is ahead of ours
    """
    now = time.time()
    if event := messages.EVENTS.get(header["type"]):
        fields = {name: header[name] for name in event.__struct_fields__ if name in header}
        return event(**fields | {"time": now, "node": node})
    match header["type"]:
        case "stopped":
            return Stopped(time=header["time"] - offset, node=node)
        case "lacks":
            wants = messages.lacks(data, lacks_bytes)
            return Lacks(time=now, node=node, wants=wants, attempt=header["attempt"])
        case "started":
            return Started(time=header["time"] - offset, node=node, rank=header["rank"], pid=header["pid"])
        case "exited" | "ended":
            return _end(header, node, offset)
        case "left-out":
            rank, stream = header["rank"], header["stream"]
            return LeftOut(time=now, node=node, rank=rank, stream=stream, bytes=header["bytes"])
        case _:
            return _other(header, now, node, sent, offset)


def _other(header: Mapping[str, Any], now: float, node: int, sent: int, offset: float) -> HostEvent:
    """Return the event of a message that comes once for each host, most of them before the ranks start."""
    match header["type"]:
        case "locked":
            tree, bare, ports = header["tree"], header["bare"], tuple(header["ports"])
            others = tuple(other_run(told, offset) for told in header["others"])
            return Locked(time=now, node=node, tree=tree, is_bare=bare, ports=ports, others=others)
        case "busy":
            owner = header["owner"]
            is_brief, is_other_user = owner.get("watch") is True, owner.get("other_user") is True
            told = told_other(other_run(owner, offset)) if is_other_user else told_owner(owner)
            return Busy(time=now, node=node, owner=told, is_brief=is_brief, is_other_user=is_other_user)
        case "synced":
            files, seconds, tree, attempt = header["files"], header["seconds"], header["tree"], header["attempt"]
            return Synced(time=now, node=node, files=files, bytes=sent, seconds=seconds, tree=tree, attempt=attempt)
        case "decided":
            entry, why, missing = header["entry"], header["why"], tuple(header["missing"])
            return PrerunDecided(time=now, node=node, entry=entry, why=why, missing=missing)
        case "ready":
            status, nearest = header.get("status", 0), header.get("nearest", "")
            return Ready(time=now, node=node, interfaces=header["interfaces"], status=status, nearest=nearest)
        case "failed":
            step, message, hint = header["step"], header["message"], header["hint"]
            # The host's own time, because the ranks that it ends for this reason end later.
            number = header.get("signal")
            killed_by = "" if number is None else f"signal {number}" if number else "a signal"
            at = header["time"] - offset
            return PrepareFailed(time=at, node=node, step=step, message=message, hint=hint, killed_by=killed_by)
        case "answer":
            return Answered(time=now, node=node, answer=header["answer"], clock=offset)
        case "gone":
            return Gone(time=now, node=node, left=tuple(header["left"]), stays=tuple(header["stays"]))
        case other:
            raise FrameError(f"an unknown frame {other!r}")


def _end(header: Mapping[str, Any], node: int, offset: float) -> Exited | Ended:
    event = Exited if header["type"] == "exited" else Ended
    return event(
        time=header["time"] - offset,
        node=node,
        rank=header["rank"],
        code=header.get("code", 0),
        signal=header.get("signal", 0),
        during=header.get("during", ""),
        oom=header.get("oom", False),
        is_last=header.get("last", False),
    )


def other_run(told: Mapping[str, Any], offset: float) -> OtherRun:
    """Return a run of another Unix user, as a host names it. Raises FrameError.

    offset: seconds that the host's clock is ahead of ours
    """
    for name in ("user", "run", "since"):
        if name not in told:
            raise FrameError(f"busy: owner: no {name}")
    return OtherRun(user=told["user"], run=told["run"], since=told["since"] - offset)


def told_other(other: OtherRun) -> str:
    """Return a run of another Unix user in one line.

    >>> told_other(OtherRun(user="alice", run="20260101-120000-abcdef", since=0.0)).startswith("alice since 19")
    True
    """
    is_today = time.time() - other.since < RECENT_S
    when = time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", time.localtime(max(0.0, other.since)))
    return f"{other.user} since {when} (run {other.run})"


def told_owner(owner: Mapping[str, object]) -> str:
    """Return the owner of a lock in one line."""
    if not owner:
        return "a run that gave no details"
    since = owner.get("since")
    when = ""
    if isinstance(since, (int, float)):
        when = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since))
    run = f"run {owner.get('run')}" + (", detached" if owner.get("detached") else "")
    told = f"{owner.get('user')} on {owner.get('machine')}{when}: {owner.get('command')} ({run})"
    ends_by = owner.get("ends_by")
    if isinstance(ends_by, int | float):
        told += f"; no sign of its client: its ranks end by {clock_time(ends_by)}"
    return told


def clock_time(moment: float) -> str:
    """Return the minute, on the user's clock, by which a moment has passed. moment: seconds since the epoch

    >>> clock_time(3599.0) == clock_time(3541.0) == time.strftime("%H:%M", time.localtime(3600))
    True
    """
    return time.strftime("%H:%M", time.localtime(math.ceil(moment / 60) * 60))
