"""Streams that share one connection, at either of its ends. The client has the same module at its own end.

Every stream has a window in each direction, so that a slow one holds up no other, and what waits here is bounded.
Everything is called from one thread, and nothing blocks.
"""

from __future__ import annotations

import os
import select
import struct
import time

from mesh.agent.base.directories import boot_id
from mesh.agent.base.errors import why
from mesh.agent.base.light import deque, partial, socket
from mesh.protocol.forwarding import (
    OF_STREAMS,
    SILENCE_LIMIT_S,
    STREAM_PIECE_BYTES,
    STREAM_WINDOW_BYTES,
    Alive,
    Break,
    Carry,
    Connect,
    Finish,
    Took,
)
from mesh.protocol.frames import Decoder, FrameError
from mesh.protocol.kinds import unfiltered
from mesh.protocol.messages import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket as StandardSocket

    from mesh.agent.base.light import Socket
    from mesh.agent.loop import Loop
    from mesh.protocol.kinds import Clean
    from mesh.protocol.messages import Message

READ_BYTES = 1 << 17
WAITING_BYTES = 1 << 20  # for the connection: with so many, no socket is read
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER of socket(7): the other program sees that the stream was cut


def loopback_name() -> str:
    """Return a name that processes share if they have the same loopback; "" outside of Linux."""
    boot = boot_id()
    try:
        return boot and f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


class Stream:
    """The end of a stream: the socket of a program here."""

    def __init__(self, own: Socket | StandardSocket, port: int) -> None:
        """own: connected, or about to be; it does not block. port: at the other end; 0: the stream was opened there"""
        self.socket, self.port = own, port
        self.is_connected = True
        self.other: Callable[[], Socket | None] = lambda: None  # returns the next socket to try; None: there is none
        self.window = STREAM_WINDOW_BYTES  # bytes that the other end takes now
        self.waiting: deque[bytes] = deque()  # for the socket
        self.sends = self.receives = True  # the program may send more; the other end may
        self.is_answered = False  # the other end has taken or sent bytes


