"""Hosts that hand a pack on among themselves, along a binary tree."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tree:
    """Hosts that hand one pack on among themselves: the host at place i has its parent at (i - 1) // 2."""

    number: int
    pack: int  # descriptor
    size: int
    count: int  # hosts that it may come to have
    nodes: list[int] = field(default_factory=list)  # as they came
    places: dict[int, int] = field(default_factory=dict)  # of the nodes
    ports: dict[int, int] = field(default_factory=dict)  # of those that are serving, by node
    barren: set[int] = field(default_factory=set)  # that cannot hand it on
    waiting: set[int] = field(default_factory=set)  # for the address of their parent
    given: set[int] = field(default_factory=set)  # that get it from us

    def add(self, node: int) -> None:
        """Append a host, at the last place."""
        self.places[node] = len(self.nodes)
        self.nodes.append(node)

    def parent(self, node: int) -> int:
        """Return the node from which a node fetches; -1: none, as it is the first."""
        place = self.places[node]
        return self.nodes[(place - 1) // 2] if place else -1

    def has_children(self, node: int) -> bool:
        """Return True if a host may come to fetch from a node."""
        return 2 * self.places[node] + 1 < self.count

    def is_ready(self, node: int) -> bool:
        """Return True if a node may fetch: it listens, if it has children."""
        return node in self.ports or not self.has_children(node)

    def children(self, node: int) -> list[int]:
        """Return the nodes that fetch from a node, as far as they have come."""
        first = 2 * self.places[node] + 1
        return self.nodes[first : first + 2]
