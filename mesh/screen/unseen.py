"""Leaving out output that the user has seen already."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.core.cluster import Placement
from mesh.core.events import CaughtUp, Event, LeftOut, Output, Stream
from mesh.core.interfaces import Sink
from mesh.core.masking import after
from mesh.screen.pause import Pause


class Unseen:
    """Hands all events to a sink but output that the user has seen, and none while a question to the user is open."""

    def __init__(
        self,
        sink: Sink,
        seen: Mapping[tuple[int, Stream], int],
        placement: Placement,
        *,
        from_start: bool,
        pause: Pause,
    ) -> None:
        """seen: bytes at the start of each stream; from_start: hand on older output as well, before CaughtUp."""
        self._sink, self._seen, self._pause = sink, dict(seen), pause
        self._behind = set() if from_start else set(range(len(placement.hosts)))  # hosts that still send old output

    def handle(self, event: Event) -> None:
        with self._pause.showing():
            self._handle(event)

    def idle(self) -> None:
        with self._pause.showing():
            self._sink.idle()

    def close(self) -> None:
        with self._pause.showing():
            self._sink.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, CaughtUp):
            self._behind.discard(event.node)
        elif isinstance(event, Output):
            key = event.rank, event.stream
            seen = min(self._seen.get(key, 0), event.size)
            if seen:
                self._seen[key] -= seen
                event = after(event, seen)
            if event.data and event.node not in self._behind:
                self._sink.handle(event)
            return
        elif isinstance(event, LeftOut) and event.node in self._behind:
            return
        self._sink.handle(event)
