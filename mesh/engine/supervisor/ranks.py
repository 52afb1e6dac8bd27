"""The ends of ranks and the losses of hosts, and which of them count as failures."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.core.cluster import Placement
from mesh.core.events import Ended, Exited, Lost
from mesh.engine.supervisor.naming import CLOCK_ERROR_S


class Ranks:
    """The ranks of a run: which are running, which failed by themselves, which ended by our order."""

    def __init__(self, placement: Placement, may_fail: Iterable[int] = ()) -> None:
        """may_fail: ranks whose failure ends nothing"""
        self._may_fail = frozenset(may_fail)
        nodes = range(len(placement.hosts))
        self.placement = placement
        self.started = 0.0  # seconds since the epoch; 0.0: they have not
        # Counts the ranks of each host that have not ended. A host whose ranks all have, or never will, is not in it.
        self.running = {node: len(placement.ranks(node)) for node in nodes if placement.ranks(node)}
        # When we ordered the ranks of each host to end, seconds since the epoch.
        self.ordered_ends = dict.fromkeys(nodes, float("inf"))
        self.exits: dict[int, Exited] = {}
        self.suspects: dict[tuple[str, int], Exited | Lost] = {}  # failures without our order; the earliest one decides
        self.stopped: set[int] = set()
        self.lost: list[Lost] = []
        self._announced: set[int] = set()  # ranks whose failure is reported before their Exited comes

    def have_ended(self, node: int) -> bool:
        """Return True if no rank of a host runs any more."""
        return node not in self.running

    def unfinished(self, nodes: Iterable[int]) -> int:
        """Count the ranks of some hosts that have not ended."""
        return sum(rank not in self.exits for node in nodes for rank in self.placement.ranks(node))

    def first(self) -> Exited | Lost | None:
        """Return the failure that decides: the earliest one, and of ranks that end at once the lowest."""
        return min(self.suspects.values(), key=lambda one: (one.time, getattr(one, "rank", -1)), default=None)

    def failed(self) -> list[Exited]:
        """Return the ends of the ranks that failed by themselves."""
        return [one for one in self.suspects.values() if isinstance(one, Exited)]

    def order_ends(self, time: float) -> None:
        """Note that all ranks are ordered to end; an earlier order of a host holds."""
        self.ordered_ends = {node: min(ordered, time) for node, ordered in self.ordered_ends.items()}

    def announce(self, event: Ended) -> bool:
        """Note an end that is reported ahead of the rank's output; return True if it is news of a failure."""
        if event.rank in self._announced or event.rank in self.exits or not event.status or self._was_ordered(event):
            return False
        if event.rank in self._may_fail:
            return False
        self._announced.add(event.rank)
        return True

    def end(self, event: Exited) -> bool:
        """Note the end of a rank; return True if it is news of a failure."""
        if event.rank not in self.exits and event.node in self.running:
            self._subtract(event.node)
        self.exits[event.rank] = event
        if ("rank", event.rank) in self.suspects:
            self.suspects["rank", event.rank] = event
        if self._was_ordered(event):
            self.stopped.add(event.rank)
            return False
        return bool(event.status) and event.rank not in self._announced | self._may_fail

    def end_between(self, event: Exited) -> None:
        """Note the end of a rank that was moving when the run was ordered to end."""
        self.exits[event.rank] = event
        self.stopped.add(event.rank)
        self._subtract(event.node)

    def move(self, rank: int, origin: int, node: int) -> None:
        """Wait for the end of a rank on another host."""
        if origin != node and rank not in self.exits:
            self._subtract(origin)
            self.running[node] = self.running.get(node, 0) + 1

    def lose(self, event: Lost) -> None:
        """Note the loss of a host whose ranks were running."""
        self.lost.append(event)
        self.drop(event.node)

    def drop(self, node: int) -> None:
        """Wait for no rank of a host any more."""
        self.running.pop(node, None)

    def suspect(self, event: Exited | Lost) -> None:
        """Note a failure that no order of ours explains."""
        self.suspects[("rank", event.rank) if isinstance(event, Exited) else ("host", event.node)] = event

    def _subtract(self, node: int) -> None:
        """Count one rank less on a host."""
        if node in self.running:
            self.running[node] -= 1
            if not self.running[node]:
                del self.running[node]

    def _was_ordered(self, event: Exited) -> bool:
        return event.time > self.ordered_ends[event.node] - CLOCK_ERROR_S
