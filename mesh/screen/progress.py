"""How far a run is on its way to the start, or a pull, in one line: who is missing, what is listed, what travels."""

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
    Preparing,
    Pulled,
    Pulling,
    Sending,
    Started,
    Synced,
)
from mesh.core.ranks import counted

PATIENCE = 1.0  # seconds of work before it is told how far it is
FRESH = 0.5  # seconds for which our own part of the sync is what is going on
WINDOW = 5.0  # seconds over which the rate is taken
NAMED = 3  # hosts


class Progress:
    """Takes the events of a run; ``line`` tells where it is. Times are seconds of one clock."""

    def __init__(self, placement: Placement, began: float) -> None:
        self._names = [host.name for host in placement.hosts]
        self._began = began
        self._missing = dict.fromkeys(range(len(self._names)))  # not connected; an ordered set
        self._waiting = dict.fromkeys(range(len(self._names)))  # not synced, or pulled
        self._synced = 0
        self._sent: deque[tuple[float, int]] = deque()  # bytes, by time; those that have come, in a pull
        self._pulling: dict[int, Pulling] = {}  # the last of each host
        self._of = 0
        self._preparing: tuple[float, Preparing] | None = None
        self._is_over = False

    def handle(self, event: Event, now: float) -> bool:
        """Take note of it; False if it changes nothing."""
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
                self._preparing = self._preparing if self._waiting else None  # it is over
            case PrepareFailed() | Lost() | Gone():
                self._leaves(event)
            case Started() | Finished():
                self._is_over = True
            case _:
                return False
        return True

    def line(self, now: float) -> str:
        """In one line what is going on; "" if there is nothing to tell."""
        if self._is_over or now - self._began < PATIENCE:
            return ""
        if self._preparing and now - self._preparing[0] < FRESH:
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
        while len(self._sent) > 2 and self._sent[1][0] < now - WINDOW:
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
        """How many are done, and who is not, once most are."""
        count = len(self._names)
        said = f"{done} of {counted(count, 'host')}"
        is_few = len(waiting) <= max(1, count // 2)
        return f"{said}, waiting for {self._named(list(waiting))}" if is_few else said

    def _named(self, nodes: Sequence[int]) -> str:
        return ", ".join(self._names[node] for node in nodes[:NAMED]) + (", ..." if len(nodes) > NAMED else "")


def _told(event: Preparing) -> str:
    if event.what == "listing":
        return f"listing: {event.done:,} files"
    return f"{event.what}: {part_of(event.done, event.of)}"
