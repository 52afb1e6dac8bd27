"""Masking of a run's events on their way from the hosts to decider and sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.cluster import Placement
from mesh.core.events import Event, Exited, Finished, Gone, LeftOut, Lost, Output, PrepareFailed, Ready, Stream
from mesh.core.masking import SECRET_CHARACTERS_MIN, Masker, Piece, Secrets

# Bytes that may begin a value are shown if no more comes for so long: fewer than a value has at least by chance, more
# of them hardly, so that a stalled network gets time to bring the rest.
SHORT_HOLD_S, LONG_HOLD_S = 0.5, 5.0

Before = Callable[[int, Stream], bytes]  # the last bytes of a rank's stream that an earlier client has written


class _Held(Struct):
    """A stream with the event that brought its last bytes."""

    masker: Masker
    last: Output
    since: float  # seconds of time.monotonic()


class Masking:
    """The events of one run with all secret values masked. For one thread."""

    def __init__(
        self, secrets: Secrets, placement: Placement, before: Before, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """clock: returns seconds that only grow"""
        self._secrets, self._placement, self._before, self._clock = secrets, placement, before, clock
        self._streams: dict[tuple[int, Stream], _Held] = {}

    def event(self, event: Event) -> Event:
        """Return the event for the decider: its texts are masked, its bytes are as they came."""
        return self._secrets.event(event) if self._secrets else event

    def shown(self, event: Event) -> Iterable[Event]:
        """Return the events to show in place of one: before the end of a rank or host, what was held back of it."""
        if not self._secrets:
            return (event,)
        if isinstance(event, Output):
            return self._output(event)
        return [*self._ended_by(event), self._secrets.event(event)]

    def forget(self) -> None:
        """Drop what is held back, as the hosts keep the run: the next client gets it from them, and masks it whole."""
        self._streams.clear()

    def due(self) -> Iterable[Output]:
        """Return the bytes that were held back for long enough."""
        if not self._streams:
            return ()
        now = self._clock()
        return [
            output
            for held in self._streams.values()
            if held.masker.held and now >= held.since + _limit(held.masker.held)
            for output in _outputs(held.last, held.masker.release())
        ]

    def _output(self, event: Output) -> list[Output]:
        key = event.rank, event.stream
        held = self._streams.get(key)
        if held is None:
            masker = Masker(self._secrets, self._before(event.rank, event.stream))
            held = self._streams[key] = _Held(masker, event, 0.0)
        held.last, held.since = replace(event, data=b""), self._clock()
        return _outputs(event, held.masker.feed(event.data))

    def _ranks(self, node: int) -> set[int]:
        """Return the ranks of a host, and the number that stands for it."""
        return {*self._placement.ranks(node), self._placement.first(node)}

    def _ended_by(self, event: Event) -> Iterator[Output]:
        match event:
            case Exited(rank=rank):
                ended = [(rank, Stream.STDOUT), (rank, Stream.STDERR)]
            case LeftOut(rank=rank, stream=stream):
                ended = [(rank, stream)]
            case Ready(node=node) | PrepareFailed(node=node) | Gone(node=node) | Lost(node=node):
                ended = [(rank, stream) for rank in self._ranks(node) for stream in Stream]
            case Finished():
                ended = list(self._streams)
            case _:
                return
        for key in ended:
            if held := self._streams.get(key):
                yield from _outputs(held.last, held.masker.release())


def _outputs(event: Output, pieces: Iterable[Piece]) -> list[Output]:
    return [replace(event, data=piece.data, taken=piece.taken) for piece in pieces]


def _limit(count: int) -> float:
    return SHORT_HOLD_S if count < SECRET_CHARACTERS_MIN else LONG_HOLD_S
