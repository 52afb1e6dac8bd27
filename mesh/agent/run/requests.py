"""The queue of requests: each is carried out once, in order, and waits while work in the background is under way."""

from __future__ import annotations

from mesh.agent.base.light import deque
from mesh.protocol.requests import Ack, Beat, Bye, Finish, Kill, Order, Over, Request, Signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE = frozenset((Beat, Ack, Signal, Kill, Finish, Bye, Over))  # these wait for no work


class Requests:
    """The requests of the client that were not carried out yet."""

    def __init__(self, carry_out: Callable[[Request, bytes], None]) -> None:
        """Start without any."""
        self._carry_out = carry_out
        self._queue: deque[tuple[Request, bytes]] = deque()
        self.last_order = 0  # the number of the last order: a client repeats those that may have got lost
        self._works = 0  # under way in the background

    @property
    def is_waiting(self) -> bool:
        """True while work in the background is under way."""
        return self._works > 0

    @property
    def is_ready(self) -> bool:
        """True if ``serve`` has something to do."""
        return bool(self._queue) and not self.is_waiting

    def receive(self, request: Request, data: bytes) -> None:
        """Carry out a request now, or in its turn; ignore an order that has come before."""
        if isinstance(request, Order) and request.n:
            if request.n <= self.last_order:
                return
            self.last_order = request.n
        self.add(request, data)

    def add(self, request: Request, data: bytes = b"") -> None:
        """Carry out a request now, or in its turn."""
        if type(request) in AT_ONCE:
            self._carry_out(request, data)
        else:
            self._queue.append((request, data))

    def serve(self) -> None:
        """Carry out requests in order, up to one that begins work in the background."""
        while self.is_ready:
            self._carry_out(*self._queue.popleft())

    def begin_work(self) -> None:
        """Let requests wait for work in the background."""
        self._works += 1

    def end_work(self) -> None:
        """Go on with requests, unless other work is under way."""
        self._works -= 1

    def clear(self) -> None:
        """Forget all that wait."""
        self._queue.clear()
