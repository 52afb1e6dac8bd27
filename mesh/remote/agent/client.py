"""The client as its agent knows it: the channel it speaks through, and how long it may be away."""

from __future__ import annotations

import os
import time

from .frames import Decoder
from .messages import REQUEST_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .frames import Frame
    from .lean import Socket

SILENT = 15.0  # seconds without a beat after which a client is silent, whatever its channel does


class Client:
    """Who sends us requests. It may come back through another channel."""

    def __init__(self, decoder: Decoder, lease: float, return_within: float) -> None:
        """lease: seconds that the run may go on without a beat.

        return_within: seconds in which a client may come back whose channel has ended while it was beating
        """
        self._decoder, self._lease, self._return_within = decoder, lease, return_within
        self._heard = time.monotonic()  # the last beat, or anything else
        self._ended: float | None = None  # when its channel did
        self.has_left = False
        self._refused_until = 0.0  # when it has sent what is no request: how long it may take what we send last
        self.is_detached = False  # the run goes on without it
        self._visitor: Socket | None = None  # who has brought the channel, and waits for us to be done with it
        self.channel = 0  # the descriptor that requests come from; -1: there is none

    def receive(self) -> list[Frame]:
        """The requests that have come; sets ``channel`` to -1 at its end. Raises FrameError."""
        try:
            chunk = os.read(self.channel, 1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            chunk = b""
        if not chunk:
            self.lose_channel()
            return []
        if self.is_refused:
            return []
        self._heard = time.monotonic()
        return self._decoder.feed(chunk)

    def lose_channel(self) -> None:
        """The channel has ended without a word."""
        if self.channel >= 0:
            release(self.channel)
            self.channel = -1
            self._ended = time.monotonic()
            self._let_go()

    @property
    def is_refused(self) -> bool:
        """True once the client has sent what is no request: nothing more of it is read."""
        return self._refused_until > 0.0

    def refuse(self) -> None:
        """Read nothing more. The client may read how the run ended."""
        self._refused_until = time.monotonic() + self._return_within

    def leave(self) -> None:
        """It has said good-bye, and will not be back."""
        self.has_left = True

    def take_channel(self, incoming: int, visitor: Socket) -> None:
        """It is back, through another channel."""
        if self.channel >= 0:
            release(self.channel)
        self._let_go()
        self._visitor, self.channel, self._ended = visitor, incoming, None
        self._decoder = Decoder(REQUEST_BYTES)
        self._heard = time.monotonic()
        os.set_blocking(incoming, False)

    def given_up_at(self) -> float:
        """When its run is to be ended, monotonic: it was killed, or its lease is over."""
        if self.is_detached:
            return float("inf")
        if self.has_left or (self.is_refused and self.channel < 0):
            return 0.0
        if self.is_refused:
            return self._refused_until
        if self._ended is not None and self.was_killed():
            return self._ended + self._return_within
        return self._heard + self._lease

    def is_silent(self) -> bool:
        """True if nothing reaches the client now: it has no channel, or sends nothing."""
        return self.channel < 0 or time.monotonic() > self.silent_at()

    def silent_at(self) -> float:
        """Return the monotonic time at which the client counts as silent unless it sends something."""
        return self._heard + SILENT

    def was_killed(self) -> bool:
        """True if the channel ended while beats were arriving."""
        return self._ended is not None and self._ended - self._heard < SILENT

    def has_heard_last(self) -> bool:
        """Whether nothing more can be told to a client that is to leave: it has left, or is silent."""
        return self.is_silent()

    def why(self) -> str:
        """Why it is given up."""
        if self.was_killed():
            return f"the client's connection ended, and it was not back within {self._return_within:g} s"
        return f"the agent heard nothing from the client for {self._lease:g} s"

    def _let_go(self) -> None:
        if self._visitor is not None:
            self._visitor.close()
            self._visitor = None


def release(descriptor: int) -> None:
    """Close an end of a channel. The numbers 0 and 1 must not become those of something else."""
    if descriptor > 2:
        os.close(descriptor)
        return
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, descriptor)
    os.close(null)
