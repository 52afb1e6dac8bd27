"""What waits to be sent to the client."""

from __future__ import annotations

import os
from collections import deque

from .frames import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKLOG = 1 << 20  # bytes that wait for a slow channel; beyond it the ranks' pipes are left to fill


class Outbox:
    """Frames on their way to our stdout, which never blocks us."""

    def __init__(self) -> None:
        self.open = True  # False once nobody will ever read it
        self._frames: deque[bytes] = deque()
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def full(self) -> bool:
        return self._size >= BACKLOG

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        if self.open:
            frame = encode(header, data)
            self._frames.append(frame)
            self._size += len(frame)

    def flush(self) -> None:
        """Write what the channel takes now."""
        try:
            while self._frames:
                data = self._frames[0]
                count = os.write(1, data)
                self._size -= count
                self._frames.popleft()
                if count < len(data):
                    self._frames.appendleft(data[count:])
        except BlockingIOError:
            pass
        except OSError:  # EPIPE: nobody will ever read it
            self.close()

    def close(self) -> None:
        self.open = False
        self._frames.clear()
        self._size = 0
