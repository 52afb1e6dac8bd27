"""The program on each node of an allocation: it connects to the switchboard, and starts agents for clients.

It connects again, so that a switchboard that is started again finds its nodes. Without an agent it gives up after
GIVE_UP_S: its switchboard was killed. It ends no agent, but when it is stopped itself: then each one gets SIGTERM, and
it stays until they have gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from mesh.agent.link.tls import tls_context
from mesh.agent.switchboard import frames
from mesh.agent.switchboard.children import Child, Stream, failed_start
from mesh.agent.switchboard.connection import READ_BYTES, Connection, ConnectionEnded
from mesh.agent.switchboard.frames import BadFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping, Sequence, Tuple

    from mesh.agent.switchboard.frames import Fields

    Address = Tuple[str, int]

PAUSES_S = (0.2, 0.4, 0.8, 1.6, 2.0)  # before it connects again
CONNECT_TIMEOUT_S = 5.0
GREETING_TIMEOUT_S = 10.0  # for the switchboard to answer a connection
BUSY_INTERVAL_S = 2.0  # between two reports
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GIVE_UP_S = 600.0  # without a switchboard and without an agent, after which it ends
LAST_FRAMES_S = 2.0  # for them to be sent at the end


class Node:
    """A node of the switchboard, in one thread."""

    def __init__(self, addresses: Sequence[Address], name: str, credentials: str) -> None:
        """addresses: of the switchboard, tried in this order; credentials: the allocation's key, as PEM"""
        self._addresses, self._name = addresses, name
        self._context = tls_context(credentials, server=False)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._board: Connection | None = None
        self._is_welcome = False
        self._dial_at, self._tries = 0.0, 0
        self._alone_since = time.monotonic()  # has an answer of the switchboard no more, or not yet
        self._report_at = 0.0
        self._streams: dict[int, Stream] = {}
        self._children: dict[int, Child] = {}  # by process id; some without a stream
        self._is_ending = False
        self.notice = ""  # why this node is being ended, by the holder
        self.on_notice: Callable[[str], object] = lambda text: None  # called with each text
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Serve clients until SIGTERM, SIGINT or the holder's order, and until all agents have gone then."""
        self._prepare()
        until = float("inf")
        while time.monotonic() < until:
            self._turn()
            if self._is_forsaken():
                self._stop()
            if self._is_ending and not self._children and until == float("inf"):
                until = time.monotonic() + LAST_FRAMES_S
            if until < float("inf") and (self._board is None or not (self._streams or self._board.wants_to_write)):
                break
        if self._board is not None:
            self._board.finish(LAST_FRAMES_S)
        for stream in self._streams.values():
            stream.child.forget()

    def begin(self, names: Sequence[str], env: Mapping[str, str], words: Sequence[str]) -> None:
        """Start the program that begins this node's part of a run. It counts as an agent.

        names: of all nodes in their order; env: for the program, beside the number and the name of this node
        """
        if self._is_ending or self._name not in names:
            return
        own = {"MESH_POD_NAME": self._name, "MESH_POD_ADDRESS": self._name}
        own["JOB_COMPLETION_INDEX"] = str(list(names).index(self._name))
        try:
            child = Child(["env", *(f"{key}={value}" for key, value in {**env, **own}.items()), *words])
        except OSError:  # the others do not begin without it
            return
        self._keep(child)
        self._report_at = 0.0

    def _prepare(self) -> None:
        for descriptor in (self._woken, self._wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGHUP, lambda number, frame: None)  # agents would inherit that it is ignored
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: self._stop())
        try:
            import ctypes

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        except (ImportError, AttributeError, OSError):  # orphans go to init then
            pass

    def _is_forsaken(self) -> bool:
        is_alone = not self._children and (self._board is None or not self._is_welcome)
        return is_alone and time.monotonic() > self._alone_since + GIVE_UP_S

    def _stop(self) -> None:
        """Send SIGTERM to every agent. Called by the handler of a signal as well."""
        if not self._is_ending:
            self._is_ending, self._report_at = True, 0.0
            for child in list(self._children.values()):
                child.terminate()

    def _keep(self, child: Child) -> None:
        """Have a child among those that are stopped. A signal that came while it was started did not find it there."""
        self._children[child.process.pid] = child
        if self._is_ending:
            child.terminate()

    # ---- one turn

    def _turn(self) -> None:
        """Wait for what comes next, and act on it."""
        now = time.monotonic()
        if self._board is None and now >= self._dial_at:
            self._dial()
        if self._board is not None and self._is_welcome and now >= self._report_at:
            self._report_at = now + BUSY_INTERVAL_S
            self._send(frames.record(frames.BUSY, is_busy=bool(self._children), is_ending=self._is_ending))
        self._flush()
        poll = select.poll()
        streams, pipes = self._watch(poll)
        ready = dict(poll.poll(self._wait_s() * 1000 + 0.5))
        if self._woken in ready:
            self._drain()
        self._reap()
        for descriptor, child in pipes.items():
            if descriptor in ready:
                child.read_stderr()
        for descriptor, stream in streams.items():
            if descriptor in ready:
                self._serve(stream, ready[descriptor])
        if self._board is not None and self._board.socket.fileno() in ready:
            self._receive(self._board)
        self._end_streams()

    def _watch(self, poll: select.poll) -> tuple[dict[int, Stream], dict[int, Child]]:
        poll.register(self._woken, select.POLLIN)
        if self._board is not None:
            wanted = select.POLLIN | (select.POLLOUT if self._board.wants_to_write else 0)
            poll.register(self._board.socket.fileno(), wanted)
        streams, pipes = {}, {}
        for stream in self._streams.values():
            reads = stream.credit.left and not stream.is_read and not stream.is_closing
            wanted = (select.POLLIN if reads else 0) | (select.POLLOUT if stream.waiting else 0)
            if wanted:  # a socket that has ended is always ready
                poll.register(stream.child.socket.fileno(), wanted)
                streams[stream.child.socket.fileno()] = stream
        for child in self._children.values():
            if child.stderr >= 0:
                poll.register(child.stderr, select.POLLIN)
                pipes[child.stderr] = child
        return streams, pipes

    def _wait_s(self) -> float:
        """Return the seconds until something is due."""
        until = min([stream.until for stream in self._streams.values()], default=float("inf"))
        if self._board is None:
            until = min(until, self._dial_at)
        elif self._is_welcome:
            until = min(until, self._report_at)
        else:
            until = min(until, self._board.began + GREETING_TIMEOUT_S)
        return max(0.0, min(until - time.monotonic(), BUSY_INTERVAL_S))

    def _drain(self) -> None:
        try:
            while os.read(self._woken, 512):
                pass
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        """Collect every child that has ended, orphans included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self._children.pop(pid, None)
            if child is None:
                continue
            child.end(status)
            if not any(stream.child is child for stream in self._streams.values()):
                child.forget()
            if not self._children:
                self._report_at = 0.0

    # ---- streams

    def _serve(self, stream: Stream, events: int) -> None:
        if events & select.POLLOUT:
            self._write(stream)
        if events & ~select.POLLOUT and stream.credit.left and not stream.is_read and not stream.is_closing:
            data = stream.read()
            if data:
                self._send(frames.frame(frames.DATA, stream.number, data), stream.number)

    def _write(self, stream: Stream) -> None:
        taken = stream.write()
        if taken and not stream.is_closing:
            self._send(frames.frame(frames.TAKEN, stream.number, frames.COUNT.pack(taken)))

    def _end_streams(self) -> None:
        """End each stream whose program has ended, or whose client has."""
        now = time.monotonic()
        for stream in list(self._streams.values()):
            child = stream.child
            if stream.is_closing and (not stream.waiting or now >= stream.until):
                self._close(stream)
            elif stream.is_read and (child.status is not None or now >= stream.until):
                child.read_stderr()
                end = frames.end_frame(stream.number, child.status, "", child.stderr_tail)
                self._send(end, stream.number)
                self._close(stream)

    def _close(self, stream: Stream) -> None:
        del self._streams[stream.number]
        stream.close()
        if stream.child.status is not None:
            stream.child.forget()

    # ---- the switchboard

    def _dial(self) -> None:
        self._dial_at = time.monotonic() + PAUSES_S[min(self._tries, len(PAUSES_S) - 1)]
        address = self._addresses[self._tries % len(self._addresses)]
        self._tries += 1
        self._is_welcome = False
        try:
            own = socket.create_connection(address, CONNECT_TIMEOUT_S)
        except OSError:
            return
        try:
            self._board = Connection(own, self._context, server=False)
        except OSError:
            own.close()
            return
        version, role = frames.SWITCHBOARD_VERSION, frames.NODE_ROLE
        self._send(frames.record(frames.HELLO, version=version, role=role, name=self._name))

    def _send(self, frame: bytes, stream: int = 0) -> None:
        if self._board is not None:
            self._board.out.put(frame, stream)

    def _flush(self) -> None:
        try:
            if self._board is not None:
                if not self._is_welcome and time.monotonic() > self._board.began + GREETING_TIMEOUT_S:
                    raise ConnectionEnded("no answer")
                self._board.flush()
        except ConnectionEnded:
            self._lose_board()

    def _receive(self, board: Connection) -> None:
        try:
            for kind, number, data in board.receive(self._buffer):
                self._handle(kind, number, data)
        except (ConnectionEnded, BadFrame):
            self._lose_board()

    def _lose_board(self) -> None:
        """Close the streams: their agents wait for their clients by their own rules."""
        if self._board is not None:
            self._board.close()
        self._board = None
        for stream in list(self._streams.values()):
            self._close(stream)
        if self._is_welcome:
            self._tries, self._dial_at = 0, time.monotonic() + PAUSES_S[0]
            self._is_welcome, self._alone_since = False, time.monotonic()

    def _handle(self, kind: bytes, number: int, data: bytes) -> None:
        """Act on one frame. Raises BadFrame."""
        stream = self._streams.get(number)
        if kind == frames.WELCOME:
            self._is_welcome, self._tries, self._report_at = True, 0, 0.0
        elif kind == frames.REFUSED:
            raise ConnectionEnded(data.decode("utf-8", "replace"))
        elif kind == frames.OPEN:
            self._open(number, frames.read_record(data))
        elif kind == frames.NOTICE:
            self.on_notice(data.decode("utf-8", "replace"))
        elif kind == frames.STOP:
            self.notice = data.decode("utf-8", "replace")
            self._stop()
        elif stream is None or stream.is_closing:
            return  # it has ended meanwhile
        elif kind == frames.DATA:
            stream.waiting += data
            self._write(stream)
        elif kind == frames.TAKEN:
            stream.credit.widen(frames.read_count(data))
        elif kind == frames.END:
            stream.close_later()

    def _open(self, number: int, request: Fields) -> None:
        argv, window = request.get("argv"), request.get("window")
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
            raise BadFrame("a stream without a command")
        if type(window) is not int or window <= 0:
            raise BadFrame("a stream without a window")
        if self._is_ending:
            why = f"{self._name} is being ended" + f": {self.notice}" * bool(self.notice)
            self._send(frames.end_frame(number, None, why), number)
            return
        try:
            child = Child(argv)
        except OSError as error:
            status, why = failed_start(error, argv[0])
            self._send(frames.end_frame(number, status, why, why.encode()), number)
            return
        self._keep(child)
        self._streams[number] = Stream(number, child, window)
