"""The order of output of ranks that have moved between hosts, for the threads that read the journals of these hosts.

Each host numbers the bytes of a rank's stream on from those of the hosts before. Each journal has parts of the stream,
and may have more: what a lost host has printed after the rank was given up there belongs to no part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.events import Stream
from mesh.core.nodes import Arrived

Key = tuple[int, Stream]
NO_END = 1 << 62  # of the last part of a stream


class Part(Struct, frozen=True):
    """A part of a stream: all bytes of it between two places are those of one host."""

    node: int
    begin: int
    end: int


def parts_of(home: int, begins: Sequence[tuple[int, int]]) -> list[Part]:
    """Return the parts of a stream. home: the first host; begins: of each later part, its host and place

    >>> parts_of(1, [(3, 10), (1, 25)])
    [Part(node=1, begin=0, end=10), Part(node=3, begin=10, end=25), Part(node=1, begin=25, end=4611686018427387904)]
    """
    bounds = [(home, 0), *begins, (home, NO_END)]
    return [Part(node, begin, end) for (node, begin), (_, end) in pairwise(bounds)]


class Handovers:
    """Passes the bytes of each rank that has moved on in their order. For the threads of all hosts."""

    def __init__(self, placement: Placement, arrivals: Sequence[Arrived], have: Mapping[Key, int]) -> None:
        """placement: at the start of the run; arrivals: of all ranks that have moved, in order

        have: bytes of each stream that need not come
        """
        self._parts: dict[Key, list[Part]] = {}
        self._ranks: dict[int, set[int]] = {}  # that have come to each host
        for one in arrivals:
            self._ranks.setdefault(one.node, set()).add(one.rank)
        for rank in {one.rank for one in arrivals}:
            for stream in (Stream.STDOUT, Stream.STDERR):
                begins = [(one.node, one.printed.get(stream.value, 0)) for one in arrivals if one.rank == rank]
                self._parts[rank, stream] = parts_of(placement.node(rank), begins)
        self._have = {key: have.get(key, 0) for key in self._parts}
        self._reached: dict[tuple[int, Key], int] = {}  # the place in a stream up to which a host has been read
        self._ended: set[int] = set()  # hosts that are not read any more
        self._is_over = False
        self._changed = threading.Condition()

    def ranks(self, node: int) -> set[int]:
        """Return the ranks that have come to a host from others, also those that have left it again."""
        return self._ranks.get(node, set())

    def concerns(self, key: Key) -> bool:
        """Return True if the rank of a stream has moved."""
        return key in self._parts

    def take(self, node: int, key: Key, at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the new bytes of a piece of output, each time after the bytes that are missing before them.

        Waits until the hosts of earlier parts have been read, as far as bytes of them are missing.
        node: the host that has sent the piece; at: its place in the stream
        """
        for part in self._parts[key]:
            begin, end = max(at, part.begin), min(at + len(data), part.end)
            is_inside = begin < end or (not data and part.begin <= at <= part.end)
            if part.node != node or not is_inside:
                continue
            if not self._wait(node, key, begin):
                return
            have = self._have[key]
            new = data[max(begin, have) - at : end - at]
            if begin > have or new:
                yield max(0, begin - have), new
            self._have[key] = max(have, end)
            self._note(node, key, end)

    def end(self, node: int) -> None:
        """Note that a host is not read any more."""
        with self._changed:
            self._ended.add(node)
            self._changed.notify_all()

    def close(self) -> None:
        """Let no thread wait any longer: their output is not wanted."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _wait(self, node: int, key: Key, place: int) -> bool:
        """Wait until no other host can bring bytes before a place; return False if the reading is over."""
        self._note(node, key, place)
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or not self._is_awaited(node, key, place))
            return not self._is_over

    def _note(self, node: int, key: Key, place: int) -> None:
        with self._changed:
            self._reached[node, key] = place
            self._changed.notify_all()

    def _is_awaited(self, node: int, key: Key, place: int) -> bool:
        have = self._have[key]
        return any(
            part.node != node
            and part.node not in self._ended
            and part.begin < place
            and have < min(place, part.end)
            and self._reached.get((part.node, key), 0) < min(place, part.end)
            for part in self._parts[key]
        )
