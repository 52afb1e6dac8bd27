"""The backend of hosts behind a switchboard: each host is a node, and one connection carries all channels."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from mesh.backends.switchboard.channel import StreamChannel
from mesh.backends.switchboard.line import Line
from mesh.backends.switchboard.ways import Connect
from mesh.core.cluster import Host
from mesh.core.errors import HostUnreachable
from mesh.core.events import Event, Notice
from mesh.core.interfaces import NoAgent, Opened
from mesh.core.text import last_line, one_line

CLIENT_RETURN_S = 30.0  # a switchboard that is started again ends all streams at once
NODE_LIMIT_S = 60.0  # for the first connection of a node, from ``open`` on
RETURN_LIMIT_S = 5.0  # for a node to be back, within one ``reopen``
CONNECT_TRIES = 3  # to reach the switchboard for the first time
RETRY_INTERVAL_S = 0.5  # between two tries to reach the switchboard
WINDOW_BYTES = (64 << 10, 1 << 20)  # of a stream, at least and at most
WINDOWS_BYTES = 64 << 20  # of all streams together


class Advice:
    """The words about hosts of one kind of allocation. This one has no source of its own."""

    def why(self, node: int) -> str:
        """Return why a host is gone; "" if nothing shows it. Blocks at most 2 seconds."""
        return ""

    def gone(self, node: int) -> str:
        """Return why a host is gone for good; "" if it may come back. Blocks at most 2 seconds."""
        return ""

    def absent(self, node: int, name: str, limit: float) -> HostUnreachable:
        """Return the error for a node that has not connected within ``limit`` seconds."""
        return HostUnreachable(f"{name}: not connected to the switchboard within {limit:g} s")

    def explain(self, node: int, name: str, end: NoAgent) -> HostUnreachable:
        """Return why no agent has started on a node that was reached."""
        last = last_line(end.stderr or end.banner)
        if end.limit:
            return HostUnreachable(f"{name}: no agent started within {end.limit:g} s", step="python")
        status = "" if end.status is None else f" (exit {end.status})"
        message = f"{name}: the program ended before mesh's agent started{status}" + f": {last}" * bool(last)
        return HostUnreachable(message, hint="check python: in cluster.yaml: it must exist on the node", step="python")


class SwitchboardBackend:
    """Opens channels to agents on the nodes of one switchboard."""

    def __init__(
        self,
        connect: Connect,
        credentials: str,
        names: Sequence[str],
        advice: Advice | None = None,
        node_limit: float = NODE_LIMIT_S,
        client_return: float = CLIENT_RETURN_S,
    ) -> None:
        """Make a backend that has not connected yet.

        connect: opens a connection to the switchboard's port; credentials: the allocation's key, as PEM; names: of the
        nodes, one for each host; node_limit: seconds for a node to connect; client_return: as in Backend
        """
        self._connect, self._credentials, self._names = connect, credentials, names
        self._advice, self._node_limit, self.client_return = advice or Advice(), node_limit, client_return
        self._window = max(WINDOW_BYTES[0], min(WINDOW_BYTES[1], WINDOWS_BYTES // max(1, len(names))))
        self._hosts: Sequence[Host] = ()
        self._post: Callable[[Event], None] = lambda event: None
        self._connecting = threading.Lock()
        self._line: Line | None = None
        self._lines: list[Line] = []
        self._failed: tuple[float, HostUnreachable] | None = None  # the last try: when it ended, and why
        self._is_over = threading.Event()

    def listen(self, post: Callable[[Event], None]) -> None:
        self._post = post

    def open(self, hosts: Sequence[Host], argv: Sequence[str]) -> Iterator[Opened]:
        self._hosts = hosts
        deadline = time.monotonic() + self._node_limit
        waiting = dict(enumerate(self._names[: len(hosts)]))
        problem: HostUnreachable | None = None
        tries = 0
        while waiting and not self._is_over.is_set():
            left = max(0.0, deadline - time.monotonic())
            try:
                line, problem = self._connected(), None
            except HostUnreachable as error:
                problem, tries = error, tries + 1
                if error.is_final or not left or (self._line is None and tries >= CONNECT_TRIES):
                    break
                self._is_over.wait(min(left, RETRY_INTERVAL_S))
                continue
            here = line.wait_nodes(set(waiting.values()), left)
            if not here and not left:
                break
            for node in [node for node, name in waiting.items() if name in here]:
                channel = line.open(waiting.pop(node), list(argv), self._window)
                yield Opened(node=node, result=channel, address=hosts[node].internal_ip or hosts[node].address)
        for node, name in waiting.items():
            yield Opened(node=node, result=problem or self._absent(node, name, self._node_limit))

    def reopen(self, node: int, argv: Sequence[str]) -> StreamChannel:
        name = self._names[node]
        line = self._connected()
        if not line.wait_nodes({name}, RETURN_LIMIT_S):
            if gone := self._advice.gone(node):
                raise HostUnreachable(one_line(gone), is_final=True)
            if line.is_over:
                raise HostUnreachable("the connection to the switchboard ended")
            raise self._absent(node, name, RETURN_LIMIT_S)
        return line.open(name, list(argv), self._window)

    def explain(self, node: int, end: NoAgent) -> HostUnreachable:
        return self._advice.explain(node, self._names[node], end)

    def why(self, node: int) -> str:
        return self._advice.why(node) or self._out_of_reach()

    def _out_of_reach(self) -> str:
        """Return why the switchboard is not reached any more; "" if it is, or nothing was tried."""
        if self._line is None or not self._line.is_over or self._failed is None:
            return ""
        return f"the switchboard is out of reach: {one_line(str(self._failed[1]))}"

    def user(self, node: int) -> str:
        return self._hosts[node].user or getpass.getuser()

    def close(self) -> None:
        self._is_over.set()
        for line in list(self._lines):
            line.close()

    def _absent(self, node: int, name: str, limit: float) -> HostUnreachable:
        return self._advice.absent(node, name, limit)

    def _connected(self) -> Line:
        """Return the connection that all hosts share; make it first if there is none. Raises HostUnreachable."""
        asked = time.monotonic()
        with self._connecting:
            if self._is_over.is_set():
                raise HostUnreachable("the run has ended")
            if self._line is not None and not self._line.is_over:
                return self._line
            if self._failed is not None and self._failed[0] > asked:  # while this host waited for its turn
                raise self._failed[1]
            try:
                line = Line(self._connect(), self._credentials, self._notice)
                self._lines = [one for one in self._lines if not one.is_over] + [line]
                line.wait_welcome()
            except HostUnreachable as error:
                self._failed = time.monotonic(), error
                raise
            self._line, self._failed = line, None
        if self._is_over.is_set():  # ``close`` came before it
            line.close()
        return line

    def _notice(self, text: str) -> None:
        self._post(Notice(time=time.time(), text=one_line(text)))
