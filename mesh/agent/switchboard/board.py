"""The switchboard itself: it passes the frames of streams between clients and nodes, keeps nothing and decides nothing.

Nodes and clients connect, and show the key of this allocation. The end of a connection ends its streams at the other
end, and nothing else. A window for each stream, which its two ends keep, bounds the bytes that wait here.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time

from mesh.agent.link.tls import tls_context
from mesh.agent.switchboard import frames
from mesh.agent.switchboard.connection import READ_BYTES, Connection, ConnectionEnded, listen
from mesh.agent.switchboard.frames import BadFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

    from mesh.agent.switchboard.frames import Fields

HANDSHAKE_LIMIT_S = 15.0  # in which a connection has to show the key and its role
MAX_HANDSHAKES = 256  # at a time; more wait in the kernel
SILENCE_LIMIT_S = 30.0  # a connection without a byte for so long is dead; longer than the agents' SILENCE_LIMIT_S
BUSY_LIMIT_S = 30.0  # a node whose connection has ended counts as busy for so long
LOOK_INTERVAL_S = 1.0  # between two looks at these limits
LATE_LIMIT_S = 5.0  # a look that is later than this: the process was stopped, or has no processor
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
STREAM_KINDS = (frames.DATA, frames.TAKEN, frames.END)


class _Peer:
    """A connection at the switchboard, and the streams that go through it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.descriptor = connection.socket.fileno()
        self.role = self.name = ""  # until it has sent them
        self.streams: dict[int, tuple[_Peer, int]] = {}  # by number: the other connection, and the number there
        self.last_stream = 0  # that a node was sent
        self.is_writing = False  # the poll waits until it takes more
        self.is_ending = False  # a node that has received SIGTERM

    def number(self) -> int:
        """Return a number for a new stream of a node."""
        self.last_stream += 1
        return self.last_stream


