"""The phases of all hosts, counted so that no question about all of them walks over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Set
from enum import IntEnum


class Phase(IntEnum):
    """The progress of a host."""

    CONNECTING = 0
    CONNECTED = 1
    LOCKING = 2
    LOCKED = 3
    SYNCING = 4
    SYNCED = 5
    APPLYING = 6  # steps of modules
    APPLIED = 7
    PREPARING = 8
    READY = 9
    RUNNING = 10
    FINISHING = 11
    OVER = 12  # its agent has left, or never ran


class Phases:
    """The phase of each host, by node; at first all of them are connecting.

    >>> phases = Phases(3)
    >>> phases[1] = Phase.LOCKED
    >>> phases.of(Phase.CONNECTING), phases.have_all(Phase.CONNECTED), phases.between(Phase.CONNECTING, Phase.OVER)
    ([0, 2], False, [1])
    """

    def __init__(self, count: int) -> None:
        self._phases = [Phase.CONNECTING] * count
        self._nodes: list[set[int]] = [set() for _ in Phase]  # by phase
        self._nodes[Phase.CONNECTING].update(range(count))

    def __len__(self) -> int:
        return len(self._phases)

    def __getitem__(self, node: int) -> Phase:
        return self._phases[node]

    def __setitem__(self, node: int, phase: Phase) -> None:
        self._nodes[self._phases[node]].discard(node)
        self._phases[node] = phase
        self._nodes[phase].add(node)

    def put(self, nodes: Iterable[int], phase: Phase) -> None:
        """Put several hosts into a phase."""
        for node in nodes:
            self[node] = phase

    def of(self, phase: Phase) -> list[int]:
        """Return the hosts in a phase, in order."""
        return sorted(self._nodes[phase])

    def seen_in(self, phase: Phase) -> Set[int]:
        """Return the same as a set, which changes with the phases."""
        return self._nodes[phase]

    def have_all(self, phase: Phase) -> bool:
        """Return True if every host is in this phase or beyond it."""
        return not any(self._nodes[:phase])

    def between(self, low: Phase, high: Phase) -> list[int]:
        """Return the hosts beyond one phase that have not reached another, in order."""
        return [node for node, phase in enumerate(self._phases) if low < phase < high]
