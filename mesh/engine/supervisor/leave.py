"""Leaving a run to its hosts: ``mesh run -d`` and ``mesh detach``."""

from __future__ import annotations

from collections.abc import Iterable

from mesh.core.events import Detached, Introduced
from mesh.engine.orders import Detach, Order, Say
from mesh.engine.supervisor.introduction import INTRODUCTION_LIMIT_S, Introduction
from mesh.engine.supervisor.phases import Phase
from mesh.engine.supervisor.state import State

AT_LOGOUT = {
    "login": "systemd-logind ends the run now, as it ends all that a login leaves there; `mesh check` shows what to do",
    "logins": "systemd ends the run with your last login there; `mesh check` shows what to do",
}


class Leave:
    """Has every host keep the run, then has their agents meet, so that they end it together without a client."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._not_started = set(range(state.placement.world_size)) if state.spec.detach else set()
        self._detached: set[int] | None = None  # hosts that keep the run without us; None: we have not asked any
        self._staying: set[int] = set()  # hosts that cannot keep it, so that we stay
        self._introduction = Introduction(state.spec, state.placement)
        self._at_logout: dict[str, set[int]] = {}  # hosts whose system would end the run at logout, by what ends it

    @property
    def is_over(self) -> bool:
        """True once the run goes on without us; it may have ended by now, and the hosts keep how."""
        if self._state.cause is not None or not self._detached:
            return False
        return self._introduction.is_over or (self.is_kept and self._state.phases.have_all(Phase.OVER))

    @property
    def is_kept(self) -> bool:
        """True if all hosts but lost ones keep what ranks print and how they end."""
        kept = (self._detached or set()) | {lost.node for lost in self._state.ranks.lost}
        return bool(self._detached) and len(kept) == len(self._state.phases)

    @property
    def is_leaving(self) -> bool:
        """True while the hosts decide, and keep what ranks print."""
        is_wanted = self._state.spec.detach or self._detached is not None
        return self._state.cause is None and not self._staying and is_wanted

    @property
    def is_meeting(self) -> bool:
        return "introduction" in self._state.clock

    def have_started(self, ranks: Iterable[int]) -> list[Order]:
        """Note that ranks have started or never will; after the last one, leave a run that is to be detached."""
        was_waiting = bool(self._not_started)
        self._not_started.difference_update(ranks)
        return self._detach() if was_waiting and not self._not_started and self.is_leaving else []

    def detached(self, event: Detached) -> list[Order]:
        """Note that a host keeps the run; if ``mesh detach`` asked it to, have all others do so as well."""
        if event.ends_with:
            self._at_logout.setdefault(event.ends_with, set()).add(event.node)
        return self._detach(event.node)

    def stay(self, node: int) -> bool:
        """Note that a host cannot keep the run; return True if that is why we stay."""
        is_news = self._state.cause is None and not self._staying
        self._staying.add(node)
        if is_news:
            self._state.clock.cancel("leaving")
        return is_news

    def introduce(self) -> list[Order]:
        """Have the agents meet once all hosts keep the run."""
        detached = self._detached or set()
        if not self.is_leaving or not self.is_kept or not detached.issuperset(self._state.answering()):
            return []
        self._state.clock.cancel("leaving")
        self._state.clock.start("introduction", INTRODUCTION_LIMIT_S)
        at_logout, self._at_logout = self._at_logout, {}
        warnings = [Say(text=f"{self._state.names(at_logout[what])}: {AT_LOGOUT[what]}") for what in at_logout]
        return [*warnings, *self._introduction.begin()]

    def introduced(self, event: Introduced) -> list[Order]:
        return self._introduction.take(event)

    def look_at_the_clock(self) -> list[Order]:
        return self._introduction.give_up() if self._state.clock.passed("introduction") else []

    def _detach(self, node: int = -1) -> list[Order]:
        """Have all hosts keep the run; node: the host that does already, or -1."""
        others: list[int] = []
        if self._detached is None:
            self._detached = set()
            others = [other for other in self._state.answering() if other != node and self._state.cause is None]
        self._detached |= {node} - {-1}
        self._staying -= self._detached  # ``mesh detach`` was tried again
        return self.introduce() or [Detach(node=other) for other in others]
