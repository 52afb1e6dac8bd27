"""Progress of a run up to its start, or of a pull, in one line."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mesh.core.amounts import part_of, told_bytes
from mesh.core.cluster import Placement
from mesh.core.events import (
    Connected,
    Event,
    Finished,
    Gone,
    HostEvent,
    Lost,
    PrepareFailed,
    Started,
    Synced,
)
from mesh.core.progress import Preparing, Sending
from mesh.core.pull import Pulled, Pulling
from mesh.core.ranks import counted

QUIET_START_S = 1.0  # a shorter time of work is not shown
PREPARING_SHOWN_S = 0.5  # after which our own part of the sync is not shown any more
RATE_WINDOW_S = 5.0  # over which the rate is taken
HOSTS_NAMED = 3


class Progress:
    """Takes the events of a run; ``line`` returns its progress. Times are seconds on one clock."""

    def __init__(self, placement: Placement, began: float) -> None:
        self._names = [host.name for host in placement.hosts]
        self._began = began
        self._missing = dict.fromkeys(range(len(self._names)))  # not connected; an ordered set
        self._waiting = dict.fromkeys(range(len(self._names)))  # not synced, or pulled
        self._synced = 0
        self._sent: deque[tuple[float, int]] = deque()  # bytes, by time; in a pull those that have come
        self._pulling: dict[int, Pulling] = {}  # the last event of each host
        self._of = 0
        self._preparing: tuple[float, Preparing] | None = None
        self._is_over = False

    def handle(self, event: Event, now: float) -> bool:
        """Note an event; return False if it changes nothing."""
        match event:
            case Sending(sent=sent, of=of):
                self._travels(now, sent, of)
            case Pulling(node=node):
                self._pulling[node] = event
                last = self._pulling.values()
                self._travels(now, sum(one.bytes for one in last), sum(one.of for one in last))
            case Preparing() if self._waiting:
                self._preparing = now, event
            case Connected(node=node):
                self._missing.pop(node, None)
            case Synced(node=node) | Pulled(node=node):
                self._synced += 1
                self._waiting.pop(node, None)
                self._preparing = self._preparing if self._waiting else None  # our part is over
            case PrepareFailed() | Lost() | Gone():
                self._leaves(event)
            case Started() | Finished():
                self._is_over = True
            case _:
                return False
        return True

    def line(self, now: float) -> str:
        """Return the progress in one line; "" if there is none to show."""
        if self._is_over or now - self._began < QUIET_START_S:
            return ""
        if self._preparing and now - self._preparing[0] < PREPARING_SHOWN_S:
            return _told(self._preparing[1])
        if self._sent and self._waiting.keys() - self._missing.keys():
            what = "pulling" if self._pulling else "syncing"
            return f"{what}: {self._told_sent()}{self._hosts(self._synced, self._waiting)}"
        if self._missing:
            connected = len(self._names) - len(self._missing)
            return f"connecting: {self._hosts(connected, self._missing)}"
        return ""

    def _travels(self, now: float, sent: int, of: int) -> None:
        self._of = of
        self._sent.append((now, sent))
        while len(self._sent) > 2 and self._sent[1][0] < now - RATE_WINDOW_S:
            self._sent.popleft()

    def _leaves(self, event: HostEvent) -> None:
        self._missing.pop(event.node, None)
        self._waiting.pop(event.node, None)

    def _told_sent(self) -> str:
        (before, less), (now, sent) = self._sent[0], self._sent[-1]
        if sent >= self._of:
            return f"{told_bytes(sent)}{'' if self._pulling else ' sent'}, "
        rate = (sent - less) / (now - before) if now > before else 0.0
        return f"{part_of(sent, self._of)}, {told_bytes(int(rate))}/s, "

    def _hosts(self, done: int, waiting: dict[int, None]) -> str:
        """Count the hosts that are done, and name the others once they are few."""
        count = len(self._names)
        said = f"{done} of {counted(count, 'host')}"
        is_few = len(waiting) <= max(1, count // 2)
        return f"{said}, waiting for {self._named(list(waiting))}" if is_few else said

    def _named(self, nodes: Sequence[int]) -> str:
        names = ", ".join(self._names[node] for node in nodes[:HOSTS_NAMED])
        return names + ", ..." * (len(nodes) > HOSTS_NAMED)


def _told(event: Preparing) -> str:
    if event.what == "listing":
        return f"listing: {event.done:,} files"
    return f"{event.what}: {part_of(event.done, event.of)}"
