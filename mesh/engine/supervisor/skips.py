"""Decisions of hosts about prerun entries with inputs, in one line for all hosts."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.cluster import Placement
from mesh.core.events import UNCHANGED, PrerunDecided
from mesh.core.ranks import few
from mesh.core.run import PrerunEntry
from mesh.engine.orders import Order, Say


class Skips:
    """Collects decisions until every host has sent its own."""

    def __init__(self, prerun: Sequence[PrerunEntry], placement: Placement) -> None:
        self._prerun = prerun
        self._names = [host.name for host in placement.hosts]
        self._told: dict[int, dict[int, PrerunDecided]] = {}  # by entry and node

    def take(self, event: PrerunDecided) -> list[Order]:
        """Note the decision of one host; after the last one, return a line if any host skips the entry."""
        of_entry = self._told.setdefault(event.entry, {})
        of_entry[event.node] = event
        if len(of_entry) < len(self._names):
            return []
        skipped = [one for one in of_entry.values() if not one.why]
        if not skipped:
            return []
        count = f"{len(skipped)} host{'s' * (len(skipped) != 1)}"
        missing = list(dict.fromkeys(path for one in skipped for path in one.missing))
        text = f"prerun: {self._prerun[event.entry].told} skipped on {count}: {UNCHANGED}"
        text += f" (not there: {', '.join(missing)})" if missing else ""
        running = [self._names[node] for node, one in sorted(of_entry.items()) if one.why]
        if running:
            text += f"; it runs on {few(running)}"
        return [Say(text=text)]
