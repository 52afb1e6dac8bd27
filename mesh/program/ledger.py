"""The states of a program's nodes, and when the program ends. Pure: no threads, no clocks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct


class State(Enum):
    """The state of a node."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"  # with its host


class Rules(Struct, frozen=True, kw_only=True):
    """How the end of a node counts."""

    runs: bool  # it has something to run; otherwise it only serves
    on_failure: str = "stop"  # or "ignore", "restart"
    on_exit: str = "wait"  # or "stop", "restart"


class Stop(Struct, frozen=True, kw_only=True):
    """The end of the program. reason: "stop", "failure", "signal", "preemption", "timeout"; label: of the node"""

    reason: str
    code: int = 0
    why: str = ""
    label: str = ""


OVER = (State.ENDED, State.FAILED, State.LOST)


class Ledger:
    """The states of all nodes. The first stop counts."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._rules = rules
        self.states = dict.fromkeys(rules, State.STARTING)
        self.were_ready: set[str] = set()
        self.stopped: Stop | None = None

    @property
    def is_ready(self) -> bool:
        """True once no node is starting."""
        return State.STARTING not in self.states.values()

    @property
    def is_over(self) -> bool:
        """True once every node has ended."""
        return all(state in OVER for state in self.states.values())

    def ready(self, label: str) -> None:
        """Note that a node is ready for calls."""
        self.were_ready.add(label)
        if self.states[label] not in OVER:
            self.states[label] = State.READY

    def ended(self, label: str) -> Stop | None:
        """Note that a node has ended well; return the end of the program if that follows."""
        self.states[label] = State.ENDED
        if self._rules[label].on_exit == "stop":
            return self.stop(Stop(reason="stop", label=label))
        return self._at_last()

    def failed(self, label: str, why: str, *, state: State = State.FAILED, code: int = 1) -> Stop | None:
        """Note that a node has failed for good; return the end of the program if that follows."""
        self.states[label] = state
        if self._rules[label].on_failure != "ignore":
            return self.stop(Stop(reason="failure", code=code, why=why, label=label))
        return self._at_last()

    def stop(self, stop: Stop) -> Stop | None:
        """Note the end of the program; return it if it is the first."""
        if self.stopped is not None:
            return None
        self.stopped = stop
        return stop

    def _at_last(self) -> Stop | None:
        """Return the end of the program once every node that has something to run has ended."""
        running = [label for label, rules in self._rules.items() if rules.runs]
        if running and all(self.states[label] in OVER for label in running):
            return self.stop(Stop(reason="stop"))
        return None
