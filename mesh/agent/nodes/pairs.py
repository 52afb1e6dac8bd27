"""Relayed connections from nodes here to nodes of hosts that they cannot reach: through two agents and the client."""

from __future__ import annotations

import select
import time

from mesh.agent.base.light import Socket, dumps, loads, partial, socket
from mesh.protocol.nodes import PAIR_STREAM_BITS, WHY_CHARACTERS, PairRelayed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.agent.loop import Loop
    from mesh.agent.nodes.nodes import Nodes
    from mesh.agent.nodes.relay import Relays
    from mesh.agent.port import NodesPort
    from mesh.protocol.nodes import NodeAddress

SOCKET = "relay"  # its name in the private directory of the nodes
REQUEST_BYTES = 4096
BACKLOG_CONNECTIONS = 256


class Pairs:
    """Listens for nodes whose direct connection has failed, and asks the client for another way."""

    def __init__(self, port: NodesPort, loop: Loop, nodes: Nodes, relays: Relays, host: int) -> None:
        """Start without a socket. host: index of this host"""
        self._port, self._loop, self._nodes, self._relays, self._host = port, loop, nodes, relays, host
        self._listener: Socket | None = None
        self._asking: dict[int, Socket] = {}  # connections whose request has not come, by descriptor
        self._hosts: dict[str, int] = {}  # of all nodes, by label
        self._reported: set[int] = set()  # hosts for which the client has the report
        self._last = 0  # number of the last connection

    def open(self, book: Sequence[NodeAddress]) -> None:
        """Listen for nodes here, if there are nodes on other hosts. Raises OSError."""
        self._hosts = {node.label: node.host for node in book}
        if self._listener is not None or not any(host != self._host for host in self._hosts.values()):
            return
        listener = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._nodes.place(SOCKET))
            listener.listen(BACKLOG_CONNECTIONS)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self._loop.watch(listener.fileno(), select.POLLIN, self._accept)

    def close(self) -> None:
        """Stop listening. The socket is removed with the directory of the nodes."""
        for own in [*self._asking.values(), *([self._listener] if self._listener is not None else [])]:
            self._loop.unwatch(own.fileno())
            own.close()
        self._asking, self._listener = {}, None

    def _accept(self, events: int) -> None:
        assert self._listener is not None
        try:
            own, _ = self._listener.accept()
        except OSError:
            return
        own.setblocking(False)
        self._asking[own.fileno()] = own
        self._loop.watch(own.fileno(), select.POLLIN, partial(self._read, own))

    def _read(self, own: Socket, events: int) -> None:
        """Read the request of a node, which fits into one piece."""
        try:
            data = own.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._loop.unwatch(own.fileno())
        del self._asking[own.fileno()]
        try:
            request = loads(data)
        except ValueError:
            request = None
        if not isinstance(request, dict):
            own.close()
            return
        self._ask(own, str(request.get("from")), str(request.get("to")), str(request.get("why")))

    def _ask(self, own: Socket, asking: str, label: str, reason: str) -> None:
        rank = self._nodes.rank(asking)
        if rank < 0 or label not in self._hosts:
            _answer(own, f"no node {label!r}")
            own.close()
        elif self._port.is_detached:
            _answer(own, "the run is detached, and has no client that could connect them")
            own.close()
        else:
            self._last += 1
            number = ((self._host + 1) << PAIR_STREAM_BITS) + self._last
            self._relays.ask(number, own, label, partial(self._opened, own, rank, label, reason))

    def _opened(self, own: Socket, rank: int, label: str, reason: str, failure: str) -> None:
        """Send the outcome to the node, and one report for each other host to the client."""
        _answer(own, failure)
        host = self._hosts[label]
        if not failure and host not in self._reported:
            self._reported.add(host)
            shown = reason.replace("\0", "")[:WHY_CHARACTERS]
            self._port.send(PairRelayed(rank=rank, to=label, why=shown, time=time.time()))


def _answer(own: Socket, failure: str) -> None:
    """Send the outcome as one line. A node that is gone needs none."""
    try:
        own.send(dumps({"why": failure}).encode() + b"\n")
    except OSError:
        pass
