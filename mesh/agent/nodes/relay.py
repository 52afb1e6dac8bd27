"""Connections of a client to nodes, through the agent's channel: for clients that have no other way to a host.

The bytes mean nothing to the agent. Each connection has a window in each direction, so that a slow one holds up
neither the others nor the output of ranks, and costs little memory.
"""

from __future__ import annotations

import errno
import os
import select

from mesh.agent.base.errors import why
from mesh.agent.base.light import Socket, deque, partial, socket
from mesh.protocol import nodes as messages
from mesh.protocol.nodes import RELAY_WINDOW_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh.agent.link.client import ClientConnection
    from mesh.agent.link.outbox import Outbox
    from mesh.agent.loop import Loop
    from mesh.agent.nodes.nodes import Nodes
    from mesh.protocol.messages import Message
    from mesh.protocol.requests import Relay, RelayTaken

READ_BYTES = 64 << 10
STREAMS_MAX = 1024


class RelayedConnection:
    """A connection to a node of this host."""

    def __init__(self, own: Socket) -> None:
        """own: the agent's socket, connected and without blocking"""
        self.socket = own
        self.window = RELAY_WINDOW_BYTES  # bytes that the client takes now
        self.waiting: deque[bytes] = deque()  # for the node
        self.on_open: Callable[[str], None] | None = None  # called once: with "" when connected, else with the reason


class Relays:
    """All connections of the client."""

    def __init__(self, loop: Loop, out: Outbox, client: ClientConnection, nodes: Nodes) -> None:
        """Start without any."""
        self._loop, self._out, self._client, self._nodes = loop, out, client, nodes
        self._streams: dict[int, RelayedConnection] = {}

    def take(self, request: Relay, data: bytes) -> None:
        """Pass bytes on to a node; connect to it first if they are the first ones."""
        stream = self._streams.get(request.stream)
        if stream is None and request.label:
            stream = self._open(request)
        if stream is None:  # it has ended meanwhile, and the client was sent that
            return
        if data:
            stream.waiting.append(data)
        self._write(request.stream, stream)

    def ask(self, number: int, own: Socket, label: str, on_open: Callable[[str], None]) -> None:
        """Ask the client to connect a socket of a node here with a node of another host.

        on_open: called once, with "" when they are connected, or with the reason why not
        """
        if len(self._streams) >= STREAMS_MAX:
            on_open(os.strerror(errno.EMFILE))
            own.close()
            return
        stream = self._streams[number] = RelayedConnection(own)
        stream.on_open = on_open
        self._loop.watch(own.fileno(), 0, partial(self._serve, number, stream))
        self._send(messages.Connecting(stream=number, label=label))

    def widen(self, request: RelayTaken) -> None:
        """Read more from the node: the client has taken bytes, or has made the connection."""
        stream = self._streams.get(request.stream)
        if stream is not None:
            self._opened(stream, "")
            stream.window = min(RELAY_WINDOW_BYTES, stream.window + request.bytes)
            self._watch(request.stream, stream)

    def end(self, number: int, reason: str = "") -> None:
        """Close a connection that the client or the node has ended. reason: why it could not be made, or "" """
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._opened(stream, reason or "the other host or the client is gone")
            self._loop.unwatch(stream.socket.fileno())
            stream.socket.close()

    def close(self) -> None:
        """Close all connections."""
        for number in list(self._streams):
            self.end(number)

    def _open(self, request: Relay) -> RelayedConnection | None:
        path = self._nodes.address(request.label)
        own = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not path:
                raise OSError(errno.ECONNREFUSED, f"{request.label} does not listen on this host")
            if len(self._streams) >= STREAMS_MAX:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            own.setblocking(False)
            own.connect(path)
        except OSError as error:
            own.close()
            self._send(messages.RelayEnded(stream=request.stream, why=why(error)))
            return None
        stream = self._streams[request.stream] = RelayedConnection(own)
        self._send(messages.RelayTaken(stream=request.stream, bytes=0))  # the connection is made
        return stream

    def _opened(self, stream: RelayedConnection, reason: str) -> None:
        on_open, stream.on_open = stream.on_open, None
        if on_open is not None:
            on_open(reason)

    def _watch(self, number: int, stream: RelayedConnection) -> None:
        wanted = (select.POLLIN if stream.window else 0) | (select.POLLOUT if stream.waiting else 0)
        self._loop.watch(stream.socket.fileno(), wanted, partial(self._serve, number, stream))

    def _serve(self, number: int, stream: RelayedConnection, events: int) -> None:
        if events & select.POLLOUT:
            self._write(number, stream)
        if self._streams.get(number) is stream and events & ~select.POLLOUT:
            self._read(number, stream)

    def _read(self, number: int, stream: RelayedConnection) -> None:
        try:
            data = stream.socket.recv(min(READ_BYTES, stream.window or READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(number)
            return
        stream.window = max(0, stream.window - len(data))
        self._send(messages.Relayed(stream=number), data)
        self._watch(number, stream)

    def _write(self, number: int, stream: RelayedConnection) -> None:
        taken = 0
        try:
            while stream.waiting:
                count = stream.socket.send(stream.waiting[0])
                taken += count
                rest = stream.waiting.popleft()[count:]
                if rest:
                    stream.waiting.appendleft(rest)
        except BlockingIOError:
            pass
        except OSError:
            self._end(number)
            return
        if taken:
            self._send(messages.RelayTaken(stream=number, bytes=taken))
        self._watch(number, stream)

    def _end(self, number: int) -> None:
        self.end(number)
        self._send(messages.RelayEnded(stream=number))

    def _send(self, message: Message, data: bytes = b"") -> None:
        self._out.send_urgently(message, data)
        self._client.flush()
