"""The time for which an allocation stays: until nobody uses it, and until Slurm ends it. Pure."""

from __future__ import annotations

import re

FIRST_CLIENT_S = 40.0  # for the first client, which may look for its allocation every 10 s only
IDLE_MIN_S = 5.0  # longer than a node takes to report an agent
SSH_IDLE_MIN_S = 20.0  # the same for a client that has yet to log in to all nodes
NOTICES_S = (600.0, 60.0)  # before the end
LOOK_INTERVAL_S = 30.0  # between two looks at the end of the allocation, which may be moved
STEPS_INTERVAL_S = 30.0  # at least, between two looks at the other steps of an allocation


class Hold:
    """The time for which an allocation waits for its next client. Pure."""

    def __init__(self, began: float, hold: float, until: float, *, is_by_ssh: bool = False) -> None:
        """began: monotonic; hold: seconds; until: seconds since the epoch, before which it stays"""
        self._began, self._until = began, until
        self.idle_limit = max(hold, SSH_IDLE_MIN_S if is_by_ssh else IDLE_MIN_S)  # seconds
        self._is_used = False  # a client was there
        self._kept_until = began  # monotonic: before which the allocation stays in any case

    def is_over(self, idle_since: float | None, now: float, wall: float) -> bool:
        """Return True if nobody has been there for long enough. idle_since: monotonic; None while somebody is"""
        if idle_since is None or idle_since > self._began:
            self._is_used = True
        if idle_since is None or wall < self._until or now < self._kept_until:
            return False
        limit = self.idle_limit if self._is_used else max(self.idle_limit, FIRST_CLIENT_S)
        return now - idle_since >= limit

    def keep(self, now: float) -> None:
        """Have the allocation stay: something else than mesh uses it. now: monotonic"""
        self._kept_until = now + max(self.idle_limit, STEPS_INTERVAL_S)


class Ending:
    """The end of the allocation's time: what is due before it. Pure."""

    def __init__(self, warn_before: float = 0.0) -> None:
        """warn_before: seconds before the end at which ranks get a signal; 0: never"""
        self._left = sorted(NOTICES_S, reverse=True)
        self._warn_before, self._is_warned = warn_before, False

    def due(self, end: float, wall: float) -> str | None:
        """Return the notice that is due now; None: none. end, wall: seconds since the epoch; 0: there is no end"""
        passed = [one for one in self._left if end and wall >= end - one]
        if not passed:
            return None
        self._left = [one for one in self._left if one not in passed]
        return f"the allocation ends in {in_words(end - wall)}"

    def warns(self, end: float, wall: float) -> bool:
        """Return True once, when ranks get their signal."""
        if self._is_warned or not self._warn_before or not end or wall < end - self._warn_before:
            return False
        self._is_warned = True
        return True

    def next_in(self, end: float, wall: float) -> float:
        """Return the seconds until something is due."""
        moments = [end - one for one in self._left]
        moments += [end - self._warn_before] if self._warn_before and not self._is_warned else []
        return max(0.0, min(moments) - wall) if end and moments else LOOK_INTERVAL_S


def has_other_steps(shown: str) -> bool:
    """Return True if an allocation has another step than that of mesh. shown: by `scontrol show step JOB`

    >>> own = "StepId=12.0 UserId=0\\n  State=RUNNING\\nStepId=12.batch UserId=0\\n"
    >>> has_other_steps(own), has_other_steps(own + "StepId=12.3 UserId=0\\n")
    (False, True)
    """
    return len(re.findall(r"\bStepId=[0-9_+]+\.[0-9]+\b", shown)) > 1


def in_words(seconds: float) -> str:
    """Return a time for people.

    >>> in_words(59.7), in_words(600.0)
    ('60 s', '10 min')
    """
    return f"{round(seconds / 60)} min" if seconds >= 120 else f"{max(0, round(seconds))} s"


def port_range(config: str) -> tuple[int, int]:
    """Return SrunPortRange in what `scontrol show config` prints; (0, 0) if it is not set."""
    for line in config.splitlines():
        key, _, value = line.partition("=")
        first, _, last = value.strip().partition("-")
        if key.strip() == "SrunPortRange" and first.isdigit() and last.isdigit():
            return int(first), int(last)
    return 0, 0
