"""Owners of locks and runs of other users, in one line for people."""

from __future__ import annotations

import math
import time

from mesh.core.events import OtherRun
from mesh.protocol.answers import OtherUser, Owner
from mesh.protocol.frames import FrameError

RECENT_S = 43200.0  # a time within the last 12 hours is shown without its date


def other_run(other: OtherUser, offset: float) -> OtherRun:
    """Return a run of another Unix user, on our clock.

    offset: seconds that the host's clock is ahead of ours
    """
    return OtherRun(user=other.user, run=other.run, since=other.since - offset)


def other_owner(owner: Owner) -> OtherUser:
    """Return the owner of a lock that belongs to another Unix user. Raises FrameError unless it names the run."""
    if not owner.user or not owner.run or owner.since is None:
        raise FrameError("busy: owner: no user, run or since")
    return OtherUser(user=owner.user, run=owner.run, since=owner.since)


def other_line(other: OtherRun) -> str:
    """Return a run of another Unix user in one line.

    >>> other_line(OtherRun(user="alice", run="20260101-120000-abcdef", since=0.0)).startswith("alice since 19")
    True
    """
    is_today = time.time() - other.since < RECENT_S
    when = time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", time.localtime(max(0.0, other.since)))
    return f"{other.user} since {when} (run {other.run})"


def owner_line(owner: Owner) -> str:
    """Return the owner of a lock in one line.

    >>> owner_line(Owner(run="r", user="ana", machine="m", command="true"))
    'ana on m: true (run r)'
    """
    if owner == Owner():
        return "a run that gave no details"
    since = owner.since
    when = "" if since is None else time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(since))
    run = f"run {owner.run or '?'}" + (", detached" if owner.detached else "")
    line = f"{owner.user or '?'} on {owner.machine or '?'}{when}: {owner.command or '?'} ({run})"
    if owner.ends_by is not None:
        line += f"; no sign of its client: its ranks end by {clock_time(owner.ends_by)}"
    return line


def clock_time(moment: float) -> str:
    """Return the minute, on the user's clock, by which a moment has passed. moment: seconds since the epoch

    >>> clock_time(3599.0) == clock_time(3541.0) == time.strftime("%H:%M", time.localtime(3600))
    True
    """
    return time.strftime("%H:%M", time.localtime(math.ceil(moment / 60) * 60))
