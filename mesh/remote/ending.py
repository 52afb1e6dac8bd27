"""The reasons why an agent did not start, or is gone, by the farewell of its channel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypedDict

from mesh.agent.guardian import KILLED, SWEPT_STATUS
from mesh.agent.process.notes import NO_NOTES
from mesh.core.errors import HostUnreachable
from mesh.core.interfaces import Farewell, NoAgent
from mesh.core.text import last_line
from mesh.remote.blob import NO_PYTHON, OLD_PYTHON


class LostAgent(TypedDict):
    """The fields of a Lost that the end of a channel shows."""

    reason: str
    is_clear: bool
    killed_by: str


def plain(end: NoAgent) -> HostUnreachable:
    """Return why no agent has started, without words of a backend."""
    return HostUnreachable("the agent did not start", step="python")


def failed_start(
    farewell: Farewell, banner: bytes, limit: float, explain: Callable[[NoAgent], HostUnreachable]
) -> HostUnreachable:
    """Return why the channel ended before the agent sent its greeting, with a hint.

    banner: what came instead; limit: seconds that the start had, if it took longer; else 0
    explain: as Backend.explain, for all that is not Python's
    """
    last = last_line(farewell.stderr or banner)
    if not limit and (farewell.status in NO_PYTHON or last.endswith("Command not found.")):  # csh
        message = "no python3 there, or not the one that python: of cluster.yaml names" + f" ({last})" * bool(last)
        hint = "install Python 3.8 or later on the host, or set python: in cluster.yaml to the path of one"
        return HostUnreachable(message, hint=hint, step="python")
    if not limit and farewell.status == OLD_PYTHON:
        hint = "set python: in cluster.yaml to the path of Python 3.8 or later"
        return HostUnreachable("python3 is older than 3.8 there", hint=hint, step="python")
    return explain(NoAgent(status=farewell.status, stderr=farewell.stderr, banner=banner, limit=limit))


def lost_agent(farewell: Farewell) -> LostAgent:
    """Return why an agent is gone that had sent its greeting."""
    found = re.search(re.escape(KILLED) + r"(\d+)", farewell.stderr.decode("utf-8", "replace"))
    killed_by = f"signal {found.group(1)}" if found else ""
    last = last_line(farewell.stderr)
    if last:
        reason = f"its agent ended: {last}"
    elif farewell.status is not None:
        reason = f"its agent ended (exit {farewell.status})"
    else:
        reason = "the connection ended"
    return LostAgent(reason=reason, is_clear=farewell.status == SWEPT_STATUS, killed_by=killed_by)


def gone_agent(left: Sequence[str], away: float, return_within: float) -> LostAgent:
    """Return why a host has no agent any more, once it could be reached again.

    left: processes that the agent has left there, in words
    away: seconds since the connection ended; return_within: that the agent waits for its client; 0: unknown
    """
    # An agent that was killed leaves notes. One that ends its run removes them, once all processes have ended.
    if list(left) == [NO_NOTES] and 0 < return_within <= away:
        waited = f"its agent ends the run after {return_within:g} s without a client"
        return LostAgent(reason=f"the connection was away for {away:.0f} s, and {waited}", is_clear=True, killed_by="")
    reason = "its agent is gone" + (f", and left there {'; '.join(left)}" if left else "")
    return LostAgent(reason=reason, is_clear=not left, killed_by="a signal")


def explained(reason: str, found: str) -> str:
    """Return the reason of a loss, after the one that the backend has; found: "" for none

    >>> explained("the connection ended", "the pod was deleted"), explained("deleted", "deleted")
    ('the pod was deleted (the connection ended)', 'deleted')
    """
    return found if reason in found else f"{found} ({reason})" if found else reason
