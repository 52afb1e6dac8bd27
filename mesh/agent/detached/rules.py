"""Rules by which a host ends the ranks of a run that no client supervises.

The client's supervisor has the same rules for all hosts together. Failures on other hosts come in through ``fail``.
"""

from __future__ import annotations

QUIET_LIMIT_S = 0.5  # without output after a failure: the other ranks have printed all they had to; as in supervisor.py
NEVER = float("inf")


class UnattendedRules:
    """The rules for the ranks of one host. Every time is monotonic."""

    def __init__(self, ranks: int, *, drain: float, timeout_at: float, keep_going: bool) -> None:
        """Start with all ranks running.

        ranks: their number on this host
        drain: seconds that the other ranks may print after the first failure
        """
        self._left, self._drain, self._timeout_at = ranks, drain, timeout_at
        self._keep_going = keep_going
        self._stop_at = NEVER
        self._cause = ""  # why the ranks are to end, after the first failure
        self._last_output_at = 0.0
        self.is_stopped = False  # the ranks were signalled to end, on any ground

    def rank_ended(self, is_failure: bool, now: float) -> None:
        """Note the end of a rank whose output was kept."""
        self._left -= 1
        if is_failure and not self.is_stopped:
            self.fail("rank", now)

    def fail(self, cause: str, now: float) -> None:
        """Note the first failure of the run, here or on another host. cause: "rank" or "lost"."""
        if not self._keep_going and not self._cause:
            self._cause, self._stop_at, self._last_output_at = cause, now + self._drain, now

    def printed(self, now: float) -> None:
        """Note that a rank has printed something."""
        self._last_output_at = now

    @property
    def has_failed(self) -> bool:
        """True if a rank has failed, here or elsewhere, and the others are to end for it."""
        return self._cause == "rank"

    @property
    def is_over(self) -> bool:
        """True once all ranks have ended: what is left of the run is to be ended too."""
        return self._left <= 0

    def due_at(self) -> float:
        """Return the time at which ``due`` may have another answer."""
        if self.is_stopped or self.is_over:
            return NEVER
        return min(self._timeout_at, self._stop_at, self._last_output_at + QUIET_LIMIT_S if self._cause else NEVER)

    def due(self, now: float) -> str:
        """Return why the ranks are to be ended now: "timeout", "rank" or "lost"; "" if they are not."""
        if self.is_stopped or self.is_over:
            return ""
        if now >= self._timeout_at:
            return "timeout"
        if self._cause and (now >= self._stop_at or now - self._last_output_at >= QUIET_LIMIT_S):
            return self._cause
        return ""
