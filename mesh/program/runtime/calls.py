"""The bookkeeping of calls, without threads, sockets or clocks: credits, deadlines and matching.

``Outgoing`` is the caller's end of one connection, ``Inbox`` the queue of one node for all its callers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Deque, Dict, Hashable, List, Set, Tuple

BYTES_LIMIT = 64 * 1024 * 1024  # of calls that were sent and are not answered, on one connection
FIRST_CALLS = 16  # that may be sent before the node has answered the greeting


class Outgoing:
    """The calls of one connection that are not answered.

    A call waits until there are credits for it, is sent, and is answered exactly once by its node. A caller that gives
    up (timeout, cancel) settles a call; its credits come back with the answer.
    """

    def __init__(self, calls_limit: int = FIRST_CALLS, bytes_limit: int = BYTES_LIMIT) -> None:
        self._calls_limit, self._bytes_limit = calls_limit, bytes_limit
        self._next, self._bytes = 1, 0
        self._sizes: Dict[int, int] = {}
        self._waiting: Deque[int] = deque()
        self._sent: Set[int] = set()
        self._settled: Set[int] = set()  # sent, not answered, and nobody waits for them

    def widen(self, calls_limit: int) -> None:
        """Set the number of calls that the node lets wait."""
        self._calls_limit = max(1, calls_limit)

    def add(self, size: int) -> int:
        """Return the number of a new call of so many bytes; it waits."""
        call = self._next
        self._next += 1
        self._sizes[call] = size
        self._waiting.append(call)
        return call

    def sendable(self) -> List[int]:
        """Take credits for the calls that may be sent now, and return them in order."""
        found = []
        while self._waiting:
            size = self._sizes[self._waiting[0]]
            # A call that is larger than all credits is sent alone.
            if self._sent and (len(self._sent) >= self._calls_limit or self._bytes + size > self._bytes_limit):
                break
            call = self._waiting.popleft()
            self._sent.add(call)
            self._bytes += size
            found.append(call)
        return found

    def settle(self, call: int) -> bool:
        """Give up a call; return True if it was sent, so that its node must be asked to cancel it."""
        if call in self._sent:
            self._settled.add(call)
            return True
        if call in self._sizes:
            self._waiting.remove(call)
            del self._sizes[call]
        return False

    def take_back(self, call: int) -> None:
        """Return the credits of a call that was given up before its bytes were sent. No answer to it comes."""
        if call in self._sent:
            self.answer(call)

    def answer(self, call: int) -> bool:
        """Take back the credits of a call; return True if its caller still waits.

        Raises ValueError for a call that was not sent.
        """
        if call not in self._sent:
            raise ValueError(f"an answer to call {call}, which was not sent")
        self._sent.remove(call)
        self._bytes -= self._sizes.pop(call)
        if call in self._settled:
            self._settled.remove(call)
            return False
        return True

    def lose(self) -> List[int]:
        """End all calls; return those whose callers still wait, in order."""
        found = sorted(call for call in self._sizes if call not in self._settled)
        self._waiting.clear()
        self._sent.clear()
        self._settled.clear()
        self._sizes.clear()
        self._bytes = 0
        return found

    @property
    def open_calls(self) -> int:
        """The number of calls that are not answered."""
        return len(self._sizes)


class Inbox:
    """The calls that have arrived at a node: at most ``concurrency`` run at the same time, in order of arrival."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._waiting: "OrderedDict[Hashable, float]" = OrderedDict()  # the deadline of each
        self._running: Set[Hashable] = set()

    def arrive(self, call: Hashable, deadline: float) -> None:
        """Add a call. deadline: on the clock of ``take``; math.inf: none"""
        self._waiting[call] = deadline

    def take(self, now: float) -> "Tuple[Hashable, bool] | None":
        """Return the next call and True if its time is out, so that it must not begin; None: no call may begin."""
        if not self._waiting:
            return None
        call, deadline = next(iter(self._waiting.items()))
        if deadline <= now:
            del self._waiting[call]
            return call, True
        if len(self._running) >= self._concurrency:
            return None
        del self._waiting[call]
        self._running.add(call)
        return call, False

    def end(self, call: Hashable) -> None:
        """Note that a call no longer runs."""
        self._running.discard(call)

    def cancel(self, call: Hashable) -> str:
        """Return "waiting" for a call that will never begin now, "running", or "" for one that has ended."""
        if self._waiting.pop(call, None) is not None:
            return "waiting"
        return "running" if call in self._running else ""

    @property
    def waiting(self) -> int:
        """The number of calls that have not begun."""
        return len(self._waiting)
