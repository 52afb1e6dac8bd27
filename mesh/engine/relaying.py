"""Connections to nodes through the agents' channels, for a client that has no other way to the hosts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

from mesh.core.cluster import Placement
from mesh.core.errors import MeshError
from mesh.protocol.messages import Message
from mesh.protocol.nodes import RELAY_WINDOW_BYTES, Relayed, RelayEnded, RelayTaken
from mesh.remote.session import Session

READ_BYTES = 32 << 10


class _Stream:
    """A connection: a socket whose other end the caller has, and the windows of both directions."""

    def __init__(self, session: Session, number: int, own: socket.socket) -> None:
        self.session, self.number, self.own = session, number, own
        self.window = RELAY_WINDOW_BYTES  # bytes that the node takes now
        self.is_ended = False
        self.changed = threading.Condition()
        self.incoming: list[bytes] = []  # from the node, for the caller


class Relay:
    """Makes connections to nodes by their labels. Any thread may use it, also before the nodes have started."""

    def __init__(
        self,
        placement: Placement,
        sessions: Mapping[int, Session],
        start: Callable[[str, Callable[[], None]], object],
    ) -> None:
        """sessions: by host; start: starts a thread of a name"""
        self._nodes = {placement.role(rank): placement.node(rank) for rank in range(placement.world_size)}
        self._ranks = {placement.role(rank): rank for rank in range(placement.world_size)}
        self._sessions, self._start = sessions, start
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._last = 0  # number of the last stream
        self._is_closed = False

    def connect(self, label: str) -> socket.socket:
        """Return a connected stream socket whose bytes go to the Unix socket of a node. The caller closes it.

        Raises MeshError for an unknown label, a host without a connection, and a run that is over. A node that does not
        listen ends the connection.
        """
        if label not in self._nodes:
            raise MeshError(f"{label}: no such node", hint=f"the nodes are {', '.join(sorted(self._nodes))}")
        session = self._sessions.get(self._nodes[label])
        with self._lock:
            if session is None or self._is_closed:
                raise MeshError(f"{label}: its host is not connected")
            self._last += 1
            own, theirs = socket.socketpair()
            stream = self._streams[self._last] = _Stream(session, self._last, own)
        session.relay(stream.number, b"", label)
        self._start(f"mesh-relay-out-{stream.number}", lambda: self._send(stream))
        self._start(f"mesh-relay-in-{stream.number}", lambda: self._give(stream))
        return theirs

    def restart(self, label: str) -> None:
        """End the process of a node, and have its host start the node again. Raises MeshError."""
        session = self._sessions.get(self._nodes.get(label, -1))
        if session is None or self._is_closed:
            raise MeshError(f"{label}: its host is not connected")
        session.restart(self._ranks[label])

    def take(self, message: Message, data: bytes) -> None:
        """Take a message of an agent about a stream, in the thread of its host. One about no stream is dropped."""
        match message:
            case Relayed(stream=number) | RelayTaken(stream=number) | RelayEnded(stream=number):
                stream = self._streams.get(number)
            case _:
                return
        if stream is None:
            return
        with stream.changed:
            if isinstance(message, Relayed) and sum(map(len, stream.incoming)) <= RELAY_WINDOW_BYTES:
                stream.incoming.append(data)
            elif isinstance(message, RelayTaken):
                stream.window = min(RELAY_WINDOW_BYTES, stream.window + message.bytes)
            else:
                stream.is_ended = True
            stream.changed.notify_all()

    def close(self) -> None:
        """End all connections, and make none any more."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams.values())
        for stream in streams:
            self._end(stream)

    def _send(self, stream: _Stream) -> None:
        """Send bytes of the caller to the node, as many as it takes."""
        while True:
            with stream.changed:
                stream.changed.wait_for(lambda: stream.window > 0 or stream.is_ended)
                size = min(READ_BYTES, stream.window)
                if stream.is_ended:
                    break
            try:
                data = stream.own.recv(size)
            except OSError:
                data = b""
            if not data:
                break
            with stream.changed:
                stream.window -= len(data)
            stream.session.relay(stream.number, data)
        self._end(stream)

    def _give(self, stream: _Stream) -> None:
        """Give bytes of the node to the caller, and let the node send more."""
        while True:
            with stream.changed:
                stream.changed.wait_for(lambda: stream.incoming or stream.is_ended)
                pieces, stream.incoming = stream.incoming, []
            if not pieces:
                break
            data = b"".join(pieces)
            try:
                stream.own.sendall(data)
            except OSError:
                break
            stream.session.relay_taken(stream.number, len(data))
        self._end(stream)

    def _end(self, stream: _Stream) -> None:
        with self._lock:
            is_first = self._streams.pop(stream.number, None) is not None
        with stream.changed:
            stream.is_ended = True
            stream.changed.notify_all()
        if is_first:
            stream.session.relay_end(stream.number)
        with contextlib.suppress(OSError):
            stream.own.shutdown(socket.SHUT_RDWR)
        stream.own.close()
