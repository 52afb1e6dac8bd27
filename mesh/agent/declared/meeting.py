"""The meeting of the pods of a job: the first pod passes what each of them sends on to all, round by round.

A round ends once every pod has sent its value. Each pod then gets the values of all. The meeting is over when a pod
leaves it, or sends a failure. Both ends of a connection show the key of the job by TLS.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh.protocol.frames import Header as Value

HANDSHAKE_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60.0  # for the other end to take what is sent
DIAL_INTERVAL_S = 0.5  # between two tries to reach the first pod, whose name may have no address yet
LINE_BYTES = 1 << 24  # of one round: the values of 1,024 pods
READ_BYTES = 1 << 16
IDLE_S, PROBES = 15, 3  # of a silent connection, until the system asks the other end, and how often
FAILED = "failed"  # the field of a message that ends the meeting: the reason


class MeetingOver(Exception):
    """The end of the meeting before its time; the text has the reason."""


class Wire:
    """A TLS connection that one thread reads while others write. OpenSSL must not do both at once."""

    def __init__(self, tls: ssl.SSLSocket) -> None:
        """tls: after the handshake"""
        self._tls, self._lock = tls, threading.Lock()
        keep_alive(tls)

    def send(self, data: bytes) -> None:
        """Send all bytes. Raises OSError."""
        with self._lock:
            self._tls.settimeout(SEND_TIMEOUT_S)
            self._tls.sendall(data)

    def messages(self) -> Iterator[Value]:
        """Yield the messages that come, each a line of JSON, until the end. Raises OSError and ValueError."""
        data = b""
        while True:
            *lines, data = data.split(b"\n")
            for line in lines:
                value = json.loads(line.decode())
                if not isinstance(value, dict):
                    raise ValueError("no object")
                yield value
            more = self._receive()
            if not more or len(data) > LINE_BYTES:
                return
            data += more

    def hang_up(self) -> None:
        """End the connection, so that the thread that reads goes on."""
        with self._lock:
            try:
                self._tls.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Close the connection; only the thread that reads may do so."""
        with self._lock:
            self._tls.close()

    def _receive(self) -> bytes:
        """Wait for bytes, and return all that are here; b"" at the end. Raises OSError."""
        poll = select.poll()
        poll.register(self._tls.fileno(), select.POLLIN)
        while True:
            poll.poll()
            with self._lock:
                self._tls.settimeout(0.0)
                try:
                    data = self._tls.recv(READ_BYTES)
                    while data and self._tls.pending():
                        data += self._tls.recv(READ_BYTES)
                    return data
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    pass


class Host:
    """The end of the meeting in the first pod, which serves all pods in threads."""

    def __init__(self, context: ssl.SSLContext, listener: socket.socket, count: int) -> None:
        """count: how many pods there are"""
        self._context, self._listener, self._count = context, listener, count
        self._lock = threading.Lock()
        self._members: dict[int, Wire] = {}
        self.values: dict[int, Value] = {}  # of this round, so far
        self._has_begun = False  # the first round is over
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to serve."""
        self._begin(self._accept)

    def close(self) -> None:
        """End all connections, and wait until their threads have ended. No other one comes."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        with self._lock:
            self._is_over, members = True, list(self._members.values())
        for wire in members:
            wire.hang_up()
        while self._threads:
            self._threads.pop().join()

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                own, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, own)

    def _serve(self, own: socket.socket) -> None:
        node, why, wire = -1, "its connection has ended", None
        try:
            own.settimeout(HANDSHAKE_TIMEOUT_S)
            wire = Wire(self._context.wrap_socket(own, server_side=True))
            for value in wire.messages():
                if node < 0:
                    node = int(value["node"])
                    with self._lock:
                        self._members[node] = wire
                why = str(value.get(FAILED) or why)
                if FAILED in value:
                    break
                self._take(node, value)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if wire is not None and node >= 0:
            self._lose(node, wire, why)
        (wire or own).close()

    def _take(self, node: int, value: Value) -> None:
        """Note the value of a pod; the last one of a round ends it."""
        with self._lock:
            self.values[node] = value
            if len(self.values) < self._count:
                return
            values = [self.values[one] for one in sorted(self.values)]
            self.values, self._has_begun = {}, True
            self._send({"values": values})

    def _lose(self, node: int, wire: Wire, why: str) -> None:
        """Forget a pod that has left before the first round is over; later, end the meeting."""
        with self._lock:
            if self._members.get(node) is not wire:  # its successor is here
                return
            del self._members[node]
            self.values.pop(node, None)
            if self._has_begun and not self._is_over:
                self._is_over = True
                self._send({FAILED: f"pod {node}: {why}"})

    def _send(self, value: Value) -> None:
        line = json.dumps(value).encode() + b"\n"
        for wire in list(self._members.values()):
            try:
                wire.send(line)
            except OSError:  # its own thread notes that
                pass


class Member:
    """The end of the meeting in each pod."""

    def __init__(self, context: ssl.SSLContext, address: tuple[str, int], node: int, limit: float) -> None:
        """Connect to the first pod, within so many seconds. address: with its port. Raises MeetingOver."""
        self._node = node
        until = time.monotonic() + limit
        while True:
            try:
                own = socket.create_connection(address, HANDSHAKE_TIMEOUT_S)
                self._wire = Wire(context.wrap_socket(own))
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise MeetingOver(f"the first pod, {address[0]}, does not answer ({error})") from None
                time.sleep(DIAL_INTERVAL_S)

    def send(self, value: Value) -> None:
        """Send this pod's value of a round. Raises MeetingOver."""
        try:
            self._wire.send(json.dumps({**value, "node": self._node}).encode() + b"\n")
        except OSError as error:
            raise MeetingOver(f"the first pod is gone ({error})") from None

    def listen(self, take: Callable[[list[Value]], object], fail: Callable[[str], object]) -> None:
        """Call a function with the values of each round, and the other one with the reason of the end."""
        why = "the first pod is gone"
        try:
            for message in self._wire.messages():
                if FAILED in message:
                    why = str(message[FAILED])
                    break
                take(message["values"])
        except (OSError, ValueError, KeyError):
            pass
        self._wire.close()
        fail(why)

    def leave(self) -> None:
        """Leave the meeting, which ends `listen`."""
        self._wire.hang_up()


def keep_alive(own: socket.socket) -> None:
    """Have the system notice that the other end's machine is gone, however long both are silent."""
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, IDLE_S)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def listener(port: int) -> socket.socket:
    """Return a socket that listens at a port, for all pods. Raises OSError."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", port), backlog=1024)
