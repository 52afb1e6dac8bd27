"""The steps of all hosts, with their times: one line when the last host has done one."""

from __future__ import annotations

from mesh.core.cluster import Placement
from mesh.core.events import Connected, Event, Exited, Gone, HostEvent, Locked, RankEvent, Ready, Started, Synced
from mesh.core.ranks import counted

STEPS: tuple[tuple[type[HostEvent], str], ...] = (
    (Connected, "connected"),
    (Locked, "locked"),
    (Synced, "workspace there"),
    (Ready, "prepared"),
    (Started, "ranks started"),
    (Exited, "ranks ended"),
    (Gone, "clean"),
)


class Steps:
    """Takes the events of a run, and counts the hosts or ranks that each step still lacks."""

    def __init__(self, placement: Placement, began: float) -> None:
        """began: seconds on the clock that handle() gets"""
        self._placement, self._began = placement, began
        hosts, ranks = range(len(placement.hosts)), range(placement.world_size)
        self._missing = {step: set(ranks if issubclass(kind, RankEvent) else hosts) for kind, step in STEPS}

    def handle(self, event: Event, now: float) -> str:
        """Return the line to show: when the last host has done a step; "" otherwise."""
        for kind, step in STEPS:
            if isinstance(event, kind):
                missing = self._missing[step]
                number = event.rank if isinstance(event, RankEvent) else event.node
                if number in missing:
                    missing.discard(number)
                    return "" if missing else self._line(step, event.node, now)
        return ""

    def _line(self, step: str, node: int, now: float) -> str:
        """
        >>> from mesh.core.cluster import Host, place_ranks
        >>> steps = Steps(place_ranks([Host(name="a", address=""), Host(name="b", address="")]), began=5.0)
        >>> [steps.handle(Locked(time=0, node=node), 5.25) for node in (1, 0)]
        ['', '0.25 s: locked on 2 hosts (a last)']
        """
        count = len(self._placement.hosts)
        last = f" ({self._placement.hosts[node].name} last)" if count > 1 else ""
        return f"{now - self._began:.2f} s: {step} on {counted(count, 'host')}{last}"
