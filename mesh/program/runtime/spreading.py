"""Values in pieces, and the ways that they take over the hosts of a group. No threads or sockets."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

PIECE_BYTES = 1 << 20  # of a message; a host hands a piece on while the next one comes
CHAIN_BYTES = 4 << 20  # from this size on, every host sends the value once, in place of several times
SMALL_VALUE_BRANCHES = 4  # hosts that a host sends a small value to
Part = Tuple[int, int, object]  # a segment, an offset in it, and the bytes
Place = Tuple[int, int, int]  # a segment, and the bytes of it from start to stop


def cut(sizes: "Sequence[int]", limit: int = PIECE_BYTES) -> "Iterator[List[Place]]":
    """Yield the segments of a value in pieces of at most so many bytes.

    >>> list(cut([3, 0, 5], 4))
    [[(0, 0, 3), (2, 0, 1)], [(2, 1, 5)]]
    """
    piece: List[Place] = []
    room = limit
    for number, size in enumerate(sizes):
        start = 0
        while start < size:
            stop = min(size, start + room)
            piece.append((number, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield piece
                piece, room = [], limit
    if piece:
        yield piece


class Assembly:
    """A value that arrives in pieces."""

    def __init__(self, sizes: "Sequence[int]") -> None:
        self._sizes = list(sizes)
        self._segments: "List[object]" = [None] * len(self._sizes)
        self._left = sum(self._sizes)

    def add(self, parts: "Sequence[Part]") -> bool:
        """Add a piece; return True once the value is complete."""
        for number, offset, data in parts:
            view = memoryview(data).cast("B")  # type: ignore[arg-type]
            self._left -= view.nbytes
            if view.nbytes == self._sizes[number]:  # the memory that it has come in
                self._segments[number] = data
                continue
            if self._segments[number] is None:
                self._segments[number] = bytearray(self._sizes[number])
            memory = self._segments[number]
            assert isinstance(memory, bytearray)
            memory[offset : offset + view.nbytes] = view
        return self._left <= 0

    @property
    def segments(self) -> "List[object]":
        """The body of the value, and its buffers."""
        return [bytearray() if one is None else one for one in self._segments]


class Plan:
    """The hosts of a group, seen from the node that sends. Each host has one node that receives for all others there.

    >>> hosts = {"a/0": "x", "a/1": "x", "a/2": "y", "a/3": "z"}
    >>> plan = Plan(["a/0", "a/1", "a/2", "a/3"], hosts, "a/2")
    >>> plan.targets("a/2", 1), plan.targets("a/0", 1), plan.targets("a/3", 1)
    (['a/0'], ['a/3', 'a/1'], [])
    >>> plan.targets("a/2", 4)
    ['a/0', 'a/3']
    >>> plan.source("a/3", 1), plan.source("a/1", 1), plan.source("a/2", 1)
    ('a/0', 'a/0', '')
    """

    def __init__(self, members: "Sequence[str]", hosts: "Mapping[str, str]", root: str) -> None:
        """members: labels; root: the one that sends, or receives all; a label outside of the group is on no host"""
        self._locals: Dict[str, List[str]] = {}  # by the first node of each host
        firsts: Dict[str, str] = {}
        for label in (root, *(one for one in members if one != root)):
            place = hosts.get(label, "") or f"/{label}"
            first = firsts.setdefault(place, label)
            self._locals.setdefault(first, [])
            if first != label:
                self._locals[first].append(label)
        self._order = list(self._locals)
        self._first_of = {one: first for first, others in self._locals.items() for one in (first, *others)}

    def targets(self, label: str, branches: int) -> "List[str]":
        """Return the nodes that a node hands a value on to: of other hosts first."""
        return self.next_hosts(label, branches) + self.others_here(label)

    def source(self, label: str, branches: int) -> str:
        """Return the node that a node gets a value from; "" for the root."""
        first = self._first_of[label]
        if first != label:
            return first
        place = self._order.index(label)
        return self._order[(place - 1) // branches] if place else ""

    def next_hosts(self, label: str, branches: int) -> "List[str]":
        """Return the first nodes of the hosts that come after a node's host in the tree."""
        if label not in self._locals:
            return []
        start = branches * self._order.index(label) + 1
        return self._order[start : start + branches]

    def others_here(self, label: str) -> "List[str]":
        """Return the nodes of its host that the first node there receives for."""
        return list(self._locals.get(label, ()))


def branches_of(size: int) -> int:
    """Return how many hosts a host sends a value of so many bytes to.

    Large values go from host to host: each network link then carries the value once.
    """
    return 1 if size >= CHAIN_BYTES else SMALL_VALUE_BRANCHES
