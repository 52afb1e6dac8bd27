"""Links between two processes, or two nodes of one process: frames in order, in both directions."""

from __future__ import annotations

import queue
import select
import socket
import ssl
import struct
import threading
from typing import Tuple

from mesh.program.runtime.errors import LinkRefused
from mesh.program.runtime.frames import Frame, Memory, read_frame, small_frame

CHUNK_BYTES = 1 << 20  # of one call to the system
AHEAD_BYTES = 16384  # that are received together, if a frame is small

try:  # Python 3.8 has no Protocol that every linter reads
    from typing import Protocol
except ImportError:  # pragma: no cover
    Protocol = object  # type: ignore[assignment]


class Link(Protocol):
    """Frames in order, in both directions."""

    def send(self, frame: Frame) -> None:
        """Send a frame; several threads may. Raises OSError once the link has ended."""

    def receive(self) -> Frame:
        """Wait for a frame. Raises EOFError at the end, and LinkRefused if the other end breaks the protocol."""

    def close(self) -> None:
        """End the link on both ends; receive returns there and here."""

    def release(self) -> None:
        """Free what the link holds. The thread that receives calls it, at its end."""

    def leave(self) -> None:
        """Free what the link holds in a process that was forked, without any effect on the link of the parent."""


class MemoryLink:
    """A link between two nodes of one process. Buffers are copied, as two processes share none."""

    def __init__(self, inbox: "queue.SimpleQueue[Frame | None]", outbox: "queue.SimpleQueue[Frame | None]") -> None:
        self._inbox, self._outbox = inbox, outbox
        self._is_closed = False

    def send(self, frame: Frame) -> None:
        if self._is_closed:
            raise OSError("the link is closed")
        frame.buffers = [bytearray(memoryview(one).cast("B")) for one in frame.buffers]
        self._outbox.put(frame)

    def receive(self) -> Frame:
        frame = self._inbox.get()
        if frame is None:
            self._is_closed = True
            self._inbox.put(None)  # for the next call
            raise EOFError
        return frame

    def close(self) -> None:
        self._is_closed = True
        self._inbox.put(None)
        self._outbox.put(None)

    def release(self) -> None:
        self.close()

    def leave(self) -> None:
        self._is_closed = True


def memory_links() -> Tuple[MemoryLink, MemoryLink]:
    """Return the two ends of a link within this process."""
    one: "queue.SimpleQueue[Frame | None]" = queue.SimpleQueue()
    other: "queue.SimpleQueue[Frame | None]" = queue.SimpleQueue()
    return MemoryLink(one, other), MemoryLink(other, one)


class SocketLink:
    """A link over a connected socket: a Unix socket within a host, TLS between hosts."""

    def __init__(self, stream: "socket.socket | TlsStream") -> None:
        self._stream = stream
        self._sending = threading.Lock()
        self._memory = memoryview(bytearray(AHEAD_BYTES))
        self._ahead = self._memory[:0]  # received, and not read

    def send(self, frame: Frame) -> None:
        with self._sending:
            for piece in frame.pieces():
                self._stream.sendall(piece)

    def receive(self) -> Frame:
        try:
            if not self._ahead:
                self._ahead = self._memory[: self._received(self._memory)]
            found = small_frame(self._ahead)
            if found is None:
                return read_frame(self._fill)
            frame, size = found
            self._ahead = self._ahead[size:]
            return frame
        except (OSError, EOFError) as error:
            if isinstance(error, LinkRefused):
                raise
            raise EOFError(str(error)) from error

    def _fill(self, view: memoryview) -> None:
        """Fill a memory: from what has come already, and large parts straight from the socket."""
        while view.nbytes:
            if not self._ahead and view.nbytes < AHEAD_BYTES:
                self._ahead = self._memory[: self._received(self._memory)]
            if self._ahead:
                count = min(view.nbytes, self._ahead.nbytes)
                view[:count] = self._ahead[:count]
                self._ahead = self._ahead[count:]
            else:
                count = self._received(view[:CHUNK_BYTES])
            view = view[count:]

    def _received(self, view: memoryview) -> int:
        count = self._stream.recv_into(view)
        if not count:
            raise EOFError("closed by the other end")
        return count

    def close(self) -> None:
        try:
            self._stream.shutdown(socket.SHUT_RDWR)  # wakes the thread that receives, which closes the socket
        except OSError:
            pass

    def release(self) -> None:
        self.close()
        self._stream.close()

    def leave(self) -> None:
        self._sending = threading.Lock()  # a thread of the parent may hold it
        self._stream.close()  # without a shutdown, which would end the connection of the parent


class TlsStream:
    """A socket with TLS that one thread may read while another one writes, which Python's own class forbids."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        tls.setblocking(False)
        self._tls, self._lock = tls, threading.Lock()
        self._may_have_more = True  # of a record of TLS; it is read whole if there is room for it
        self._polls: "dict[int, select.poll]" = {}  # by event; made once, as every small message waits

    def sendall(self, data: Memory) -> None:
        view = memoryview(data).cast("B")
        while view.nbytes:
            try:
                with self._lock:
                    count = self._tls.send(view[:CHUNK_BYTES])
                view = view[count:]
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)

    def recv_into(self, view: memoryview) -> int:
        if view.nbytes <= AHEAD_BYTES and not self._may_have_more:  # a small message has not come yet, as a rule
            self._wait(select.POLLIN)
        while True:
            try:
                with self._lock:
                    count = self._tls.recv_into(view)
                self._may_have_more = count == view.nbytes
                return count
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLEOFError:
                return 0

    def _wait(self, event: int) -> None:
        number = self._tls.fileno()
        if number < 0:
            raise OSError("the link is closed")
        poll = self._polls.get(event)
        if poll is None:
            poll = self._polls[event] = select.poll()
            poll.register(number, event)
        poll.poll()

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._tls, how)  # of the TCP connection: the closing message of TLS could block

    def close(self) -> None:
        self._tls.close()


def peer_uid(connection: socket.socket) -> int:
    """Return the Unix user at the other end of a Unix socket; -1 where the system does not report it."""
    if not hasattr(socket, "SO_PEERCRED"):
        return -1
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def tls_context(key_file: str, *, is_server: bool) -> ssl.SSLContext:
    """Return a context in which both ends show the run's certificate, and no other one is accepted.

    key_file: PEM with the run's private key and its certificate
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(key_file)
    context.load_verify_locations(key_file)
    return context


def tune(connection: socket.socket) -> None:
    """Have a TCP connection send small frames at once, and notice a peer that is gone."""
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
