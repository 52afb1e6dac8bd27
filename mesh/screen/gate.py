"""Hiding from a reader of events what somebody has seen already."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.core.cluster import Placement
from mesh.core.events import CaughtUp, Event, LeftOut, Output, Stream
from mesh.core.interfaces import Sink
from mesh.screen.pause import Pause


class Gate:
    """Hands on all events to a sink, but not all output, and nothing while the user is asked something."""

    def __init__(
        self,
        sink: Sink,
        hide: Mapping[tuple[int, Stream], int],
        placement: Placement,
        *,
        is_open: bool,
        pause: Pause,
    ) -> None:
        """hide: the first bytes of each stream; is_open: output is handed on before the hosts tell that it is new."""
        self._sink, self._hide, self._pause = sink, dict(hide), pause
        self._closed = set() if is_open else set(range(len(placement.hosts)))  # hosts

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
            self._closed.discard(event.node)
        elif isinstance(event, Output):
            key = event.rank, event.stream
            hidden = min(self._hide.get(key, 0), len(event.data))
            if hidden:
                self._hide[key] -= hidden
                data = event.data[hidden:]
                event = Output(time=event.time, node=event.node, rank=event.rank, stream=event.stream, data=data)
            if event.data and event.node not in self._closed:
                self._sink.handle(event)
            return
        elif isinstance(event, LeftOut) and event.node in self._closed:
            return
        self._sink.handle(event)
