"""The streams of one ``pods/exec`` as a channel: a websocket whose messages begin with the number of a stream."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from mesh.backends.pods import frames
from mesh.backends.pods.frames import BadFrame, Frames
from mesh.backends.pods.objects import Status, decoded
from mesh.core.errors import ChannelClosed
from mesh.core.interfaces import Farewell

STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)  # the streams of v4.channel.k8s.io and v5
SEND_BYTES = 32 << 10  # of one message
READ_BYTES = 256 << 10
RECEIVED_BYTES = 128 << 10  # of one call, at most
END_STREAM = 255  # the stream of v5.channel.k8s.io whose messages name a stream that has ended
STDERR_BYTES = 65536  # that are kept
STATUS_TIMEOUT_S = 2.0  # for the status, once the channel has ended
ALREADY_THERE = 0.0  # a deadline that is over: take what has arrived, and do not wait
CLOSE_TIMEOUT_S = 0.2  # for the good-bye to be sent
NO_PROGRAM_STATUS = 127  # as a shell reports a program that is not there


class ExecChannel:
    """The standard streams of a program in a container. Its socket is used by one thread at a time."""

    def __init__(self, connection: socket.socket, protocol: str = "") -> None:
        """connection: a websocket after its handshake. protocol: one of ``api.PROTOCOLS``"""
        self._ends_streams = protocol.startswith("v5.")
        self.on_stderr: Callable[[bytes], object] | None = None  # gets all of STDERR, of which little is kept
        self._socket = connection
        self._socket.setblocking(False)
        # An SSL object takes one call at a time, and a blocked read must not hold up a write: no call blocks.
        self._io = threading.Lock()
        self._sending = threading.Lock()  # a message is not mixed with another one
        self._reading = threading.Lock()
        self._frames = Frames()
        self._ready = bytearray()  # of STDOUT, not yet received
        self._stderr = bytearray()
        self._status: bytes = b""
        self._owed = b""  # the answer to a ping, which the next message follows
        self._is_over = False

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        for place in range(0, len(view), SEND_BYTES):
            self.send_to(STDIN, bytes(view[place : place + SEND_BYTES]))

    def send_to(self, stream: int, data: bytes) -> None:
        """Send one message of a stream. Raises ChannelClosed."""
        message = frames.frame(frames.BINARY, bytes((stream,)) + data)
        with self._sending:
            owed, self._owed = self._owed, b""
            self._write(owed + message)

    def end_input(self) -> None:
        """End the program's standard input, if the sub-protocol can (from v5 on). Raises ChannelClosed."""
        if self._ends_streams:
            self.send_to(END_STREAM, bytes((STDIN,)))

    def receive(self) -> bytes:
        with self._reading:
            while not self._ready:
                if self._is_over or not self._read():
                    return b""
            # TLS brings 16 KB at once at most; the caller's work is by the piece.
            while len(self._ready) < RECEIVED_BYTES and not self._is_over and self._read(ALREADY_THERE):
                pass
            data = bytes(memoryview(self._ready)[:RECEIVED_BYTES])
            del self._ready[:RECEIVED_BYTES]
            return data

    def farewell(self) -> Farewell:
        deadline = time.monotonic() + STATUS_TIMEOUT_S
        with self._reading:
            while not self._status and not self._is_over and time.monotonic() < deadline:
                if not self._read(deadline):
                    break
        return Farewell(status=status_of(self._status), stderr=bytes(self._stderr) or _words_of(self._status))

    def close(self, *, leave: bool = False) -> None:
        if self._is_over and self._socket.fileno() < 0:
            return
        with contextlib.suppress(ChannelClosed):
            if self._sending.acquire(timeout=CLOSE_TIMEOUT_S):
                try:
                    self._write(frames.frame(frames.CLOSE, b"\x03\xe8"), time.monotonic() + CLOSE_TIMEOUT_S)
                finally:
                    self._sending.release()
        self.cut()

    def cut(self) -> None:
        """End the connection without a good-bye; a blocked call returns."""
        self._is_over = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of SSLSocket would forget its keys

    def dispose(self) -> None:
        """Close the descriptor, once no thread uses the channel."""
        self.cut()
        with self._io, contextlib.suppress(OSError):
            self._socket.close()

    def _read(self, deadline: float | None = None) -> bool:
        """Take what arrives; return False once the other end is gone, or after the deadline."""
        while True:
            try:
                with self._io:
                    data = self._socket.recv(READ_BYTES)
                break
            except (ssl.SSLWantReadError, BlockingIOError):
                is_ready = self._wait(select.POLLIN, deadline)
            except ssl.SSLWantWriteError:
                is_ready = self._wait(select.POLLOUT, deadline)
            except (OSError, ValueError):
                is_ready = False
            if not is_ready:
                self._is_over = self._is_over or deadline is None
                return False
        try:
            for opcode, payload in self._frames.feed(data):
                self._take(opcode, payload)
        except BadFrame:
            data = b""
        if not data:
            self._is_over = True
        return bool(data)

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == frames.CLOSE:
            self._is_over = True
        elif opcode == frames.PING:
            self._answer(frames.frame(frames.PONG, payload))
        elif opcode in (frames.BINARY, frames.TEXT) and payload:
            stream = payload[0]
            if stream == STDOUT:
                self._ready += memoryview(payload)[1:]
            elif stream == STDERR:
                if self.on_stderr is not None:
                    self.on_stderr(payload[1:])
                self._stderr += payload[1:]
                del self._stderr[:-STDERR_BYTES]
            elif stream == STATUS:
                self._status += payload[1:]

    def _answer(self, pong: bytes) -> None:
        """Send the answer to a ping; leave it to the next message where that would wait, as a reader must not."""
        self._owed = pong
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._wait(select.POLLOUT, 0.0):
                owed, self._owed = self._owed, b""
                with contextlib.suppress(ChannelClosed):
                    self._write(owed)
        finally:
            self._sending.release()

    def _write(self, data: bytes, deadline: float | None = None) -> None:
        """Write all of data. Raises ChannelClosed."""
        view = memoryview(data)
        while view:
            if self._is_over:
                raise ChannelClosed("the connection has ended")
            try:
                with self._io:
                    view = view[self._socket.send(view) :]
                continue
            except (ssl.SSLWantWriteError, BlockingIOError):
                is_ready = self._wait(select.POLLOUT, deadline)
            except ssl.SSLWantReadError:
                is_ready = self._wait(select.POLLIN, deadline)
            except (OSError, ValueError) as error:
                raise ChannelClosed(str(error)) from error
            if not is_ready:
                raise ChannelClosed("the other end does not read")

    def _wait(self, event: int, deadline: float | None) -> bool:
        """Wait until the socket is ready; return False after the deadline. No data of SSL waits in memory then."""
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except (OSError, ValueError):
            return False
        limit = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poll.poll(limit))


def status_of(text: bytes) -> int | None:
    """Return the exit status in a Status of Kubernetes; None if there is none.

    >>> status_of(b'{"status": "Success"}'), status_of(b"")
    (0, None)
    """
    status = _status(text)
    if status.status == "Success":
        return 0
    for cause in (status.details.causes or ()) if status.details else ():
        if cause.reason == "ExitCode" and cause.message.isdecimal():
            return int(cause.message)
    return NO_PROGRAM_STATUS if "executable file not found" in status.message else None


def _words_of(text: bytes) -> bytes:
    """Return why an exec was not started, without the command line in it."""
    if status_of(text) is not None:  # the words hold the command line
        return b""
    return _status(text).message.partition("error executing command")[0].strip(" :").encode()


def _status(text: bytes) -> Status:
    try:
        return decoded(text or b"{}", Status)
    except ValueError:
        return Status()
