"""A channel of its own to a program of the agent on a host: its first message, and its bytes as a socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from mesh.core.errors import MeshError
from mesh.core.interfaces import Channel
from mesh.core.text import one_line
from mesh.protocol.first import First, Program
from mesh.protocol.messages import encode
from mesh.remote.blob import blob, lacking, opening
from mesh.remote.greeting import MAX_BANNER_BYTES

SEND_BYTES = 1 << 16
REASON_CHARACTERS = 200


def begin(channel: Channel, request: First, host: str) -> bytes:
    """Send the first message; return the bytes that have come behind the greeting. Raises MeshError. host: its name"""
    channel.send(opening() + encode(request))
    ahead = _greeted(channel, request.marker)
    if ahead is None:
        reason = one_line(channel.farewell().stderr.decode("utf-8", "replace"))[-REASON_CHARACTERS:]
        raise MeshError(f"{host}: its Python does not start ({reason or 'the connection ended'})")
    return ahead


def as_socket(channel: Channel, ahead: bytes, close: Callable[[], None]) -> socket.socket:
    """Return a stream socket with the bytes of a channel, which the caller closes.

    ahead: the bytes that have come already
    close: closes the channel, also when the host ends it
    """
    own, theirs = socket.socketpair()
    for work in (_receive, _send):
        threading.Thread(target=work, args=(channel, own, ahead, close), name="mesh-pipe", daemon=True).start()
    return theirs


def _greeted(channel: Channel, marker: str) -> bytes | None:
    """Read up to the greeting of our program; return the bytes behind it, None if it does not come."""
    banner, has_all = b"", False
    while chunk := channel.receive():
        banner += chunk
        if not has_all and lacking() in banner:
            has_all = True
            channel.send(encode(Program(), blob()))
        _, found, rest = banner.partition(b"\n%s\n" % marker.encode())
        if found:
            return rest
        if len(banner) > MAX_BANNER_BYTES:
            break
    return None


def _receive(channel: Channel, own: socket.socket, ahead: bytes, close: Callable[[], None]) -> None:
    """Pass on what comes from the host, until either end leaves."""
    with contextlib.suppress(OSError, MeshError):
        data = ahead or channel.receive()
        while data:
            own.sendall(data)
            data = channel.receive()
    with contextlib.suppress(OSError):
        own.shutdown(socket.SHUT_RDWR)  # wakes the other thread


def _send(channel: Channel, own: socket.socket, ahead: bytes, close: Callable[[], None]) -> None:
    """Pass on what the caller sends; then end the channel."""
    with contextlib.suppress(OSError, MeshError):
        while data := own.recv(SEND_BYTES):
            channel.send(data)
    close()
    own.close()
