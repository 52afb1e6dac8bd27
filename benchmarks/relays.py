"""How long a start takes if agents start agents: a model of trees, with the costs that were measured.

A node opens its connections one behind the other, as far as its CPU goes, and so many at a time as it is told; what it
has opened goes on by itself once its agent runs. Nothing else is modelled: no lost packets, no slow hosts.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds."""

    opening: float  # CPU of who opens a connection, for each
    login: float  # from the first packet to the login's end
    agent: float  # until an agent has started and can open connections itself
    begin: float  # until the client has started
    parallel: int = 32  # connections that are opened at a time


def start(hosts: int, fan_out: int, costs: Costs) -> float:
    """Seconds until the agents of all hosts run; fan_out: how many each node opens, 0: the client opens all.

    >>> costs = Costs(opening=0.01, login=0.2, agent=0.1, begin=0.0)
    >>> start(1, 0, costs) == 0.01 + 0.2 + 0.1, start(1000, 0, costs) > 10, start(1000, 32, costs) < 2
    (True, True, True)
    """
    last, left = 0.0, hosts
    waiting = [costs.begin]  # when those who may open connections are there
    while left:
        at = heapq.heappop(waiting)
        children = min(left, fan_out or hosts)
        left -= children
        for running in _opened(at, children, costs):
            last = max(last, running)
            heapq.heappush(waiting, running)
    return last


def _opened(at: float, count: int, costs: Costs) -> list[float]:
    """When the agents run that one node starts."""
    free = at  # its CPU
    busy: list[float] = []  # when logins that are under way end
    running = []
    for _ in range(count):
        if len(busy) == costs.parallel:
            free = max(free, heapq.heappop(busy))
        free += costs.opening
        heapq.heappush(busy, free + costs.login)
        running.append(free + costs.login + costs.agent)
    return running
