"""The time and the deadlines of a run."""

from __future__ import annotations

from mesh.core.events import Tick


class Clock:
    """The time of the last tick, and deadlines by their names. The supervisor reads no other clock."""

    def __init__(self) -> None:
        self.monotonic = 0.0  # seconds
        self.time = 0.0  # seconds since the epoch
        self._deadlines: dict[str, float] = {}  # monotonic

    def __contains__(self, name: str) -> bool:
        return name in self._deadlines

    def set(self, event: Tick) -> None:
        """Move both clocks to the time of a tick."""
        self.monotonic, self.time = event.monotonic, event.time

    def start(self, name: str, seconds: float) -> None:
        """Set a deadline so many seconds from now, unless it is set."""
        self._deadlines.setdefault(name, self.monotonic + seconds)

    def restart(self, name: str, seconds: float) -> None:
        """Set a deadline so many seconds from now, in place of an earlier one."""
        self._deadlines[name] = self.monotonic + seconds

    def extend(self, name: str, seconds: float) -> None:
        """Move a deadline that is set to at least so many seconds from now."""
        if name in self._deadlines:
            self._deadlines[name] = max(self._deadlines[name], self.monotonic + seconds)

    def cancel(self, *names: str) -> None:
        """Remove deadlines; those that are not set do not matter."""
        for name in names:
            self._deadlines.pop(name, None)

    def is_late(self, name: str) -> bool:
        """Return True if a deadline is set and has passed."""
        return name in self._deadlines and self.monotonic >= self._deadlines[name]

    def passed(self, name: str) -> bool:
        """Return True once, when a deadline has passed."""
        is_late = self.is_late(name)
        if is_late:
            del self._deadlines[name]
        return is_late
