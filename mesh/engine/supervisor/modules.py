"""The rounds of modules: first the steps of each host, then those that depend on what all hosts have reported."""

from __future__ import annotations

from mesh.core.cluster import Placement
from mesh.core.module import Applied, ModuleError, Preparation, Step


class Rounds:
    """The steps that hosts still have to carry out. Pure."""

    def __init__(self, preparation: Preparation, placement: Placement) -> None:
        self._preparation, self._hosts = preparation, placement.hosts
        self._first = [preparation.steps(self._hosts, node) for node in range(len(self._hosts))]
        self._facts: dict[int, tuple[str, ...]] = {}
        self._is_joined = preparation.undo

    def __bool__(self) -> bool:
        """True if any host has steps."""
        return any(self._first)

    @property
    def is_undo(self) -> bool:
        """True if steps are undone."""
        return self._preparation.undo

    def first(self, node: int) -> tuple[Step, ...]:
        """Return the steps of the first round."""
        return self._first[node]

    def take(self, event: Applied) -> None:
        """Note the reports of a host; only the first round has any."""
        self._facts.setdefault(event.node, event.facts)

    def second(self) -> dict[int, tuple[Step, ...]]:
        """Return the steps of the second round, once, for the hosts that have any. Raises ModuleError."""
        if self._is_joined:
            return {}
        self._is_joined = True
        further: dict[int, list[Step]] = {}
        nodes = sorted(self._facts)
        for module in self._preparation.modules:
            try:
                joined = module.join(self._hosts, [self._reports(module.name, node) for node in nodes])
            except ModuleError as error:
                raise ModuleError(f"{module.name}: {error}", hint=error.hint) from error
            for node, steps in zip(nodes, joined, strict=False):
                further.setdefault(node, []).extend(steps)
        return {node: tuple(steps) for node, steps in further.items() if steps}

    def _reports(self, module: str, node: int) -> list[str]:
        steps, facts = self._first[node], self._facts[node]
        return [fact for step, fact in zip(steps, facts, strict=False) if step.module == module]
