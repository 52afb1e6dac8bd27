"""The hang watch: takes the stacks of all ranks once none of them has printed anything for a time."""

from __future__ import annotations

from mesh.core.events import Hanging
from mesh.core.run import Kind
from mesh.engine.orders import Ask, Order, Tell
from mesh.engine.supervisor.state import State
from mesh.protocol.questions import AskStacks


class HangWatch:
    """Asks for stacks once for each time of quiet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._limit = state.spec.rules.hang_watch  # seconds; 0: never
        self._heard: float | None = None  # monotonic: the last output or start; None: asked since then

    def note(self) -> None:
        """Note that a rank has started or printed something."""
        self._heard = self._state.clock.monotonic

    def look_at_the_clock(self) -> list[Order]:
        """Return the questions for all hosts whose ranks run, if these have been quiet for too long."""
        state = self._state
        if self._heard is None or not self._limit or state.clock.monotonic - self._heard < self._limit:
            return []
        self._heard = None
        is_run = state.spec.kind is Kind.RUN
        nodes = [node for node in state.answering() if not state.ranks.have_ended(node)]
        if not is_run or not nodes or state.cause is not None:
            return []
        hanging = Hanging(time=state.clock.time, seconds=self._limit, hosts=len(nodes))
        return [Tell(event=hanging), *(Ask(node=node, question=AskStacks()) for node in nodes)]
