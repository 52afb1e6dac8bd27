"""The proof that every process of a run is gone, and the doubts where it is missing."""

from __future__ import annotations

from mesh.core.events import Gone, Lost
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State
from mesh.remote.owners import clock_time


class Clearing:
    """The hosts that have reported that no process of the run is left there, and what may be left on the others."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._left: list[str] = []  # lines for people
        self._doubts: dict[int, str] = {}  # why a host is not proven to be clear
        self._named: set[int] = set()  # hosts that the lines are about
        self._cleared: set[int] = set()
        self.idle: set[int] = set()  # cleared hosts that hold nothing: their agents leave with our good-bye

    def unclean(self) -> set[int]:
        """Return the hosts that are not proven to be clear."""
        return {*self._named, *self._doubts}

    def lines(self) -> list[str]:
        """Return what may be left behind and where, one line each."""
        return [*self._left, *self._doubts.values()]

    def clear(self, node: int) -> None:
        """Note that no process is left on a host, though its agent has not left."""
        self._cleared.add(node)
        self._doubts.pop(node, None)

    def leave(self, event: Gone) -> None:
        """Note that an agent has left, and what it could not end."""
        self._left += [f"{self._state.name(event.node)}: {line}" for line in event.left]
        if event.left:
            self._named.add(event.node)
        self._doubts.pop(event.node, None)

    def doubt(self, node: int, why: str) -> None:
        """Note why a host is not proven to be clear."""
        self._doubts[node] = f"{self._state.name(node)}: {why}"

    def lose(self, event: Lost) -> None:
        """Note that a host is lost while the run has processes there."""
        if event.is_clear:
            self._doubts.pop(event.node, None)
        elif event.killed_by:
            self.doubt(event.node, event.reason)
        elif event.is_cut:
            self.doubt(event.node, f"connection lost. {self._end_of_lease('Its ranks', 'end')}")
        else:
            self.doubt(event.node, "lost before it reported that all is gone there")

    def lose_at_end(self, event: Lost) -> None:
        """Note that a host is lost after its ranks have ended, or were ordered to."""
        if event.is_clear:
            self._doubts.pop(event.node, None)
        elif event.node not in self._cleared:
            ends = f". {self._end_of_lease('Anything left there', 'ends')}" if event.is_cut else ""
            self.doubt(event.node, f"lost before it reported that all is gone there: {event.reason}{ends}")

    def give_up(self) -> None:
        """Wait no longer for the agents that have not reported; cleared ones may be held up by a paused terminal."""
        for node in self._state.answering():
            if node not in self._cleared:
                ends = self._end_of_lease("Anything left there", "ends")
                self._named.add(node)
                self._left.append(f"{self._state.name(node)}: did not report that all is gone there. {ends}")
                self._state.phases[node] = Phase.OVER

    def _end_of_lease(self, what: str, ends: str) -> str:
        """Return when processes end on a host that does not answer from now on, and how to end them sooner.

        what, ends: subject and verb of the sentence
        """
        spec = self._state.spec
        seconds = spec.rules.lease
        lease = f"{seconds / 60:g} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g} s"
        ends_by = clock_time(self._state.clock.time + spec.rules.lease + spec.rules.grace)
        return f"{what} {ends} by {ends_by} (lease {lease}); to end them sooner: mesh stop {spec.run}"
