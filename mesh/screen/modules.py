"""The modules of a run: a line when a host begins to apply one, and a line when the last host has it."""

from __future__ import annotations

from mesh.core.cluster import Placement
from mesh.core.events import Event
from mesh.core.module import Applied, ModuleStep
from mesh.core.ranks import counted, few


class ModuleLines:
    """Takes the events of modules, and returns the lines to show. Times are seconds on one clock."""

    def __init__(self, placement: Placement, undo: bool = False) -> None:
        """undo: steps are undone"""
        self._verb, self._done = ("undoing", "undone") if undo else ("setting up", "set up")
        self._names = [host.name for host in placement.hosts]
        self._began: dict[str, float] = {}  # when the first host began to apply the module
        self._checking: dict[int, str] = {}  # the module whose check a host runs now
        self._applying: dict[int, str] = {}  # the module that a host applies now
        self._hosts: dict[str, set[int]] = {}  # hosts that have applied something of the module, or do
        self._said: dict[str, int] = {}  # by module: hosts that the last line has counted

    def handle(self, event: Event, now: float) -> list[str]:
        """Note an event; return lines.

        >>> from mesh.core.cluster import Host, place_ranks
        >>> lines = ModuleLines(place_ranks([Host(name="a", address=""), Host(name="b", address="")]))
        >>> lines.handle(ModuleStep(time=0, node=0, module="uv", step=0, state="apply"), 5.0)
        ['uv: setting up on a and others']
        >>> lines.handle(ModuleStep(time=0, node=1, module="uv", step=0, state="check"), 5.0)
        []
        >>> lines.line()
        'setting up uv: a'
        >>> lines.handle(Applied(time=0, node=0, facts=("",), applied=(0,)), 7.0)
        ['uv: set up on 1 host in 2.0 s']
        >>> lines.line()
        'checking uv: b'
        """
        if isinstance(event, ModuleStep):
            done = self._leave(event.node, now) if self._applying.get(event.node) != event.module else []
            if event.state != "apply":
                self._checking[event.node] = event.module
                return done
            self._checking.pop(event.node, None)
            self._applying[event.node] = event.module
            self._hosts.setdefault(event.module, set()).add(event.node)
            if event.module in self._began:
                return done
            self._began[event.module] = now
            others = " and others" if len(self._names) > 1 else ""
            return [*done, f"{event.module}: {self._verb} on {self._names[event.node]}{others}"]
        if not isinstance(event, Applied):
            return []
        self._checking.pop(event.node, None)
        return self._leave(event.node, now)

    def line(self) -> str:
        """Return what hosts do now, in one line; "" if they do nothing about modules."""
        now, verb = (self._applying, self._verb) if self._applying else (self._checking, "checking")
        if not now:
            return ""
        module = next(iter(now.values()))
        nodes = [node for node, one in now.items() if one == module]
        return f"{verb} {module}: {few([self._names[node] for node in sorted(nodes)])}"

    def _leave(self, node: int, now: float) -> list[str]:
        """Note that a host applies its module no more."""
        module = self._applying.pop(node, "")
        if not module or module in self._applying.values():
            return []
        count = len(self._hosts[module])
        if self._said.get(module) == count:  # a second round of the same hosts
            return []
        self._said[module] = count
        hosts = counted(count, "host")
        return [f"{module}: {self._done} on {hosts} in {now - self._began[module]:.1f} s"]
