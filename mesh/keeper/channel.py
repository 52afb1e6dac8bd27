"""A channel to an agent that waited: the keeper hands on its bytes in both directions."""

from __future__ import annotations

import contextlib
import socket

import msgspec

from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Farewell
from mesh.keeper.packets import DATA, END, receive, send_all


class KeptChannel:
    """A channel to an agent that was started before the command began."""

    def __init__(self, way: socket.socket, address: str, ahead: bytes) -> None:
        """ahead: bytes that the keeper has sent to the agent already, and that the client begins with."""
        self.address = address
        self._way, self._ahead = way, ahead
        self._farewell = Farewell(status=None, stderr=b"")

    def send(self, data: bytes) -> None:
        if self._ahead:
            assert data.startswith(self._ahead), "an agent is sent something else first"
            data, self._ahead = data[len(self._ahead) :], b""
        try:
            send_all(self._way, data)
        except OSError as error:
            raise ChannelClosed("the keeper is gone, or has lost the host") from error

    def receive(self) -> bytes:
        packet = receive(self._way)
        if packet[:1] == END:
            self._farewell = msgspec.json.decode(packet[1:], type=Farewell)
        return packet[1:] if packet[:1] == DATA else b""

    def farewell(self) -> Farewell:
        return self._farewell

    def close(self, *, leave: bool = False) -> None:
        with contextlib.suppress(OSError):
            self._way.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for it
        self._way.close()
