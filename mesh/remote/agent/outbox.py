"""What is to be sent to the client: nothing is forgotten before the client has it, through whatever channel."""

from __future__ import annotations

import os
from collections import deque

from .frames import encode
from .spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WINDOW = 1 << 20  # bytes that are under way and not acknowledged; the rest waits in the spool


class Outbox:
    """Frames on their way to the client, as one stream of bytes that goes on over several channels.

    The client says how far it has it; a new channel begins there. Sending never blocks us.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._urgent: deque[bytes] = deque()  # these pass the spool and the window
        self._window = bytearray()  # what the client may not have yet
        self._begin = 0  # the place of its first byte in the stream
        self._place = 0  # of the next byte to be sent
        self.channel = 1  # the descriptor to write to; -1: there is none

    def __bool__(self) -> bool:
        """True if something is to be written that may be written."""
        waits = self._place < self._begin + len(self._window) or self._urgent
        return self.channel >= 0 and bool(waits or (self._spool and len(self._window) < WINDOW))

    @property
    def is_empty(self) -> bool:
        """True if everything has been written, be it acknowledged or not."""
        return not self._urgent and not self._spool and self._place == self._begin + len(self._window)

    @property
    def is_acknowledged(self) -> bool:
        """True if the client has everything."""
        return self.is_empty and not self._window

    @property
    def is_behind(self) -> bool:
        """True if what is sent now will wait for the client."""
        return len(self._window) >= WINDOW or self.channel < 0

    @property
    def has_room(self) -> bool:
        """True if more may be sent without any of it waiting in the spool."""
        return not self._spool and len(self._window) < WINDOW

    def send(self, header: dict[str, Any], data: bytes = b"") -> None:
        self._spool.add(encode(header, data))

    def send_urgently(self, header: dict[str, Any]) -> None:
        """Send before all that waits; for what means something by itself."""
        self._urgent.append(encode(header))

    def flush(self) -> bool:
        """Write what the channel takes now. False if it has ended."""
        try:
            while self.channel >= 0:
                if self._place == self._begin + len(self._window) and not self._fill():
                    break
                with memoryview(self._window) as window:
                    self._place += os.write(self.channel, window[self._place - self._begin :])
        except BlockingIOError:
            pass
        except OSError:  # EPIPE
            return False
        return True

    def _fill(self) -> bool:
        """Move what comes next into the window; whole frames, so that a channel can begin at any of them."""
        if self._urgent:
            self._window += self._urgent.popleft()
        elif len(self._window) < WINDOW and self._spool:
            self._window += self._spool.take()
        else:
            return False
        return True

    def acknowledge(self, place: int) -> None:
        """The client has everything before this place of the stream."""
        count = min(max(0, place - self._begin), self._place - self._begin)
        del self._window[:count]
        self._begin += count

    def go_on(self, channel: int, place: int) -> None:
        """Send to another channel from a place on, where the client has everything before it."""
        self.acknowledge(place)
        self._place = self._begin
        self.channel = channel

    def close(self) -> None:
        self._spool.close()