class Board:
    """A switchboard in one thread. ``listen``, then ``run_once`` again and again."""

    def __init__(self, credentials: str, ports: Sequence[int] = (0, 0), address: str = "") -> None:
        """Make a switchboard that does not listen yet.

        credentials: a private key and its certificate, as PEM; ports: the first and the last one that may be taken,
        0 for any; address: to listen at, "" for every address of this host
        """
        self._context = tls_context(credentials, server=True)
        self._ports, self._address = ports, address
        self._poll = select.epoll()
        self._listener: socket.socket | None = None
        self._accepts = False  # the poll looks at the listener
        self._peers: dict[int, _Peer] = {}  # by descriptor
        self._unproved: set[_Peer] = set()  # have not sent their role yet
        self._nodes: dict[str, _Peer] = {}
        self._called: dict[str, _Peer] = {}  # nodes that this end has connected to
        self._clients: set[_Peer] = set()
        self.busy: dict[str, float] = {}  # nodes with something of mesh, and when they reported that last
        self._dirty: set[_Peer] = set()  # have something to send
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._look_at = time.monotonic()
        self._idle_since: float | None = time.monotonic()
        self._refusal = ""  # for clients that come too late
        self.on_ending: Callable[[str], object] = lambda name: None  # called when a node has received SIGTERM

    # ---- for the program that runs it

    def listen(self) -> int:
        """Open the port, and return it. Raises OSError if none can be had."""
        first, last = self._ports
        problem: OSError = OSError(errno.EADDRINUSE, f"no free port from {first} to {last}")
        for port in range(first, last + 1):
            try:
                self._listener = listen(self._address, port)
                break
            except OSError as error:
                problem = error
        if self._listener is None:
            raise problem
        self._listener.setblocking(False)
        self._watch_listener()
        number: int = self._listener.getsockname()[1]
        return number

    def fileno(self) -> int:
        """Return a descriptor that is readable when ``run_once`` has something to do."""
        return self._poll.fileno()

    def run_once(self, timeout: float) -> None:
        """Serve what comes within so many seconds; return after the first turn of work."""
        wait = max(0.0, min(timeout, self._look_at - time.monotonic()))
        for descriptor, events in self._poll.poll(wait):
            peer = self._peers.get(descriptor)
            if peer is not None:
                self._serve(peer, events)
            elif self._listener is not None and descriptor == self._listener.fileno():
                self._accept(self._listener)
        now = time.monotonic()
        if now >= self._look_at:
            was_stopped = now > self._look_at + LATE_LIMIT_S
            self._look_at = now + LOOK_INTERVAL_S
            if not was_stopped:  # else the others have not been silent: their bytes wait to be read
                self._look(now)
        self._flush()

    def close(self) -> None:
        """End every connection, and close the port."""
        for peer in list(self._peers.values()):
            peer.connection.close()
        if self._listener is not None:
            self._listener.close()
        self._peers, self._listener = {}, None
        self._poll.close()

    @property
    def clients(self) -> int:
        """The number of clients that are connected."""
        return len(self._clients)

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that are connected."""
        return sorted(self._nodes)

    @property
    def idle_since(self) -> float | None:
        """The monotonic time since which no client is connected and no node busy; None while one is."""
        return self._idle_since

    @property
    def unproved(self) -> int:
        """The number of connections that have not shown the key."""
        return len(self._unproved)

    def has(self, name: str) -> bool:
        """Return True if a node is connected, or is being called."""
        peer = self._called.get(name)
        return name in self._nodes or (peer is not None and self._peers.get(peer.descriptor) is peer)

    def call(self, name: str, address: tuple[str, int]) -> None:
        """Connect to a node that listens; all else is as if it had connected, but for its name."""
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            own = socket.socket(family, kind, protocol)
        except OSError:
            return
        own.setblocking(False)
        if own.connect_ex(place) not in (0, errno.EINPROGRESS):
            own.close()
            return
        peer = self._add(own)
        if peer is not None:
            peer.name = name
            self._called[name] = peer

    def notify_clients(self, text: str) -> None:
        """Send a line to every client, which shows it."""
        self._broadcast(self._clients, frames.frame(frames.NOTICE, 0, text.encode()))

    def notify_nodes(self, text: str) -> None:
        """Send a text to every node, which keeps the last one."""
        self._broadcast(set(self._nodes.values()), frames.frame(frames.NOTICE, 0, text.encode()))

    def note_busy(self, name: str, is_busy: bool) -> None:
        """Note if a node has something of mesh. A report is good for BUSY_LIMIT_S."""
        if is_busy:
            self.busy[name] = time.monotonic()
        else:
            self.busy.pop(name, None)
        self._note_idle()

    def refuse_clients(self, reason: str) -> None:
        """Take no client any more: nobody was there for long enough."""
        self._refusal = reason

    def stop_nodes(self, reason: str) -> None:
        """Have every node end its agents with SIGTERM, wait for them, and end."""
        self._broadcast(set(self._nodes.values()), frames.frame(frames.STOP, 0, reason.encode()))

    # ---- connections

    def _watch_listener(self) -> None:
        """Accept connections, unless too many have not shown the key."""
        wanted = len(self._unproved) < MAX_HANDSHAKES
        if self._listener is not None and wanted != self._accepts:
            if wanted:
                self._poll.register(self._listener.fileno(), select.EPOLLIN)
            else:
                self._poll.unregister(self._listener.fileno())
            self._accepts = wanted

    def _accept(self, listener: socket.socket) -> None:
        while len(self._unproved) < MAX_HANDSHAKES:
            try:
                own, _ = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EMFILE and _allow_descriptors():
                    continue
                if error.errno in FULL:  # until the next look, as the poll would return at once again
                    self._poll.unregister(listener.fileno())
                    self._accepts = False
                    return
                continue  # it has ended meanwhile
            self._add(own)
        self._watch_listener()

    def _add(self, own: socket.socket) -> _Peer | None:
        """Take a connection whose other end has to show the key; return None if it has ended."""
        try:
            peer = _Peer(Connection(own, self._context, server=True))
        except OSError:
            own.close()
            return None
        self._peers[peer.descriptor] = peer
        self._unproved.add(peer)
        self._poll.register(peer.descriptor, select.EPOLLIN)
        return peer

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & select.EPOLLOUT:
            self._dirty.add(peer)
        if not events & ~select.EPOLLOUT:
            return
        try:
            for kind, stream, data in peer.connection.receive(self._buffer):
                self._handle(peer, kind, stream, data)
                if peer.descriptor not in self._peers:
                    return
        except (ConnectionEnded, BadFrame) as error:
            self._drop(peer, str(error))
            return
        self._dirty.add(peer)  # TLS may have something to send

    def _flush(self) -> None:
        while self._dirty:
            peer = self._dirty.pop()
            if self._peers.get(peer.descriptor) is not peer:
                continue
            try:
                peer.connection.flush()
            except ConnectionEnded as error:
                self._drop(peer, str(error))
                continue
            if peer.is_writing != peer.connection.wants_to_write:
                peer.is_writing = not peer.is_writing
                self._poll.modify(peer.descriptor, select.EPOLLIN | (select.EPOLLOUT if peer.is_writing else 0))

    def _look(self, now: float) -> None:
        """End what has been silent for too long."""
        for peer in list(self._peers.values()):
            if peer in self._unproved:
                if now - peer.connection.began > HANDSHAKE_LIMIT_S:
                    self._drop(peer, "it has not shown the key")
            elif now - peer.connection.received_at > SILENCE_LIMIT_S:
                self._drop(peer, f"silent for {SILENCE_LIMIT_S:g} s")
        for name in [name for name, seen in self.busy.items() if now - seen > BUSY_LIMIT_S]:
            del self.busy[name]
        self._note_idle()
        self._watch_listener()

    def _drop(self, peer: _Peer, why: str) -> None:
        """End a connection, and with it its streams."""
        if self._peers.pop(peer.descriptor, None) is None:
            return
        self._poll.unregister(peer.descriptor)
        peer.connection.close()
        self._unproved.discard(peer)
        self._dirty.discard(peer)
        self._clients.discard(peer)
        reason = f"the connection of {peer.name or peer.role} to the switchboard ended: {why}"
        for other, number in peer.streams.values():
            other.streams.pop(number, None)
            self._send(other, frames.end_frame(number, None, reason), number)
        peer.streams = {}
        if self._nodes.get(peer.name) is peer:
            del self._nodes[peer.name]
            self._broadcast(self._clients, frames.record(frames.NODE, name=peer.name, is_here=False))
        self._note_idle()
        self._watch_listener()

    # ---- frames

    def _handle(self, peer: _Peer, kind: bytes, stream: int, data: bytes) -> None:
        """Act on one frame. Raises BadFrame."""
        if kind in STREAM_KINDS:
            self._route(peer, kind, stream, data)
        elif peer in self._unproved:
            if kind != frames.HELLO:
                raise BadFrame("a frame before the first one")
            self._greet(peer, frames.read_record(data))
        elif kind == frames.OPEN and peer.role == frames.CLIENT_ROLE:
            self._open(peer, stream, data)
        elif kind == frames.BUSY and peer.role == frames.NODE_ROLE:
            self._note_busy(peer, frames.read_record(data))
        elif kind == frames.PING:
            self._send(peer, frames.frame(frames.PONG))
        else:
            raise BadFrame(f"a frame that a {peer.role} does not send")

    def _route(self, peer: _Peer, kind: bytes, stream: int, data: bytes) -> None:
        """Pass a frame of a stream on; its other end may have ended it meanwhile."""
        if stream not in peer.streams:
            return
        other, number = peer.streams[stream]
        if kind == frames.END:
            del peer.streams[stream]
            other.streams.pop(number, None)
        # Credit does not wait behind data, as the data of the other direction waits for it.
        self._send(other, frames.frame(kind, number, data), 0 if kind == frames.TAKEN else number)

    def _greet(self, peer: _Peer, hello: Fields) -> None:
        version, role, name = hello.get("version"), hello.get("role"), peer.name or str(hello.get("name", ""))
        text = self._refusal if role == frames.CLIENT_ROLE else ""
        if version != frames.SWITCHBOARD_VERSION or role not in (frames.NODE_ROLE, frames.CLIENT_ROLE):
            text = f"this switchboard has version {frames.SWITCHBOARD_VERSION}, and the other end version {version}"
        if text:
            self._send(peer, frames.frame(frames.REFUSED, 0, text.encode()))
            return
        self._unproved.discard(peer)
        peer.role, peer.name = str(role), name
        if role == frames.NODE_ROLE:
            before = self._nodes.get(name)
            if before is not None:  # it has connected again before this end has noticed
                self._drop(before, "it has connected again")
            self._nodes[name] = peer
            self._broadcast(self._clients, frames.record(frames.NODE, name=name, is_here=True))
        else:
            self._clients.add(peer)
        self._send(peer, frames.record(frames.WELCOME, nodes=self.nodes if role == frames.CLIENT_ROLE else []))
        self._note_idle()
        self._watch_listener()

    def _open(self, client: _Peer, stream: int, data: bytes) -> None:
        name = str(frames.read_record(data).get("node"))
        node = self._nodes.get(name)
        if node is None:
            self._send(client, frames.end_frame(stream, None, f"{name} is not connected to the switchboard"), stream)
            return
        number = node.number()
        client.streams[stream], node.streams[number] = (node, number), (client, stream)
        self._send(node, frames.frame(frames.OPEN, number, data), number)

    def _note_busy(self, peer: _Peer, report: Fields) -> None:
        self.note_busy(peer.name, bool(report.get("is_busy")))
        if report.get("is_ending") and not peer.is_ending:
            peer.is_ending = True
            self.on_ending(peer.name)

    def _note_idle(self) -> None:
        if self._clients or self.busy:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()

    def _send(self, peer: _Peer, frame: bytes, stream: int = 0) -> None:
        peer.connection.out.put(frame, stream)
        self._dirty.add(peer)

    def _broadcast(self, peers: set[_Peer], frame: bytes) -> None:
        for peer in peers:
            self._send(peer, frame)


def _allow_descriptors() -> bool:
    """Raise this process's limit of open files as far as allowed; return False if that was done before.

    Not before it is needed: programs that are started from this process inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return soft != hard
