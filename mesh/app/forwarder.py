"""The forwarder of this machine: carries connections to local ports through a channel to each host.

Its loop runs in one thread. Channels are opened and read in threads of their own, which hand results to the loop.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from functools import partial

from mesh.agent.forward.streams import AT_ONCE, Connection, Stream, loopback_name
from mesh.agent.loop import Loop
from mesh.app.listening import Place
from mesh.core.cluster import Cluster
from mesh.core.errors import HostUnreachable, MeshError
from mesh.core.interfaces import Backend, Channel
from mesh.core.text import one_line
from mesh.protocol.first import Forward
from mesh.protocol.forwarding import (
    BEAT_INTERVAL_S,
    STREAMS_MAX,
    Alive,
    Attach,
    Loopback,
    NotStopped,
    StopRank,
    Waiting,
)
from mesh.protocol.messages import Message
from mesh.remote.blob import start_command
from mesh.remote.greeting import new_marker
from mesh.remote.pipe import as_socket, begin

RECONNECT_INTERVAL_S, RECONNECT_LIMIT_S = 1.0, 30.0
ACCEPT_PAUSE_S = 1.0  # after an error of accept(2): no descriptor is left
LOOPBACK_LIMIT_S = 10.0  # for a host that is connected to name its loopback
JOIN_LIMIT_S = 5.0


class Forwarder:
    """Streams from sockets of this machine to ports of hosts."""

    def __init__(self, cluster: Cluster, backend: Backend, run: str, notify: Callable[[str], object]) -> None:
        """Open nothing yet.

        run: for the first message; notify: shows a line about a host, from the thread of ``serve`` or another one
        """
        self._cluster, self._backend, self._run, self._notify = cluster, backend, run, notify
        self._argv = start_command(cluster.python)
        self._loop = Loop()
        self._over = threading.Event()
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()  # for the thread of the loop
        self._wake, self._waker = socket.socketpair()
        for end in (self._wake, self._waker):
            end.setblocking(False)
        self._loop.watch(self._wake.fileno(), select.POLLIN, self._woken)
        self._connections: dict[int, tuple[Connection, socket.socket]] = {}  # by node
        self._opening: set[int] = set()  # nodes that are not connected yet, or have not named their loopback
        self._opened: list[int] = []  # nodes, in the order in which the backend has them
        self.failures: dict[int, MeshError] = {}  # by node: the reason why ``open`` has not reached it
        self.here: set[int] = set()  # nodes whose loopback is that of this process
        self._places: list[Place] = []
        self._numbers = 0  # of streams
        self._refused: set[tuple[int, int, str]] = set()  # node, port and reason that were shown
        self._pauses: dict[int, float] = {}  # before the next connection to a host, in seconds
        self._threads: list[threading.Thread] = []
        self.nodes: Sequence[int] = range(len(cluster.hosts))  # indexes of the hosts in the run
        self.debugs = False  # ranks of the run may wait in their debuggers
        # Set before ``open``, and called by it or from the thread of ``serve``: with a node and its message; with the
        # reason why a rank does not stop.
        self.on_waiting: Callable[[int, Waiting], object] = lambda node, waiting: None
        self.on_not_stopped: Callable[[str], object] = lambda reason: None

    def open(self, without: Container[int] = (), *, is_any_enough: bool = False) -> None:
        """Connect to every host; return once each is connected, or has failed, or ``stop`` was called.

        without: nodes that are left out; is_any_enough: go on with some hosts if others cannot be reached
        Raises MeshError with the reasons of all hosts that cannot be reached.
        """
        self._backend.listen(lambda event: None)
        self._opened = [node for node in range(len(self._cluster.hosts)) if node not in without]
        hosts = [self._cluster.hosts[node] for node in self._opened]
        for one in self._backend.open(hosts, self._argv):
            node = self._opened[one.node]
            if isinstance(one.result, HostUnreachable):
                self.failures[node] = self._named(node, one.result)
            else:
                self._opening.add(node)
                self._start(partial(self._open, node, one.result))
        self._loop.run_until(lambda: not self._opening or self._over.is_set())
        if self.failures and not (is_any_enough and self._connections):
            failures = [self.failures[node] for node in sorted(self.failures)]
            raise MeshError("\n".join(map(str, failures)), hint=failures[0].hint)

    def listen(self, places: Sequence[Place]) -> None:
        """Accept connections at these sockets, which ``close`` closes."""
        for place in places:
            place.listener.setblocking(False)
            self._places.append(place)
            self._watch(place)

    def serve(self) -> None:
        """Carry streams until ``stop`` is called."""
        self._beat()
        self._loop.run_until(self._over.is_set)

    def stop(self) -> None:
        """End ``serve``. From any thread, and from a signal handler."""
        self._over.set()
        with contextlib.suppress(OSError):  # it is full, or closed
            self._waker.send(b"!")

    def close(self) -> None:
        """Close every socket, stream and channel. Called after ``serve``."""
        self.stop()
        for place in self._places:
            self._loop.unwatch(place.listener.fileno())
            place.close()
        self._backend.close()
        for thread in self._threads:
            thread.join(JOIN_LIMIT_S)
        self._carry_out_calls()  # connections that were opened last
        for connection, _ in list(self._connections.values()):
            connection.close()
        self._carry_out_calls()  # their sockets
        self._wake.close()
        self._waker.close()

    # ---- channels, in threads of their own

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="mesh-forward", daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _open(self, node: int, channel: Channel) -> None:
        try:
            self._begin(node, channel)
        except MeshError as error:
            self._post(partial(self._fail, node, error))
        except OSError as error:  # no descriptor is left
            text = f"{self._cluster.hosts[node].name}: no socket can be opened here ({error.strerror})"
            self._post(partial(self._fail, node, MeshError(text, hint="ulimit -n 4096")))

    def _begin(self, node: int, channel: Channel) -> None:
        """Start the forwarder of a host, and hand its connection to the loop. Raises MeshError."""
        host = self._cluster.hosts[node]
        place = host.remote_dir or self._cluster.remote_dir
        request = Forward(
            marker=new_marker(), run=self._run, node=self.nodes[node], remote_dir=place, debug=self.debugs
        )
        own = as_socket(channel, begin(channel, request, host.name), channel.close)
        self._post(partial(self._adopt, node, own))

    def _reopen(self, node: int) -> None:
        name, pause = self._cluster.hosts[node].name, self._pauses.get(node, RECONNECT_INTERVAL_S)
        self._pauses[node] = min(2 * pause, RECONNECT_LIMIT_S)  # one that ends again and again is left alone
        while not self._over.wait(pause):
            try:
                self._begin(node, self._backend.reopen(self._opened.index(node), self._argv))
            except (MeshError, OSError) as error:
                if isinstance(error, HostUnreachable) and error.is_final:
                    self._notify(f"{name}: not forwarded any more: {one_line(str(error))}")
                    return
                continue
            self._notify(f"{name}: connected again")
            return

    def _named(self, node: int, error: MeshError) -> MeshError:
        return MeshError(f"{self._cluster.hosts[node].name}: {one_line(str(error))}", hint=error.hint)

    def _post(self, call: Callable[[], object]) -> None:
        """Have the thread of the loop make a call."""
        self._calls.put(call)
        with contextlib.suppress(OSError):  # it is full, and wakes the loop anyhow
            self._waker.send(b"!")

    # ---- the loop

    def _woken(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(1 << 10)
        self._carry_out_calls()

    def _carry_out_calls(self) -> None:
        while not self._calls.empty():
            self._calls.get()()

    def _beat(self) -> None:
        for connection, _ in list(self._connections.values()):  # one that has ended leaves here
            connection.send(Alive())
        self._loop.at("beat", time.monotonic() + BEAT_INTERVAL_S, self._beat)

    def _fail(self, node: int, error: MeshError) -> None:
        """Note that a host cannot be reached at first."""
        self.failures[node] = error
        self._opening.discard(node)

    def _adopt(self, node: int, own: socket.socket) -> None:
        """Carry streams through a new connection to a host."""
        connection = Connection(self._loop, own.fileno(), own.fileno(), one_line)
        connection.on_refusal = partial(self._show_refusal, node)
        connection.on_other = partial(self._take, node)
        connection.on_end = partial(self._lost, node, own)
        self._connections[node] = connection, own
        if node in self._opening:
            limit = time.monotonic() + LOOPBACK_LIMIT_S
            self._loop.at(("loopback", node), limit, partial(self._opening.discard, node))

    def _lost(self, node: int, own: socket.socket) -> None:
        """Connect again to a host whose connection has ended, with all of its streams."""
        del self._connections[node]
        self._opening.discard(node)
        self._post(own.close)  # not before the loop has left the connection
        if not self._over.is_set():
            self._notify(f"{self._cluster.hosts[node].name}: the connection has ended; connecting again")
            self._start(partial(self._reopen, node))

    def _watch(self, place: Place) -> None:
        self._loop.watch(place.listener.fileno(), select.POLLIN, partial(self._accept, place))

    def _accept(self, place: Place, events: int) -> None:
        while True:
            try:
                own, _ = place.listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._loop.unwatch(place.listener.fileno())
                self._loop.at(place, time.monotonic() + ACCEPT_PAUSE_S, partial(self._watch, place))
                return
            own.setblocking(False)
            if own.family != socket.AF_UNIX:
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection, _ = self._connections.get(place.node, (None, None))
            if connection is None or len(connection.streams) >= STREAMS_MAX:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                own.close()
                continue
            self._numbers += 1
            connection.connect(self._numbers, own, place.port)

    def attach(self, node: int, rank: int) -> socket.socket:
        """Return a socket to the debugger of a rank; it ends at once if the rank does not wait. From any thread."""
        own, program = socket.socketpair()
        own.setblocking(False)
        self._post(partial(self._attach, node, rank, own))
        return program

    def stop_rank(self, node: int, rank: int) -> None:
        """Have a rank stop. From any thread."""
        self._post(partial(self._send, node, StopRank(rank=rank)))

    def _attach(self, node: int, rank: int, own: socket.socket) -> None:
        connection, _ = self._connections.get(node, (None, None))
        if connection is None:
            own.close()
            return
        self._numbers += 1
        connection.send(Attach(stream=self._numbers, rank=rank))
        connection.add(self._numbers, own, 0)

    def _send(self, node: int, message: Message) -> None:
        if node in self._connections:
            self._connections[node][0].send(message)

    def _take(self, node: int, message: Message) -> None:
        if isinstance(message, Waiting):
            self.on_waiting(node, message)
        elif isinstance(message, NotStopped):
            self.on_not_stopped(message.why)
        elif isinstance(message, Loopback):
            self._opening.discard(node)
            if message.name and message.name == loopback_name():
                self.here.add(node)

    def _show_refusal(self, node: int, stream: Stream, reason: str) -> None:
        """Show once why a host has refused a stream."""
        refusal = node, stream.port, reason
        if reason and refusal not in self._refused:
            self._refused.add(refusal)
            self._notify(f"{self._cluster.hosts[node].name}:{stream.port}: {reason} (on loopback there)")
