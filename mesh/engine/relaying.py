"""Connections to nodes through the agents' channels, for a client that has no other way to the hosts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

from mesh.core.cluster import Placement
from mesh.core.errors import MeshError
from mesh.protocol.messages import Message
from mesh.protocol.nodes import PAIR_STREAM_BITS, RELAY_WINDOW_BYTES, Connecting, Relayed, RelayEnded, RelayTaken
from mesh.remote.session import Session

READ_BYTES = 32 << 10
PAIRS_LIMIT = 4096  # connections between nodes of two hosts, at a time


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
        self._pairs: dict[int, tuple[Session, int]] = {}  # the other end of a connection between two hosts
        self._last = 0  # number of the last stream
        self._lost: set[int] = set()  # hosts
        self._is_closed = False

    def connect(self, label: str) -> socket.socket:
        """Return a connected stream socket whose bytes go to the Unix socket of a node. The caller closes it.

        Raises MeshError for an unknown label, a host without a connection, and a run that is over. A node that does not
        listen ends the connection.
        """
        if label not in self._nodes:
            raise MeshError(f"{label}: no such node", hint=f"the nodes are {', '.join(sorted(self._nodes))}")
        session = self._session(label)
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

    def lose(self, node: int) -> None:
        """End all connections to a lost host, and make none any more."""
        session = self._sessions.get(node)
        with self._lock:
            self._lost.add(node)
            streams = [stream for stream in self._streams.values() if stream.session is session]
            ends = [other for one, other in self._pairs.values() if one is session]  # numbers at the lost host
            left = [self._pairs.pop(number) for number in ends if number in self._pairs]
            for _, number in left:
                self._pairs.pop(number, None)
        for stream in streams:
            self._end(stream)
        for own, number in left:
            if own is not session:
                own.relay_end(number, "its host is lost")

    def _session(self, label: str) -> Session | None:
        """Return the session of a node's host; None if there is none, or the host is lost."""
        node = self._nodes.get(label, -1)
        return None if node in self._lost else self._sessions.get(node)

    def move(self, rank: int, node: int) -> None:
        """Connect to a node at another host from now on. rank: of the node"""
        self._nodes.update({label: node for label, one in self._ranks.items() if one == rank})

    def restart(self, label: str) -> None:
        """End the process of a node, and have its host start the node again. Raises MeshError."""
        session = self._session(label)
        if session is None or self._is_closed:
            raise MeshError(f"{label}: its host is not connected")
        session.restart(self._ranks[label])

    def note(self, states: Sequence[tuple[str, str, int, str]]) -> None:
        """Send all hosts how nodes on the client have changed: label, state and attempt of each, and why."""
        if not self._is_closed:
            for session in list(self._sessions.values()):
                session.change(states)

    def take(self, message: Message, data: bytes) -> None:
        """Take a message of an agent about a stream, in the thread of its host. One about no stream is dropped."""
        if isinstance(message, Connecting):
            self._connect_pair(message)
        elif not self._pass_on(message, data):
            self._take_own(message, data)

    def _connect_pair(self, message: Connecting) -> None:
        """Connect a node that has asked for that with a node of another host. Their windows limit the bytes here."""
        asking = self._sessions.get((message.stream >> PAIR_STREAM_BITS) - 1)
        other = self._session(message.label)
        if asking is None:
            return
        with self._lock:
            why = "" if other is not None else f"the client is not connected to the host of {message.label}"
            why = f"{PAIRS_LIMIT} connections go through the client already" if len(self._pairs) > PAIRS_LIMIT else why
            why = "the run is over" if self._is_closed else why
            if not why and other is not None:
                self._last += 1
                number = self._last
                self._pairs[message.stream], self._pairs[number] = (other, number), (asking, message.stream)
        if why or other is None:
            asking.relay_end(message.stream, why)
        else:
            other.relay(number, b"", message.label)

    def _pass_on(self, message: Message, data: bytes) -> bool:
        """Pass a message on to the other host of a pair; return False if it is about no pair."""
        match message:
            case Relayed(stream=number) | RelayTaken(stream=number) | RelayEnded(stream=number):
                session, other = self._pairs.get(number, (None, 0))
            case _:
                return False
        if session is None:
            return False
        if isinstance(message, Relayed):
            session.relay(other, data)
        elif isinstance(message, RelayTaken):
            session.relay_taken(other, message.bytes)
        elif isinstance(message, RelayEnded):
            with self._lock:
                for one in (number, other):
                    self._pairs.pop(one, None)
            session.relay_end(other, message.why)
        return True

    def _take_own(self, message: Message, data: bytes) -> None:
        """Take a message about a connection of the client."""
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
            streams, pairs, self._pairs = list(self._streams.values()), self._pairs, {}
        for stream in streams:
            self._end(stream)
        for session, number in pairs.values():
            session.relay_end(number, "the client leaves")

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
