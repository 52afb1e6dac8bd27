"""Fetching the events of a run that goes on by itself, or has ended, without changing anything in it."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from mesh.core.cluster import Placement
from mesh.core.events import Event, Gone, Lost
from mesh.core.nodes import Arrived
from mesh.core.outcome import Cause, Outcome
from mesh.core.run import RunSpec
from mesh.engine.attachment import Attachment
from mesh.engine.orders import Order
from mesh.engine.supervisor.ending import Ending


class NoEnding(Ending):
    """Leaves the end of a run to its hosts."""

    def end(self, cause: Cause, number: int = signal.SIGTERM) -> list[Order]:
        return []

    def stop(self, number: int = signal.SIGTERM) -> list[Order]:
        return []

    def finish(self, number: int = signal.SIGTERM, nodes: Iterable[int] | None = None) -> list[Order]:
        return []


class Fetching(Attachment):
    """Watches without a single order to a host. The files of a lost agent are left to clients that attach."""

    ending_type = NoEnding

    def __init__(self, spec: RunSpec, placement: Placement, *, lasting: bool, arrivals: Iterable[Arrived] = ()) -> None:
        """lasting: stay until the run has ended; else until each host has sent its earlier events."""
        super().__init__(spec, placement, can_ask=False, arrivals=arrivals)
        self._lasting = lasting
        self._gone: set[int] = set()  # hosts that have sent all events, to the end
        self.troubles: dict[int, str] = {}  # by host, why some of its events are missing

    @property
    def has_told(self) -> bool:
        """True once each host has sent its earlier events, or cannot."""
        return not self._waiting

    @property
    def has_ended(self) -> bool:
        """True once every host has sent all events to the end, or is provably lost with its part of the run."""
        provably = {lost.node for lost in self._ranks.lost if lost.is_known and lost.node not in self._unreached}
        return self._gone | provably >= set(range(len(self._state.phases)))

    @property
    def done(self) -> bool:
        return super().done or (self.has_told and not self._lasting)

    def leave(self) -> None:
        """Stop. May be called from any thread."""
        self._leaves = Cause.DETACHED, 0

    def handle(self, event: Event) -> list[Order]:
        if isinstance(event, Gone):
            self._gone.add(event.node)
        elif isinstance(event, Lost) and event.is_known:
            self.troubles[event.node] = f"is lost: {event.reason}"
        return super().handle(event)

    def outcome(self, ended: float) -> Outcome:
        if not self.has_ended:  # the outcome is not final here
            self.leave()
        return super().outcome(ended)

    def _unreachable(self, event: Lost) -> list[Order]:
        self.troubles[event.node] = f"cannot be reached: {event.reason}: what it has more is missing here"
        return super()._unreachable(event)
