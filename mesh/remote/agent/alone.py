"""What a host decides by itself about a run that no client supervises.

The client's supervisor has the same rules for all hosts together. What other hosts tell comes in as ``fail``.
"""

from __future__ import annotations

from .lean import signal

QUIET = 0.5  # seconds without output after a failure: the others have nothing more to say; as in supervisor.py


class Alone:
    """Rules for the ranks of one host. Time is monotonic and comes with each question."""

    def __init__(self, ranks: int, *, drain: float, timeout_at: float, keep_going: bool) -> None:
        """ranks: how many there are here; drain: seconds that the others may speak after the first failure."""
        self._left, self._drain, self._timeout_at = ranks, drain, timeout_at
        self._keep_going = keep_going
        self._stop_at = float("inf")
        self._cause = ""  # why the ranks are to end, once something has failed
        self._last_output = 0.0
        self.is_stopped = False  # the ranks have been told to end, by whomever

    def ended(self, failed: bool, now: float) -> None:
        """A rank has ended, and all that it printed was kept."""
        self._left -= 1
        if failed and not self.is_stopped:
            self.fail("rank", now)

    def fail(self, cause: str, now: float) -> None:
        """Here or on another host, something has failed; cause: "rank" or "lost". Only the first counts."""
        if not self._keep_going and not self._cause:
            self._cause, self._stop_at, self._last_output = cause, now + self._drain, now

    def printed(self, now: float) -> None:
        """A rank has printed something."""
        self._last_output = now

    @property
    def has_failed(self) -> bool:
        """A rank has failed, here or elsewhere, and the others are to end for it."""
        return self._cause == "rank"

    @property
    def is_over(self) -> bool:
        """True once all ranks have ended: what is left of the run is to be ended too."""
        return self._left <= 0

    def next(self) -> float:
        """When ``due`` is to be asked again, at the latest."""
        if self.is_stopped or self.is_over:
            return float("inf")
        return min(self._timeout_at, self._stop_at, self._last_output + QUIET if self._cause else float("inf"))

    def due(self, now: float) -> tuple[str, int] | None:
        """Why the ranks that are left are to be signalled now, and by what: "timeout", "rank" or "lost"; else None."""
        if self.is_stopped or self.is_over:
            return None
        if now >= self._timeout_at:
            return "timeout", signal.SIGTERM
        if self._cause and (now >= self._stop_at or now - self._last_output >= QUIET):
            return self._cause, signal.SIGTERM
        return None
