"""Those who follow a run that goes on by itself: their processes knock at the agent's door and stay."""

from __future__ import annotations

from .frames import FrameError
from .lean import dumps, loads
from .messages import order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .lean import Socket

MAX_ORDER = 65536  # bytes


class Followers:
    """Wakes them when there is something new, and takes their orders. One that hangs keeps nobody waiting."""

    def __init__(self) -> None:
        self._by: dict[int, tuple[Socket, str]] = {}  # by descriptor; with whom its client is
        self._obeyed: dict[str, int] = {}  # the number of a client's last order: a new process of it may say it again

    def __len__(self) -> int:
        return len(self._by)

    def descriptors(self) -> list[int]:
        return list(self._by)

    def add(self, visitor: Socket, client: str) -> None:
        """client: the same through all processes of a client."""
        visitor.setblocking(False)
        self._by[visitor.fileno()] = (visitor, client)
        self._say(visitor.fileno(), {"obeyed": self._obeyed.get(client, 0)})

    def listen(self, ready: set[int]) -> list[dict[str, Any]]:
        """The orders that have come."""
        orders = []
        for descriptor in ready & self._by.keys():
            visitor, client = self._by[descriptor]
            try:
                text = visitor.recv(MAX_ORDER)
            except BlockingIOError:
                continue
            except OSError:
                text = b""
            if not text:
                self._drop(descriptor)
                continue
            try:
                told = order(loads(text))
            except (ValueError, FrameError):
                self._drop(descriptor)
                continue
            if told["n"] > self._obeyed.get(client, 0):
                self._obeyed[client] = told["n"]
                orders.append(told)
            self._say(descriptor, {"obeyed": self._obeyed.get(client, 0)})
        return orders

    def wake(self) -> None:
        """There is more on the tape."""
        for descriptor in list(self._by):
            self._say(descriptor, {})

    def close(self) -> None:
        for descriptor in list(self._by):
            self._drop(descriptor)

    def _say(self, descriptor: int, told: dict[str, Any]) -> None:
        try:
            self._by[descriptor][0].send(dumps(told).encode())
        except BlockingIOError:  # there is something in front of it that wakes it
            pass
        except OSError:
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        self._by.pop(descriptor)[0].close()
