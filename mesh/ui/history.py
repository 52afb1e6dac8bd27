"""Figures of the last minutes, in memory alone, of the clusters that somebody looks at."""

from __future__ import annotations

import time
from collections import deque

from mesh.pages.fields import number, text

KEPT_S = 900.0
CLUSTERS_MAX = 16


class History:
    """The share of CPU and memory of hosts over time."""

    def __init__(self) -> None:
        self._taken: dict[str, deque[tuple[float, dict[str, tuple[float, float]]]]] = {}

    def add(self, cluster: str, found: object) -> dict[str, list[tuple[float, float, float]]]:
        """Add the answer of `mesh top --json`; return the time, CPU and memory of each host, the oldest first."""
        now = time.time()
        hosts = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        figures = {}
        for host in hosts:
            total = number(host, "memory") or 0.0
            if not text(host, "error") and total:
                figures[text(host, "host")] = number(host, "cpu") or 0.0, (number(host, "memory_used") or 0.0) / total
        taken = self._taken.pop(cluster, deque())
        self._taken[cluster] = taken
        taken.append((now, figures))
        while taken[0][0] < now - KEPT_S:
            taken.popleft()
        if len(self._taken) > CLUSTERS_MAX:
            del self._taken[next(iter(self._taken))]
        found_hosts = {name: None for _, one in taken for name in one}
        return {name: [(at, *one[name]) for at, one in taken if name in one] for name in found_hosts}
