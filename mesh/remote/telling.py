"""What the frames of an agent tell, as events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mesh.core.events import (
    Answered,
    AsksPassword,
    Busy,
    Cleared,
    Detached,
    Ended,
    Exited,
    Gone,
    HostEvent,
    HostNotice,
    Introduced,
    Lacks,
    LeftOut,
    Locked,
    OtherTree,
    PrepareFailed,
    PrerunDecided,
    Ready,
    Reconnected,
    Serving,
    Started,
    StaysAttached,
    Stopped,
    Synced,
    Unfetched,
)
from mesh.remote import messages
from mesh.remote.agent.frames import FrameError


def event_of(
    header: Mapping[str, Any], data: bytes, *, node: int, sent: int, lacks_bytes: int, offset: float
) -> HostEvent:
    """The event of a node's frame, whose header was checked. Raises FrameError for one that is none.

    sent: bytes of the workspace so far; lacks_bytes: of the longest list of what the host lacks
    offset: seconds that the host's clock is ahead of ours
    """
    now = time.time()
    match header["type"]:
        case "attached":
            return Reconnected(time=now, node=node)
        case "notice":
            return HostNotice(time=now, node=node, text=header["text"], seconds=header["seconds"])
        case "stopped":
            return Stopped(time=header["time"] - offset, node=node)
        case "lacks":
            wants = messages.lacks(data, lacks_bytes)
            return Lacks(time=now, node=node, wants=wants, attempt=header["attempt"])
        case "other-tree":
            return OtherTree(time=now, node=node, tree=header["tree"], attempt=header["attempt"])
        case "started":
            return Started(time=header["time"] - offset, node=node, rank=header["rank"], pid=header["pid"])
        case "exited" | "ended":
            return _end(header, node, offset)
        case "detached":
            return Detached(time=now, node=node, ends_with=header["ends_with"])
        case "stays-attached":
            return StaysAttached(time=now, node=node)
        case "introduced":
            return Introduced(time=now, node=node, port=header["port"], reason=header["reason"])
        case "left-out":
            rank, stream = header["rank"], header["stream"]
            return LeftOut(time=now, node=node, rank=rank, stream=stream, bytes=header["bytes"])
        case _:
            return _other(header, now, node, sent, offset)


def _other(header: Mapping[str, Any], now: float, node: int, sent: int, offset: float) -> HostEvent:
    """Most of this comes before the ranks start."""
    match header["type"]:
        case "locked":
            tree, bare, ports = header["tree"], header["bare"], tuple(header["ports"])
            return Locked(time=now, node=node, tree=tree, is_bare=bare, ports=ports)
        case "serving":
            return Serving(time=now, node=node, tree=header["tree"], port=header["port"])
        case "unfetched":
            return Unfetched(time=now, node=node, tree=header["tree"], reason=header["reason"])
        case "busy":
            owner = header["owner"]
            return Busy(time=now, node=node, owner=told_owner(owner), is_brief=owner.get("watch") is True)
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
            # Its own time: what it ends because of it comes after.
            return PrepareFailed(time=header["time"] - offset, node=node, step=step, message=message, hint=hint)
        case "asks-password":
            return AsksPassword(time=now, node=node, user=header["user"])
        case "answer":
            return Answered(time=now, node=node, answer=header["answer"], clock=offset)
        case "clear":
            return Cleared(time=now, node=node)
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


def told_owner(owner: Mapping[str, object]) -> str:
    """The owner of a lock in one line."""
    if not owner:
        return "a run of which nothing is known"
    since = owner.get("since")
    when = ""
    if isinstance(since, (int, float)):
        when = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since))
    run = f"run {owner.get('run')}" + (", detached" if owner.get("detached") else "")
    return f"{owner.get('user')} on {owner.get('machine')}{when}: {owner.get('command')} ({run})"
