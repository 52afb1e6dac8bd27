"""The connection of a client to a switchboard, with the streams of all hosts. Three threads serve it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set

from mesh.agent.link.tls import TlsEngine, tls_context
from mesh.agent.switchboard import frames
from mesh.agent.switchboard.flow import Outgoing
from mesh.agent.switchboard.frames import BadFrame, Frames
from mesh.backends.switchboard.channel import StreamChannel
from mesh.core.errors import ChannelClosed, HostUnreachable
from mesh.core.interfaces import Channel

PING_INTERVAL_S = 5.0
SILENCE_LIMIT_S = 20.0  # without a byte, after which the connection is dead; less than the switchboard waits
STOPPED_S = 2.0  # a wait that takes so much longer: this process was stopped, and has read nothing
WELCOME_TIMEOUT_S = 15.0  # for the switchboard to answer
SENT_TOGETHER_BYTES = 64 << 10
FLUSH_TIMEOUT_S = 1.0  # for the last frames
JOIN_TIMEOUT_S = 2.0
BUFFER_BYTES = 64 << 10


class Line:
    """A connection that has been made. ``open`` starts programs on nodes."""

    def __init__(self, link: Channel, credentials: str, notice: Callable[[str], None]) -> None:
        """Begin to talk TLS over a connection to the switchboard's port. notice: is called with texts of the holder"""
        self._link, self._notice = link, notice
        self._tls = TlsEngine(tls_context(credentials, server=False), server=False)
        self._tls_lock = threading.Lock()  # an SSL object takes one call at a time
        self._changed = threading.Condition()  # guards all below
        self._out = Outgoing()
        self._is_sent = True  # nothing that was taken from it waits for the link
        self._shakes = True  # TLS has something to send
        self._is_open = self._is_welcome = self._is_over = False
        self._why = "the connection to the switchboard ended"
        self._refusal = ""
        self._streams: dict[int, StreamChannel] = {}
        self._last_stream = self._unanswered = 0  # pings
        self._has_left = False  # a program that goes on
        self._nodes: set[str] = set()
        self._arrivals: list[tuple[Set[str], threading.Event]] = []  # who waits for nodes
        self._received_at = time.monotonic()
        self._ended = threading.Event()
        hello = frames.record(
            frames.HELLO, version=frames.SWITCHBOARD_VERSION, role=frames.CLIENT_ROLE, name="a client"
        )
        self._out.put(hello)
        self._threads = [
            threading.Thread(target=self._read, name="mesh-board-in", daemon=True),
            threading.Thread(target=self._write, name="mesh-board-out", daemon=True),
            threading.Thread(target=self._watch, name="mesh-board-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """True once the connection has ended."""
        return self._is_over

    @property
    def why(self) -> str:
        """The reason of the end of the connection, once it has ended."""
        return self._why

    def wait_welcome(self) -> None:
        """Wait for the switchboard's answer. Raises HostUnreachable."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_welcome or self._refusal or self._is_over, WELCOME_TIMEOUT_S)
            if self._is_welcome and not self._is_over:
                return
            why = self._why if self._is_over else f"nothing came within {WELCOME_TIMEOUT_S:g} s"
            refusal = self._refusal
        self.close()
        if refusal:
            hint = "run it again, for another allocation; after an update of mesh, `mesh down CLUSTER` ends the old one"
            raise HostUnreachable(f"the switchboard refused this client: {refusal}", hint=hint, is_final=True)
        raise HostUnreachable(f"the switchboard did not answer: {why}")

    def wait_nodes(self, wanted: Set[str], timeout: float) -> set[str]:
        """Wait until a node of these names is connected; return all that are. Empty: none is, or this has ended."""
        arrival = wanted, threading.Event()  # one of its own: a thousand threads may wait, each for another node
        deadline = time.monotonic() + timeout
        with self._changed:
            self._arrivals.append(arrival)
            found = self._nodes & wanted
        while not self._is_over and not found and (left := deadline - time.monotonic()) > 0:
            arrival[1].wait(left)
            with self._changed:
                arrival[1].clear()  # a node may have come and left again
                found = self._nodes & wanted
        with self._changed:
            self._arrivals.remove(arrival)
            return set() if self._is_over else found

    def open(self, node: str, argv: list[str], window: int) -> StreamChannel:
        """Start a program on a node; a failure of that is the end of the channel. window: bytes"""
        with self._changed:
            self._last_stream += 1
            channel = StreamChannel(self._last_stream, window, self._put, node)
            if not self._is_over:
                self._streams[channel.number] = channel
                request = frames.record(frames.OPEN, channel.number, node=node, argv=argv, window=window)
                self._out.put(request, channel.number)
                self._changed.notify_all()
                return channel
        channel.end(None, self._why, b"")
        return channel

    def close(self) -> None:
        """Send what waits, as far as that takes no long time, and end the connection."""
        with self._changed:
            if self._is_welcome:
                self._changed.wait_for(lambda: self._is_over or (self._is_sent and not self._out), FLUSH_TIMEOUT_S)
            if self._is_welcome and self._has_left:  # the system drops what it has not sent if more is received
                self._ping()
                self._changed.wait_for(lambda: self._is_over or not self._unanswered, FLUSH_TIMEOUT_S)
        self._end("the client has closed it")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)

    def _put(self, frame: bytes, stream: int) -> None:
        with self._changed:
            if not self._is_over:
                self._out.put(frame, stream)
                if frame[:1] == frames.END:
                    self._streams.pop(stream, None)
                    self._has_left = True
                self._changed.notify_all()

    def _end(self, why: str) -> None:
        with self._changed:
            if self._is_over:
                return
            self._is_over, self._why = True, why
            streams, self._streams = list(self._streams.values()), {}
            self._changed.notify_all()
            for _, event in self._arrivals:
                event.set()
        self._ended.set()
        for channel in streams:
            channel.end(None, f"the connection to the switchboard ended: {why}", b"")
        # In a thread: the end of a link that takes no bytes may block until the system gives it up.
        closing = threading.Thread(target=self._link.close, name="mesh-board-close", daemon=True)
        closing.start()
        closing.join(JOIN_TIMEOUT_S)

    # ---- threads

    def _write(self) -> None:
        """Send frames, and a sign of life where there are none."""
        ping_at = time.monotonic() + PING_INTERVAL_S
        try:
            while not self._is_over:
                with self._changed:
                    self._is_sent = True
                    self._changed.notify_all()
                    self._changed.wait_for(self._has_to_write, max(0.0, ping_at - time.monotonic()))
                    now = time.monotonic()
                    if now >= ping_at:
                        ping_at = now + PING_INTERVAL_S
                        self._ping()
                    self._shakes = self._is_sent = False
                    chunk = self._out.take(SENT_TOGETHER_BYTES) if self._is_open else b""
                with self._tls_lock:
                    if not self._tls.is_open:
                        self._tls.shake_hands()
                    if chunk:
                        self._tls.write(chunk)
                    encrypted = self._tls.outgoing()
                if encrypted:
                    self._link.send(encrypted)
        except (ChannelClosed, OSError, ValueError) as error:
            self._end(str(error))

    def _watch(self) -> None:
        """End a silent connection. The other two threads may be blocked in its link."""
        while (left := self._received_at + SILENCE_LIMIT_S - time.monotonic()) > 0:
            until = time.monotonic() + left
            if self._ended.wait(left):
                return
            if time.monotonic() > until + STOPPED_S:
                self._received_at = time.monotonic()
        self._end(f"no answer for {SILENCE_LIMIT_S:g} s")

    def _ping(self) -> None:
        self._unanswered += 1
        self._out.put(frames.frame(frames.PING))
        self._changed.notify_all()

    def _has_to_write(self) -> bool:
        return self._is_over or self._shakes or bool(self._is_open and self._out)

    def _read(self) -> None:
        """Pass on what comes to the channels."""
        reader, buffer, why = Frames(), memoryview(bytearray(BUFFER_BYTES)), "it ended"
        try:
            while encrypted := self._link.receive():
                self._received_at = time.monotonic()
                for plain in self._decrypted(encrypted, buffer):
                    for kind, stream, data in reader.feed(plain):
                        self._handle(kind, stream, data)
        except (OSError, ValueError, BadFrame) as error:
            why = str(error)
        self._end(why)

    def _decrypted(self, encrypted: bytes, buffer: memoryview) -> list[bytes]:
        plain = []
        with self._tls_lock:
            self._tls.feed(encrypted)
            was_open, is_open = self._tls.is_open, self._tls.shake_hands()
            while is_open and (size := self._tls.read_into(buffer)):
                plain.append(bytes(buffer[:size]))
        if not was_open:
            with self._changed:
                self._is_open, self._shakes = is_open, True
                self._changed.notify_all()
        return plain

    def _handle(self, kind: bytes, stream: int, data: bytes) -> None:
        """Act on one frame. Raises BadFrame."""
        if kind in (frames.DATA, frames.TAKEN, frames.END):
            with self._changed:
                channel = self._streams.get(stream)
                if kind == frames.END:
                    self._streams.pop(stream, None)
            if channel is None:
                return  # it was closed meanwhile
            if kind == frames.DATA:
                channel.take(data)
            elif kind == frames.TAKEN:
                channel.widen(frames.read_count(data))
            else:
                channel.end(*frames.read_end(data))
        elif kind == frames.NOTICE:
            self._notice(data.decode("utf-8", "replace"))
        else:
            self._note(kind, data)

    def _note(self, kind: bytes, data: bytes) -> None:
        """Note the state of the switchboard. Raises BadFrame."""
        with self._changed:
            if kind == frames.WELCOME:
                self._is_welcome = True
                names = frames.read_record(data).get("nodes")
                self._nodes = {str(name) for name in names} if isinstance(names, list) else set()
            elif kind == frames.PONG:
                self._unanswered -= 1
            elif kind == frames.REFUSED:
                self._refusal = data.decode("utf-8", "replace")
            elif kind == frames.NODE:
                found = frames.read_record(data)
                name = str(found.get("name"))
                if found.get("is_here"):
                    self._nodes.add(name)
                else:
                    self._nodes.discard(name)
            for wanted, event in self._arrivals:
                if not self._nodes.isdisjoint(wanted):
                    event.set()
            self._changed.notify_all()
