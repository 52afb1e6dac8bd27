"""Lines about hosts: what many hosts report at about the same time is one line."""

from __future__ import annotations

from collections.abc import Callable

from mesh.core.ranks import HOSTS_NAMED, few

WAIT_S = 0.3  # that a line waits for the same line about other hosts


class HostLines:
    """Lines that wait for their like, in the order in which they came.

    >>> lines = HostLines(print)
    >>> for name in ("a", "b"):
    ...     lines.add(name, "is back", 0.0)
    >>> lines.tick(WAIT_S)
    a, b: is back
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        """write: called with each line, less its end"""
        self._write = write
        self._names: dict[str, list[str]] = {}  # of hosts, by the text about them
        self._due = 0.0  # when the lines are written

    def add(self, name: str, text: str, now: float) -> None:
        """Take a line about a host. now: seconds, of the same clock as in ``tick``"""
        if not self._names:
            self._due = now + WAIT_S
        self._names.setdefault(text, []).append(name)

    def tick(self, now: float) -> None:
        """Write the lines once the first one has waited long enough."""
        if self._names and now >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write all lines."""
        found, self._names = self._names, {}
        for text, names in found.items():
            hosts = few(names)
            self._write(f"{hosts if len(names) <= HOSTS_NAMED else f'{len(names)} hosts ({hosts})'}: {text}")
