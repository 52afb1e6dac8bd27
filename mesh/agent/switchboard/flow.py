"""The flow of streams that share a connection: each has its own window, and they take turns."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Dict

PARTS_OF_A_WINDOW = 4  # a receiver returns credit in parts of this many, not for every read


class Credit:
    """The bytes that an end of a stream may send now.

    >>> credit = Credit(100)
    >>> credit.take(70), credit.take(70), credit.take(70)
    (70, 30, 0)
    >>> credit.widen(50)
    >>> credit.left
    50
    """

    def __init__(self, window: int) -> None:
        """window: bytes"""
        self.left = window

    def take(self, wanted: int) -> int:
        """Return how many of so many bytes may be sent, and count them as sent."""
        count = min(self.left, wanted)
        self.left -= count
        return count

    def widen(self, count: int) -> None:
        """Add the bytes that the other end has taken."""
        self.left += count


class Taken:
    """The bytes that an end of a stream has taken, until they are reported to the sender.

    >>> taken = Taken(100)
    >>> taken.add(20), taken.add(20), taken.add(1)
    (0, 40, 0)
    """

    def __init__(self, window: int) -> None:
        """window: bytes"""
        self._least, self._count = max(1, window // PARTS_OF_A_WINDOW), 0

    def add(self, count: int) -> int:
        """Count bytes; return those to report now, or 0 if later ones go along."""
        self._count += count
        if self._count < self._least:
            return 0
        count, self._count = self._count, 0
        return count


class Outgoing:
    """The frames that wait for a connection. Those of one stream keep their order, and streams take turns.

    >>> out = Outgoing()
    >>> for text, stream in ((b"a1 ", 1), (b"a2 ", 1), (b"b1 ", 2), (b"first ", 0)):
    ...     out.put(text, stream)
    >>> out.take(100), bool(out)
    (b'first a1 b1 a2 ', False)
    """

    def __init__(self) -> None:
        self._first: Deque[bytes] = deque()
        self._streams: Dict[int, Deque[bytes]] = {}
        self._turns: Deque[int] = deque()
        self.size = 0  # bytes

    def __bool__(self) -> bool:
        return bool(self._first or self._turns)

    def put(self, frame: bytes, stream: int = 0) -> None:
        """Add a frame; stream 0 goes before all others."""
        self.size += len(frame)
        if not stream:
            self._first.append(frame)
        elif stream in self._streams:
            self._streams[stream].append(frame)
        else:
            self._streams[stream] = deque((frame,))
            self._turns.append(stream)

    def take(self, limit: int) -> bytes:
        """Remove and return frames: as many as it takes to reach so many bytes."""
        taken, size = [], 0
        while size < limit and (self._first or self._turns):
            if self._first:
                frame = self._first.popleft()
            else:
                stream = self._turns.popleft()
                waiting = self._streams[stream]
                frame = waiting.popleft()
                if waiting:
                    self._turns.append(stream)
                else:
                    del self._streams[stream]
            size += len(frame)
            taken.append(frame)
        self.size -= size
        return b"".join(taken)

    def drop(self, stream: int) -> None:
        """Forget the frames of a stream."""
        waiting = self._streams.pop(stream, None)
        if waiting is not None:
            self.size -= sum(map(len, waiting))
            self._turns.remove(stream)
