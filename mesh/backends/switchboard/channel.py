"""The stream of one host through the switchboard, as a channel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from mesh.agent.switchboard import frames
from mesh.agent.switchboard.flow import Credit, Taken
from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Farewell

STATUS_TIMEOUT_S = 2.0


class StreamChannel:
    """The standard streams of a program on a node. Its window bounds what waits on the way, in each direction."""

    def __init__(self, number: int, window: int, put: Callable[[bytes, int], None], node: str) -> None:
        """window: bytes, for each direction; put: sends a frame, in the turns of a stream (0: ahead of all)"""
        self.number, self.node = number, node
        self._put = put
        self._credit, self._taken = Credit(window), Taken(window)
        self._changed = threading.Condition()
        self._ready: deque[bytes] = deque()
        self._farewell = Farewell(status=None, stderr=b"")
        self._is_ended = self._is_closed = False
        self.why = ""  # the switchboard's reason for the end

    def send(self, data: bytes) -> None:
        view, place = memoryview(data), 0
        while place < len(view):
            with self._changed:
                self._changed.wait_for(lambda: self._credit.left or self._is_ended)
                if self._is_ended:
                    raise ChannelClosed(self.why or f"the stream of {self.node} has ended")
                count = self._credit.take(min(len(view) - place, frames.DATA_BYTES))
                # Within the lock: the parts of two senders keep their order.
                self._put(frames.frame(frames.DATA, self.number, bytes(view[place : place + count])), self.number)
            place += count

    def receive(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_ended)
            if not self._ready or self._is_closed:
                return b""
            data = self._ready.popleft()
            taken = 0 if self._is_ended else self._taken.add(len(data))
        if taken:
            self._put(frames.frame(frames.TAKEN, self.number, frames.COUNT.pack(taken)), 0)
        return data

    def farewell(self) -> Farewell:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended, STATUS_TIMEOUT_S)
            return self._farewell

    def close(self, *, leave: bool = False) -> None:
        with self._changed:
            was_ended, self._is_ended, self._is_closed = self._is_ended, True, True
            self._ready.clear()
            if not was_ended:
                self._put(frames.frame(frames.END, self.number), self.number)
            self._changed.notify_all()

    def cut(self) -> None:
        """End it here: the node is gone. A blocked call returns."""
        self.end(None, f"{self.node} is gone", b"")

    def dispose(self) -> None:
        """Release it, once no thread uses it: it has nothing of the system."""

    # ---- for the thread that reads the connection

    def take(self, data: bytes) -> None:
        """Keep data until it is received."""
        with self._changed:
            if not self._is_ended:
                self._ready.append(data)
                self._changed.notify_all()

    def widen(self, count: int) -> None:
        """Note that the node has taken so many bytes."""
        with self._changed:
            self._credit.widen(count)
            self._changed.notify_all()

    def end(self, status: int | None, why: str, stderr: bytes) -> None:
        """Note the end of the stream; what has come before can still be received."""
        with self._changed:
            if not self._is_ended:
                self._is_ended, self.why = True, why
                self._farewell = Farewell(status=status, stderr=stderr or why.encode())
            self._changed.notify_all()
