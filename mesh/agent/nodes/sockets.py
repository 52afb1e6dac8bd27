"""The listening sockets of nodes: the agent opens them before any node starts, and keeps them over restarts."""

from __future__ import annotations

import os

from mesh.agent.base.light import Socket, socket
from mesh.agent.run.network import listen_within
from mesh.protocol.nodes import NodeSockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh.protocol.nodes import Node

BACKLOG_CONNECTIONS = 1024  # that wait for a node's constructor


class ListeningSockets:
    """The sockets of one node, by the names that its program reads: "unix", "tcp", "tcp-1" and so on."""

    def __init__(self, node: Node, directory: str, ports: Sequence[int] = ()) -> None:
        """Open them. ports: the first and the last one that may be taken; (): any. Raises OSError."""
        self._ports = ports
        self._path = os.path.join(directory, str(node.rank))
        self.by_name: dict[str, Socket] = {}
        try:
            if node.sockets:
                self.by_name["unix"] = listener = Socket(socket.AF_UNIX, socket.SOCK_STREAM)
                listener.bind(self._path)
                listener.listen(BACKLOG_CONNECTIONS)
            if node.sockets and node.remote:
                self._listen("tcp")
            for number in range(1, node.sockets):
                self._listen(f"tcp-{number}")
        except OSError:
            self.close()
            raise
        ports = [own.getsockname()[1] for name, own in self.by_name.items() if name != "unix"]
        self.addresses = NodeSockets(rank=node.rank, unix=self._path if self.by_name else "", ports=ports)

    def close(self) -> None:
        """Close them: whoever connects is refused from now on, unless the node's process has them."""
        for own in self.by_name.values():
            own.close()
        self.by_name = {}
        try:
            os.unlink(self._path)
        except OSError:  # there was none, or it went with its directory
            pass

    def _listen(self, name: str) -> None:
        self.by_name[name] = listen_within(self._ports, BACKLOG_CONNECTIONS)
