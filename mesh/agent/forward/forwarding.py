"""The forwarder: the process that connects streams of a client to ports of its host's loopback.

It has a channel of its own, and ends with it, so that no agent and no run takes part.
"""

from __future__ import annotations

import errno
import time

from mesh.agent.base.light import Socket, partial, socket
from mesh.agent.forward import debugging
from mesh.agent.forward.streams import Connection, loopback_name
from mesh.agent.loop import Loop
from mesh.protocol.forwarding import STREAMS_MAX, Attach, Loopback, NotStopped, StopRank, Waiting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mesh.protocol.first import Forward
    from mesh.protocol.messages import Message

LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))  # in the order of the tries
LOOK_INTERVAL_S = 0.25  # between two looks for ranks that wait
UNDER_WAY = (0, errno.EINPROGRESS)


def forward(request: Forward) -> None:
    """Serve one client until one of the two ends is gone, or silent for long."""
    loop = Loop()
    connection = Connection(loop, 0, 1)
    connection.is_answering = True
    connection.on_connect = partial(_connect, connection)
    connection.send(Loopback(name=loopback_name()))
    if request.debug:
        debugged = _Debugged(loop, connection, request.run, request.node)
        connection.on_other = debugged.take
        debugged.look()
    loop.run_until(lambda: connection.is_over)


def _connect(connection: Connection, number: int, port: int) -> None:
    """Open a stream to a port of this host, or report why it cannot be."""
    if number in connection.streams or len(connection.streams) >= STREAMS_MAX:
        connection.refuse(number, f"more than {STREAMS_MAX} streams at a time")
        return
    tries = iter(LOOPBACK)

    def other() -> Socket | None:
        return next(filter(None, (_begun(family, address, port) for family, address in tries)), None)

    first = other()
    if first is None:
        connection.refuse(number, "no socket can be opened there")
    else:
        connection.await_connect(number, first, other)


def _begun(family: int, address: str, port: int) -> Socket | None:
    """Return a socket that is connecting to a port of this host; None if there can be none."""
    try:
        own = Socket(family, socket.SOCK_STREAM)
    except OSError:  # no IPv6, or no descriptor is left
        return None
    own.setblocking(False)
    if own.connect_ex((address, port)) in UNDER_WAY:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return own
    own.close()
    return None


class _Debugged:
    """The ranks of a run here, as far as they wait in their debuggers."""

    def __init__(self, loop: Loop, connection: Connection, run: str, node: int) -> None:
        self._loop, self._connection, self._run, self._node = loop, connection, run, node
        self._reported: dict[int, tuple[str, tuple[int, int]]] = {}  # by rank: its socket, and which one it is

    def look(self) -> None:
        """Report the ranks that wait if they have changed, again and again."""
        paths = debugging.waiting(debugging.directory(self._run, self._node))
        found = {rank: (path, debugging.identity(path)) for rank, path in paths.items()}
        if found != self._reported:
            before, self._reported = self._reported, found
            again = {rank for rank in found if rank in before and found[rank] != before[rank]}
            if again:  # since the last look they went on and stopped, or another process of theirs did
                self._report(found.keys() - again)
            self._report(found.keys())
        self._loop.at("look", time.monotonic() + LOOK_INTERVAL_S, self.look)

    def _report(self, ranks: Iterable[int]) -> None:
        asked = {rank for rank in ranks if self._reported[rank][0].endswith(debugging.ASKED)}
        self._connection.send(Waiting(ranks=sorted({*ranks} - asked), asked=sorted(asked)))

    def take(self, message: Message) -> None:
        """Carry out a request about a rank."""
        if isinstance(message, StopRank):
            reason = debugging.stop(self._run, self._node, message.rank)
            if reason:
                self._connection.send(NotStopped(rank=message.rank, why=reason))
        elif isinstance(message, Attach):
            self._attach(message)

    def _attach(self, request: Attach) -> None:
        path = debugging.waiting(debugging.directory(self._run, self._node)).get(request.rank, "")
        own = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.setblocking(False)
        if own.connect_ex(path or "/nowhere"):
            own.close()
            self._connection.refuse(request.stream, "the rank does not wait any more")
        else:
            self._connection.add(request.stream, own, 0)