class Connection:
    """An end of the connection, with its streams."""

    def __init__(self, loop: Loop, reads: int, writes: int, clean: Clean = unfiltered) -> None:
        """reads, writes: descriptors, which may be the same, and are closed by the caller

        clean: the filter for texts of the other end
        """
        self._loop, self._reads, self._writes, self._clean = loop, reads, writes, clean
        self._decoder = Decoder(OF_STREAMS.sizes)
        self._out: deque[bytes] = deque()
        self._size = 0  # bytes of ``_out``
        self._is_paused = False  # no socket is read
        self.streams: dict[int, Stream] = {}
        self.is_over = False
        self.is_answering = False  # each Alive gets one back
        # Called with the number and the port of a stream that the other end opens.
        self.on_connect: Callable[[int, int], None] = lambda number, port: self.refuse(number, "not here")
        self.on_other: Callable[[Message], None] = lambda message: None  # called with all other messages
        # Called with a stream that the other end has broken before its first byte, and the reason.
        self.on_refusal: Callable[[Stream, str], None] = lambda stream, reason: None
        self.on_end: Callable[[], None] = lambda: None  # called once, after all streams were broken
        for descriptor in (reads, writes):
            os.set_blocking(descriptor, False)
        self._reset_limit()
        self._watch_connection()

    # ---- streams

    def add(self, number: int, own: Socket | StandardSocket, port: int) -> None:
        """Carry the bytes of a socket as a stream of this number. port: as in Stream"""
        stream = self.streams[number] = Stream(own, port)
        if self.is_over:  # the program must not wait for an answer
            self._cut(number)
        else:
            self._watch(number, stream)

    def await_connect(self, number: int, own: Socket, other: Callable[[], Socket | None]) -> None:
        """Carry the bytes of a socket as a stream, once it is connected. other: returns the next one to try"""
        stream = self.streams[number] = Stream(own, 0)
        stream.is_connected, stream.other = False, other
        self._watch(number, stream)

    def connect(self, number: int, own: Socket | StandardSocket, port: int) -> None:
        """Open a stream from a connected socket to a port at the other end."""
        self.send(Connect(stream=number, port=port))
        self.add(number, own, port)

    def refuse(self, number: int, reason: str) -> None:
        """Report that a stream cannot be opened here."""
        self.send(Break(stream=number, why=reason))

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message in its turn."""
        if self.is_over:
            return
        frame = encode(message, data)
        self._out.append(frame)
        self._size += len(frame)
        self._flush()

    def close(self) -> None:
        """Break all streams, and leave the connection alone. May be called twice."""
        if self.is_over:
            return
        self.is_over = True
        self._loop.cancel(self)
        for descriptor in {self._reads, self._writes}:
            self._loop.unwatch(descriptor)
        for number in list(self.streams):
            self._cut(number)
        self.on_end()

    # ---- the connection

    def _reset_limit(self) -> None:
        """Count the limit of silence from now on."""
        self._loop.at(self, time.monotonic() + SILENCE_LIMIT_S, self.close)

    def _watch_connection(self) -> None:
        if self.is_over:
            return
        out = select.POLLOUT if self._out else 0
        if self._reads == self._writes:
            self._loop.watch(self._reads, select.POLLIN | out, self._serve_connection)
            return
        self._loop.watch(self._reads, select.POLLIN, self._serve_connection)
        if out:
            self._loop.watch(self._writes, out, self._serve_connection)
        else:
            self._loop.unwatch(self._writes)

    def _serve_connection(self, events: int) -> None:
        if events & select.POLLOUT:
            self._flush()
        if events & ~select.POLLOUT and not self.is_over:
            self._receive()

    def _flush(self) -> None:
        """Write what the connection takes now, and read sockets again once little waits."""
        try:
            while self._out:
                count = os.write(self._writes, self._out[0])
                self._size -= count
                rest = self._out.popleft()[count:]
                if rest:
                    self._out.appendleft(rest)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._watch_connection()
        is_paused = self._size >= (WAITING_BYTES // 2 if self._is_paused else WAITING_BYTES)
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            for number, stream in self.streams.items():
                self._watch(number, stream)

    def _receive(self) -> None:
        try:
            data = os.read(self._reads, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for header, piece in self._decoder.feed(data):
                self._take(OF_STREAMS.read(header, self._clean), piece)
        except FrameError:
            data = b""
        if data:
            self._reset_limit()
        else:
            self.close()

    def _take(self, message: Message, data: bytes) -> None:
        if self.is_over:  # a message before has ended it
            return
        if isinstance(message, Alive):
            if self.is_answering:
                self.send(Alive())
            return
        if isinstance(message, Connect):
            self.on_connect(message.stream, message.port)
            return
        if not isinstance(message, (Carry, Took, Finish, Break)):
            self.on_other(message)
            return
        number = message.stream
        stream = self.streams.get(number)
        if stream is None:  # it was broken here meanwhile
            return
        if isinstance(message, Carry):
            if not data or not stream.receives or sum(map(len, stream.waiting)) + len(data) > STREAM_WINDOW_BYTES:
                raise FrameError("carry: nothing, or more than the window")
            stream.is_answered = True
            stream.waiting.append(data)
            self._write(number, stream)
        elif isinstance(message, Took):
            stream.is_answered = True
            stream.window = min(STREAM_WINDOW_BYTES, stream.window + message.bytes)
            self._watch(number, stream)
        elif isinstance(message, Finish):
            stream.receives = False
            self._write(number, stream)
        else:
            self._cut(number)
            if not stream.is_answered:
                self.on_refusal(stream, message.why)

    # ---- a socket

    def _watch(self, number: int, stream: Stream) -> None:
        """Wait for what the stream can do now. Nothing else is waited for: a hang-up would be reported for ever."""
        if not stream.is_connected:
            wanted = select.POLLOUT
        else:
            reads = stream.sends and stream.window and not self._is_paused
            wanted = (select.POLLIN if reads else 0) | (select.POLLOUT if stream.waiting else 0)
        if wanted:
            self._loop.watch(stream.socket.fileno(), wanted, partial(self._serve, number, stream))
        else:
            self._loop.unwatch(stream.socket.fileno())

    def _serve(self, number: int, stream: Stream, events: int) -> None:
        if not stream.is_connected:
            self._connected(number, stream)
            return
        if stream.waiting and events & ~select.POLLIN:
            self._write(number, stream)
        is_here = self.streams.get(number) is stream
        if is_here and stream.sends and stream.window and not self._is_paused and events & ~select.POLLOUT:
            self._read(number, stream)

    def _connected(self, number: int, stream: Stream) -> None:
        error = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            other = stream.other()
            if other is None:
                self._break(number, os.strerror(error))
                return
            self._loop.unwatch(stream.socket.fileno())
            stream.socket.close()
            stream.socket = other
            self._watch(number, stream)
            return
        stream.is_connected = True
        self._write(number, stream)

    def _read(self, number: int, stream: Stream) -> None:
        try:
            data = stream.socket.recv(min(STREAM_PIECE_BYTES, stream.window))
        except BlockingIOError:
            return
        except OSError as error:
            self._break(number, why(error))
            return
        if data:
            stream.window -= len(data)
            self.send(Carry(stream=number), data)
        else:
            stream.sends = False
            self.send(Finish(stream=number))
        if self.streams.get(number) is stream:
            self._settle(number, stream)

    def _write(self, number: int, stream: Stream) -> None:
        """Write what the socket takes now; end its direction behind the last byte of the other end."""
        if not stream.is_connected:
            return
        taken = 0
        try:
            while stream.waiting:
                count = stream.socket.send(stream.waiting[0])
                taken += count
                rest = stream.waiting.popleft()[count:]
                if rest:
                    stream.waiting.appendleft(rest)
            if not stream.receives:
                stream.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            self._break(number, why(error))
            return
        if taken:
            self.send(Took(stream=number, bytes=taken))
        if self.streams.get(number) is stream:
            self._settle(number, stream)

    def _settle(self, number: int, stream: Stream) -> None:
        """Close a stream whose two directions have ended; else wait on."""
        if stream.sends or stream.receives or stream.waiting:
            self._watch(number, stream)
        else:
            self._loop.unwatch(stream.socket.fileno())
            del self.streams[number]
            stream.socket.close()

    def _break(self, number: int, reason: str) -> None:
        self._cut(number)
        self.send(Break(stream=number, why=reason))

    def _cut(self, number: int) -> None:
        """Close a socket so that its program does not take the end for that of the data."""
        stream = self.streams.pop(number)
        self._loop.unwatch(stream.socket.fileno())
        try:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        except OSError:  # it has ended by itself
            pass
        stream.socket.close()
