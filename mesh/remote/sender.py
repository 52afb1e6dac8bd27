"""The sending half of a session: orders that survive a channel, and much that is sent in pieces."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator

from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Channel, Paced
from mesh.protocol.messages import Message, encode
from mesh.protocol.requests import Beat, Order, Pack

# Bytes of the workspace in one frame. An order waits behind one of them, and a host is alive as long as it takes them:
# over a share of 32 kbit/s of an uplink, this is 8 s.
PIECE_BYTES = 32 << 10

Frame = tuple[Message, bytes]


class Sender:
    """Sends to one agent, from any thread, through one channel after the other. Nothing raises when a channel is gone.

    The first bytes of a channel are a program that the host's interpreter runs, so nothing is sent ahead of them.
    Orders are numbered and kept until the agent has confirmed them; ``attach`` sends the others through a new channel.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_attached = True  # the channel is the agent's; False until a new one is
        self.has_begun = False  # the agent has its first request
        self.given_up = ""  # the reason why the client hung up for good; "": it did not
        self.is_ending = False  # the rest of what is being sent in pieces is not needed
        self.sent = 0  # bytes of the workspace
        self.sent_at = 0.0  # monotonic: when the last piece went out
        self.attempt = 0  # which listing of the workspace is being sent
        self._orders: list[tuple[int, bytes]] = []  # numbered; the agent has not confirmed them
        self._number = 0
        self._lock = threading.Lock()
        self._held_back: list[bytes] | None = None  # orders that wait while the workspace is being sent
        self._owes_beat = False  # the first one goes with the next data
        self._sending = threading.Lock()  # held while much is sent

    def begin(self, data: bytes) -> None:
        """Send the first request, and the orders that were given before it; nothing if the host was given up."""
        with self._lock:
            if not self.given_up:
                self.has_begun = True
                self._write(b"".join([data, *(frame for _, frame in self._orders)]))

    def give_up(self, reason: str) -> bool:
        """Note that the client hangs up for good; return whether the agent has its first request."""
        with self._lock:
            self.given_up = self.given_up or reason
            return self.has_begun

    def send(self, data: bytes) -> None:
        """Send something that may get lost with the channel; before the first request it does."""
        with self._lock:
            if self.is_attached and self.has_begun:
                self._send_held(data)

    def send_at_once(self, data: bytes) -> None:
        """Send something that belongs to this channel alone, attached or not."""
        with self._lock:
            self._write(data)

    def order(self, message: Order, data: bytes = b"") -> None:
        """Send something that must not get lost with a channel."""
        with self._lock:
            self._number += 1
            frame = encode(message.numbered(self._number), data)
            self._orders.append((self._number, frame))
            if self.is_attached and self.has_begun:
                self._send_held(frame)

    def owe_beat(self) -> None:
        """Send a beat before the next data."""
        self._owes_beat = True

    def detach(self) -> None:
        """Keep orders from now on: the channel has ended."""
        with self._lock:
            self.is_attached = False

    def attach(self, confirmed: int) -> None:
        """Send the orders that have not arrived: the agent has the new channel. confirmed: as in ``forget``"""
        self.forget(confirmed)
        with self._lock:
            self.is_attached = True
            self._write(b"".join(frame for _, frame in self._orders))

    def forget(self, confirmed: int) -> None:
        """Drop the orders that have arrived. confirmed: the number of the last one"""
        with self._lock:
            self._orders = [(number, frame) for number, frame in self._orders if number > confirmed]

    def send_pieces(self, attempt: int, round_trip: float, *frames: Iterable[Frame]) -> None:
        """Send much; orders that are given meanwhile go out between two pieces. For a thread of its own.

        attempt: pieces of an earlier one are broken off, or not begun; round_trip: seconds
        """
        with self._sending:
            if attempt != self.attempt:
                return
            if isinstance(self.channel, Paced):
                self.channel.pace(round_trip)
            with self._lock:
                self._held_back = []
            for data, size in _together(itertools.chain(*frames)):
                self.sent_at = time.monotonic()
                self._write(data)
                self.sent += size
                with self._lock:
                    orders, self._held_back = self._held_back, []
                if orders:
                    self._write(b"".join(orders))
                if self.is_ending or self.given_up or attempt != self.attempt:
                    break
            with self._lock:
                orders, self._held_back = self._held_back, None
                self._write(b"".join(orders))

    def _send_held(self, data: bytes) -> None:
        if self._owes_beat:
            self._owes_beat = False
            data = encode(Beat(time=time.time())) + data
        if self._held_back is not None:
            self._held_back.append(data)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            self.channel.send(data)
        except ChannelClosed:
            pass  # the end of receive() shows what it means


def pieces(message: Message, data: bytes) -> list[Frame]:
    """Return data in pieces of at most PIECE_BYTES, each behind the same message."""
    return [(message, data[place : place + PIECE_BYTES]) for place in range(0, len(data), PIECE_BYTES)]


def pack_frames(pack: int) -> Iterator[Frame]:
    """Yield a pack from an open file, which other threads read as well."""
    place = 0
    while piece := os.pread(pack, PIECE_BYTES, place):
        yield Pack(), piece
        place += len(piece)
    yield Pack(last=True), b""


def _together(frames: Iterable[Frame]) -> Iterator[tuple[bytes, int]]:
    """Yield frames as they are sent, small ones as one; with each, how many bytes that are no header are in it."""
    data, size = b"", 0
    for message, piece in frames:
        frame = encode(message, piece)
        if data and len(data) + len(frame) > PIECE_BYTES:
            yield data, size
            data, size = b"", 0
        data, size = data + frame, size + len(piece)
    if data:
        yield data, size
