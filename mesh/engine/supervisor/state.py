"""The facts of a run that all parts of the supervisor share."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.core.cluster import Placement
from mesh.core.events import PrepareFailed
from mesh.core.findings import few
from mesh.core.outcome import Cause
from mesh.core.run import RunSpec
from mesh.engine.supervisor.clock import Clock
from mesh.engine.supervisor.phases import Phase, Phases
from mesh.engine.supervisor.ranks import Ranks


class State:
    """The phase of each host, the ranks, the clock, and the cause of the run's end."""

    def __init__(self, spec: RunSpec, placement: Placement) -> None:
        self.spec = spec
        self.placement = placement
        self.clock = Clock()
        self.phases = Phases(len(placement.hosts))
        may_fail = {rank for rank, place in enumerate(placement.table) if spec.groups[place.group].may_fail}
        self.ranks = Ranks(placement, may_fail if spec.is_program else ())
        self.cause: Cause | None = None  # why the run ends; the first cause holds
        self.failures: list[PrepareFailed] = []  # of hosts that cannot take part

    def move(self, rank: int, node: int) -> None:
        """Note that a rank is on another host from now on."""
        self.ranks.move(rank, self.placement.node(rank), node)
        self.placement = self.ranks.placement = self.placement.moved([(rank, node)])

    def answering(self) -> list[int]:
        """Return the hosts that have an agent."""
        return self.phases.between(Phase.CONNECTING, Phase.OVER)

    def name(self, node: int) -> str:
        return self.placement.hosts[node].name

    def names(self, nodes: Iterable[int]) -> str:
        """Join the names of hosts for a message."""
        return few([self.name(node) for node in sorted(nodes)])
