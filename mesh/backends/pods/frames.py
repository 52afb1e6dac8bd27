"""Frames of the websocket protocol (RFC 6455). Pure: bytes in, frames out."""

from __future__ import annotations

import os
from collections.abc import Iterator

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN, _MASK = 0x80, 0x80
_SHORT_BYTES, _TWO_BYTES, _EIGHT_BYTES = 125, 126, 127
MESSAGE_BYTES = 64 << 20  # of one message at most, which no server of Kubernetes sends


class BadFrame(Exception):
    """The other end has sent bytes that are no frame."""


def frame(opcode: int, payload: bytes) -> bytes:
    """Return one masked frame, as a client sends it.

    >>> frame(BINARY, b"").hex()[:4]
    '8280'
    """
    size = len(payload)
    if size <= _SHORT_BYTES:
        head = bytes((_FIN | opcode, _MASK | size))
    elif size < 1 << 16:
        head = bytes((_FIN | opcode, _MASK | _TWO_BYTES)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FIN | opcode, _MASK | _EIGHT_BYTES)) + size.to_bytes(8, "big")
    mask = os.urandom(4)
    return head + mask + _masked(payload, mask)


def _masked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


class Frames:
    """Messages out of bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._opcode = BINARY
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the opcode and payload of each message that is complete now. Raises BadFrame."""
        self._data += data
        place = 0
        try:
            while (found := self._next(place)) is not None:
                is_last, opcode, begin, place = found
                payload = bytes(memoryview(self._data)[begin:place])
                if opcode >= CLOSE:  # a control frame may come between the parts of a message
                    yield opcode, payload
                    continue
                if opcode != CONTINUATION:
                    self._opcode = opcode
                if is_last and not self._parts:
                    yield self._opcode, payload
                    continue
                self._parts += payload
                if len(self._parts) > MESSAGE_BYTES:
                    raise BadFrame(f"a message of more than {MESSAGE_BYTES} bytes")
                if is_last:
                    whole, self._parts = bytes(self._parts), bytearray()
                    yield self._opcode, whole
        finally:
            del self._data[:place]

    def _next(self, place: int) -> tuple[bool, int, int, int] | None:
        """Return if the frame at a place ends its message, its opcode, and where its payload begins and ends."""
        data, have = self._data, len(self._data) - place
        if have < 2:
            return None
        first, second = data[place], data[place + 1]
        size, extra = second & 0x7F, 0
        if size in (_TWO_BYTES, _EIGHT_BYTES):
            extra = 2 if size == _TWO_BYTES else 8
            if have < 2 + extra:
                return None
            size = int.from_bytes(data[place + 2 : place + 2 + extra], "big")
        if first & 0x70 or second & _MASK:
            raise BadFrame("a frame with reserved bits, or a masked one")
        if size > MESSAGE_BYTES:
            raise BadFrame(f"a frame of {size} bytes")
        begin = place + 2 + extra
        if len(data) < begin + size:
            return None
        return bool(first & _FIN), first & 0x0F, begin, begin + size
