"""The reasons why an agent did not start, or is gone, by the farewell of its channel."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TypedDict

from mesh.agent.guardian import KILLED, SWEPT_STATUS
from mesh.agent.process.notes import NO_NOTES
from mesh.core.errors import HostUnreachable
from mesh.core.interfaces import Farewell, NoAgent
from mesh.core.text import last_line, one_line
from mesh.remote.blob import NO_PYTHON, OLD_PYTHON

GIVEN_UP = "given up"  # by the client, at its end
CONNECTION = "the connection"  # begins the words about a connection that has ended
SHARED_STEPS = ("api",)  # steps of the way to a host that are one for all hosts


class LostAgent(TypedDict):
    """The fields of a Lost that the end of a channel shows."""

    reason: str
    is_clear: bool
    killed_by: str
    is_cut: bool
    return_within: float


def _lost(reason: str, *, is_clear: bool = False, killed_by: str = "", return_within: float = 0.0) -> LostAgent:
    return LostAgent(reason=reason, is_clear=is_clear, killed_by=killed_by, is_cut=False, return_within=return_within)


class Absence:
    """The time in which a client has no channel to an agent that may go on. Used by one thread at a time."""

    def __init__(self) -> None:
        self.began: float | None = None  # monotonic; None: there is a channel
        self.return_within = 0.0  # seconds that the agent waits for its client; 0: unknown, or for ever
        self._cause = ""  # why a try to come back failed; "": none did
        self._is_of_host = True  # False: that cause lies between the client and all hosts

    def begin(self, return_within: float) -> None:
        """Note that the channel has ended."""
        self.began, self.return_within = time.monotonic(), return_within
        self._cause, self._is_of_host = "", True

    def miss(self, error: HostUnreachable) -> None:
        """Note why a try to come back has failed; a cause between the client and all hosts explains later ones."""
        if self._is_of_host or error.step in SHARED_STEPS:
            self._cause, self._is_of_host = one_line(str(error)), error.step not in SHARED_STEPS

    @property
    def has_ended_run(self) -> bool:
        """True once the agent ends the run by itself, if it is alive."""
        return self.began is not None and 0 < self.return_within <= time.monotonic() - self.began

    @property
    def is_of_host(self) -> bool:
        """False if the reason lies between the client and all hosts."""
        return self._is_of_host

    def told(self) -> str:
        """Return the reason for people."""
        seconds = 0.0 if self.began is None else time.monotonic() - self.began
        waits = f"its agent waits {self.return_within:g} s"
        return explained(f"the client was away for {seconds:.0f} s, and {waits}", self._cause)


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
    if last.startswith(CONNECTION) and farewell.status is None:
        reason = last
    elif last:
        reason = f"its agent ended: {last}"
    elif farewell.status is not None:
        reason = f"its agent ended (exit {farewell.status})"
    else:
        reason = f"{CONNECTION} ended"
    return _lost(reason, is_clear=farewell.status == SWEPT_STATUS, killed_by=killed_by)


def gone_agent(left: Sequence[str], absence: Absence) -> LostAgent:
    """Return why a host has no agent any more, once it could be reached again.

    left: processes that the agent has left there, in words
    """
    # An agent that was killed leaves notes. One that ends its run removes them, once all processes have ended.
    if list(left) == [NO_NOTES] and absence.has_ended_run:
        return _lost(absence.told(), is_clear=True, return_within=absence.return_within)
    reason = "its agent is gone" + (f", and left there {'; '.join(left)}" if left else "")
    return _lost(reason, is_clear=not left, killed_by="a signal")


def cut_off(reason: str, absence: Absence) -> LostAgent:
    """Return why a host is lost to which there is no connection. reason: the client's own"""
    end = _lost(reason)
    if reason != GIVEN_UP and absence.has_ended_run and not absence.is_of_host:
        end = _lost(absence.told(), return_within=absence.return_within)
    return {**end, "is_cut": True}


def explained(reason: str, found: str) -> str:
    """Return the reason of a loss, after the one that the backend has; found: "" for none

    >>> explained("the connection ended", "the pod was deleted"), explained("deleted", "deleted")
    ('the pod was deleted (the connection ended)', 'deleted')
    """
    return found if reason in found else f"{found} ({reason})" if found else reason
