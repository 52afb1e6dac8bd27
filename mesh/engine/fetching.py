"""Takes what the hosts have of a run that goes on by itself, or has ended, and changes nothing for it."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from mesh.core.cluster import Placement
from mesh.core.events import Event, Gone, Lost
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
    """Looks on without a word: no order ever goes to a host. What a lost agent has left is for whoever attaches."""

    ending_type = NoEnding

    def __init__(self, spec: RunSpec, placement: Placement, *, lasting: bool) -> None:
        """lasting: stay until the run has ended; else until each host has told what there is now."""
        super().__init__(spec, placement, can_ask=False)
        self._lasting = lasting
        self._gone: set[int] = set()  # hosts that have told all, to the end
        self.troubles: dict[int, str] = {}  # hosts of which something is missing, by node, and why

    @property
    def has_told(self) -> bool:
        """True once each host has told what there is, or cannot."""
        return not self._waiting

    @property
    def done(self) -> bool:
        return super().done or (self.has_told and not self._lasting)

    def leave(self) -> None:
        """Nobody wants more. May be called from any thread."""
        self._leaves = Cause.DETACHED, 0

    def handle(self, event: Event) -> list[Order]:
        if isinstance(event, Gone):
            self._gone.add(event.node)
        elif isinstance(event, Lost) and event.is_known:
            self.troubles[event.node] = f"is lost: {event.reason}"
        return super().handle(event)

    def outcome(self, ended: float) -> Outcome:
        if len(self._gone) < len(self._state.phases):  # the last word on it is not ours
            self.leave()
        return super().outcome(ended)

    def _unreachable(self, event: Lost) -> list[Order]:
        self.troubles[event.node] = f"cannot be reached: {event.reason}: what it has more is missing here"
        return super()._unreachable(event)
