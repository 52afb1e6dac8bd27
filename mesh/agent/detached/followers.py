"""The connections of clients that follow a detached run. Their processes connect to the control socket and stay."""

from __future__ import annotations

from mesh.agent.base.light import dumps, loads
from mesh.protocol.control import Confirmed
from mesh.protocol.frames import FrameError
from mesh.protocol.tables import read_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh.agent.base.light import Socket
    from mesh.protocol.requests import Order

ORDER_BYTES = 1 << 16


class Followers:
    """Wakes followers when the journal grows, and takes their orders. One that hangs delays no other."""

    def __init__(self) -> None:
        self._connections: dict[int, tuple[Socket, str]] = {}  # and whose client it is, by descriptor
        self._orders: dict[str, int] = {}  # the number of a client's last order, which a new process may repeat

    def __len__(self) -> int:
        return len(self._connections)

    def descriptors(self) -> list[int]:
        return list(self._connections)

    def add(self, connection: Socket, client: str) -> None:
        """Add a follower. client: the same through all processes of a client"""
        connection.setblocking(False)
        self._connections[connection.fileno()] = (connection, client)
        self._send(connection.fileno(), Confirmed(obeyed=self._orders.get(client, 0)))

    def receive(self, ready: set[int]) -> list[Order]:
        """Return the orders that have come, each of them once."""
        orders = []
        for descriptor in ready & self._connections.keys():
            connection, client = self._connections[descriptor]
            try:
                text = connection.recv(ORDER_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                text = b""
            try:
                order = read_order(loads(text))  # without a text, the connection has ended
            except (ValueError, FrameError):
                self._drop(descriptor)
                continue
            if order.n > self._orders.get(client, 0):
                self._orders[client] = order.n
                orders.append(order)
            self._send(descriptor, Confirmed(obeyed=self._orders.get(client, 0)))
        return orders

    def wake(self) -> None:
        """Notify all followers that the journal has grown."""
        for descriptor in list(self._connections):
            self._send(descriptor, Confirmed())

    def close(self) -> None:
        for descriptor in list(self._connections):
            self._drop(descriptor)

    def _send(self, descriptor: int, confirmed: Confirmed) -> None:
        try:
            self._connections[descriptor][0].send(dumps(confirmed.to_json()).encode())
        except BlockingIOError:  # an earlier message there wakes it
            pass
        except OSError:
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._connections.pop(descriptor)[0].close()
