"""The meeting of the agents of a detached run, through which a failure on one host reaches all others."""

from __future__ import annotations

from mesh.core.cluster import Placement
from mesh.core.events import Introduced
from mesh.core.ranks import few
from mesh.core.run import RunSpec
from mesh.engine.orders import Introduce, Order, Say

INTRODUCTION_LIMIT_S = 10.0  # an agent stops trying to reach the first host's after 5 s


class Introduction:
    """Has the agent of the first host listen, then all others connect to it."""

    def __init__(self, spec: RunSpec, placement: Placement) -> None:
        self._names = [host.name for host in placement.hosts]
        self._is_wanted = len(self._names) > 1 and (spec.is_program or not spec.rules.keep_going)
        self._met: dict[int, str] = {}  # by node: "", or why it cannot meet the others
        self._is_begun = False
        self.is_over = False  # we may leave

    def begin(self) -> list[Order]:
        if self._is_begun:
            return []
        self._is_begun = True
        if self._is_wanted:
            return [Introduce(node=0, port=0)]
        self.is_over = True
        return []

    def take(self, event: Introduced) -> list[Order]:
        """Note the result on one host."""
        self._met[event.node] = event.reason
        if event.node == 0 and not event.reason:
            return [Introduce(node=node, port=event.port) for node in range(1, len(self._names))]
        if event.node == 0:
            self._met.update((node, event.reason) for node in range(1, len(self._names)))
        return self._end() if len(self._met) == len(self._names) else []

    def give_up(self) -> list[Order]:
        """Go on without the agents that have not answered."""
        return [] if self.is_over else self._end()

    def _end(self) -> list[Order]:
        self.is_over = True
        reasons = {node: self._met.get(node, "no answer") for node in range(1, len(self._names))}
        missing = [node for node, reason in reasons.items() if reason]
        if not missing:
            return []
        names = few([self._names[node] for node in missing])
        text = (
            f"{names} cannot reach {self._names[0]} ({reasons[missing[0]]}): without a client, what fails on one side "
            "does not end the ranks on the other; the next `mesh attach` does. `mesh check` shows more"
        )
        return [Say(text=text)]
