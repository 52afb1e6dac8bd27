"""The way from facts to acts: each fact goes to the decisions, each order to the action that stands for its class."""

from __future__ import annotations

import time

from mesh.agent.run.decide import Decisions
from mesh.agent.run.facts import Fact
from mesh.agent.run.orders import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Executor:
    """Carries out the orders of one run, in the order given."""

    def __init__(self, decisions: Decisions, actions: Mapping[type[Order], Callable[..., None]]) -> None:
        """Take one action for each class of orders. Raises KeyError for classes without one."""
        missing = [kind.__name__ for kind in Order.__subclasses__() if kind not in actions]
        if missing:
            raise KeyError(f"orders without an action: {', '.join(missing)}")
        self._decisions, self._actions = decisions, actions
        self._facts: list[Fact] = []
        self._is_busy = False

    def post(self, fact: Fact) -> None:
        """Carry out what follows from a fact before this call returns.

        A fact that an action posts is handled after the orders that are under way, in its turn.
        """
        self._facts.append(fact)
        if not self._is_busy:
            self._carry_out([])

    def tick(self) -> None:
        """Carry out what follows from the time; called once at the end of each turn of the loop."""
        self._carry_out(self._decisions.tick(time.monotonic()))

    def _carry_out(self, orders: list[Order]) -> None:
        self._is_busy = True
        try:
            while True:
                for order in orders:
                    self._actions[type(order)](order)
                if not self._facts:
                    return
                orders = self._decisions.handle(self._facts.pop(0), time.monotonic())
        finally:
            self._is_busy = False
