"""The calls of one node, or of the client, to all other nodes of a program."""

from __future__ import annotations

import os
import threading
from typing import Callable, Dict, Mapping, Set, Tuple

from mesh.program.runtime.connection import Connection
from mesh.program.runtime.errors import NodeLost, NotLaunched
from mesh.program.runtime.links import Link

JOIN_TIMEOUT_S = 5.0
ADOPTED_AGAIN_S = 1.0  # for another link of a node whose first one has ended


class Caller:
    """Connections to nodes by their labels, made at the first call and again after a restart."""

    def __init__(
        self,
        place: "Tuple[str, str]",
        connect: "Callable[[str], Link]",
        hosts: "Mapping[str, str]",
        is_trusting: bool,
        news_timeout: float = 0.0,
    ) -> None:
        """place: the id of the program, and the label of the node that calls, "" for the client

        connect: returns a new link to a label, or raises OSError; hosts: the host's name of each label
        news_timeout: seconds that an end of a link may wait for its explanation
        """
        program, label = place
        self.program, self.label, self.hosts = program, label, hosts
        self._connect, self._is_trusting = connect, is_trusting
        self._lock = threading.Lock()
        self._opening: Dict[str, threading.Lock] = {}
        self._connections: Dict[str, Connection] = {}
        self._news = threading.Condition()
        self._lost: Dict[str, str] = {}  # why a node takes no calls any more
        self._restarts: Dict[str, str] = {}  # why the last process of a node has ended, until it is ready again
        self._adopted: Dict[str, Link] = {}  # links that nodes without an address have made to this one
        self._had_adopted: Set[str] = set()
        self._patience = news_timeout
        self._is_closed = False
        self._pid = os.getpid()
        self.on_loss: "Callable[[str, str], None]" = lambda label, reason: None
        self.on_restart: "Callable[[str, str], None]" = lambda label, reason: None

    def leave(self) -> None:
        """Leave all links to the parent, in a process that was just forked. Their bytes are the parent's to read."""
        self._lock, self._news, self._opening = threading.Lock(), threading.Condition(), {}
        for connection in self._connections.values():
            connection.leave(self.forked())
        self._connections = {}

    def forked(self) -> NotLaunched:
        """Return the error of a call in a process that was forked: it has no links of its own."""
        name = self.label or "the client"
        text = f"{name}: process {os.getpid()} was forked from process {self._pid}, which alone makes calls"
        return NotLaunched(f"{text}; call before the fork, or add a node for this work")

    def to(self, label: str) -> Connection:
        """Return the connection to a node. Raises NodeLost, and NotLaunched after the end of the program."""
        if os.getpid() != self._pid:
            raise self.forked()
        found = self._connections.get(label)
        if found is not None and not (found.is_lost or found.is_retired):
            return found
        with self._lock:
            opening = self._opening.setdefault(label, threading.Lock())
        with opening:
            found = self._connections.get(label)
            if found is None or found.is_lost or found.is_retired:
                found = self._connections[label] = self._open(label)
                reason = "the program has ended" if self._is_closed else self._lost.get(label)
                if reason:  # that was news while the link was made
                    found.close(reason)
            return found

    def open_calls(self, label: str) -> int:
        """Return the number of calls from here to a node that are not answered."""
        found = self._connections.get(label)
        return 0 if found is None else found.open_calls

    def _open(self, label: str) -> Connection:
        if self._is_closed:
            raise NotLaunched(f"{label}: the program has ended")
        host = self.hosts.get(label, "")
        if label in self._lost:
            raise NodeLost(label, host, self._lost[label])
        greeting: "dict[str, object]" = {"program": self.program, "to": label, "from": self.label}
        try:
            link = self._connect(label)
            return Connection(link, greeting, (label, host), self._is_trusting, lambda: self._explanation(label))
        except NodeLost as error:
            self._lost.setdefault(label, error.reason)
            raise
        except OSError as error:
            raise NodeLost(label, host, self._lost.get(label, f"cannot connect: {error}")) from error

    def _explanation(self, label: str) -> str:
        """Wait a moment for the news that explains the end of a link, and return it."""
        with self._news:
            self._news.wait_for(
                lambda: label in self._lost or label in self._restarts or self._is_closed or not self._patience,
                self._patience,
            )
            return self._lost.get(label) or self._restarts.pop(label, "")

    def adopt(self, label: str, link: Link) -> None:
        """Take the link that a node without an address has made to this one; calls to that node go over it."""
        with self._news:
            old, self._adopted[label] = self._adopted.get(label), link
            self._news.notify_all()
        if old is not None:
            old.release()

    def adopted(self, label: str, timeout: float) -> Link:
        """Return the link that a node without an address has made, once it is there. Raises ConnectionError."""
        with self._news:
            seconds = ADOPTED_AGAIN_S if label in self._had_adopted else timeout
            self._news.wait_for(lambda: label in self._adopted or self._is_closed, seconds)
            link = self._adopted.pop(label, None)
            self._had_adopted.add(label)
        if link is None:
            raise ConnectionError("it has no connection to this host")
        return link

    def hasten(self) -> None:
        """Wait for no explanation of ends of links any more, because the program ends."""
        with self._news:
            self._patience = 0.0
            self._news.notify_all()

    def has_lost(self, label: str) -> bool:
        """Return True for a node that takes no calls any more."""
        return label in self._lost or self._is_closed

    def loss_of(self, label: str) -> str:
        """Return why a node takes no calls any more; "" for one that does."""
        return self._lost.get(label, "")

    def note_restart(self, label: str, reason: str) -> None:
        """Note why a node's process has ended, before the node is started again. Its link ends by itself."""
        with self._news:
            self._restarts[label] = reason
            self._news.notify_all()
        found = self._connections.get(label)
        if found is not None:
            found.retire(reason)
        self.on_restart(label, reason)

    def settle(self, label: str, timeout: float) -> None:
        """Wait until all that a node has sent is read. Its end of the link is closed."""
        found = self._connections.get(label)
        if found is not None:
            found.join(timeout)

    def lose(self, label: str, reason: str) -> None:
        """Fail all calls to a node that has ended, now and later."""
        with self._news:
            self._lost[label] = reason
            self._news.notify_all()
        found = self._connections.get(label)
        if found is not None:
            found.close(reason)
        self.on_loss(label, reason)

    def cut(self, label: str, reason: str) -> None:
        """Fail the open calls to a node that starts again on another host."""
        self.note_restart(label, reason)
        found = self._connections.get(label)
        if found is not None:
            found.close(reason)

    def find(self, label: str) -> None:
        """Take calls to a node again, after its restart."""
        with self._news:
            self._lost.pop(label, None)
            self._restarts.pop(label, None)

    def close(self) -> None:
        """End all links."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()
        with self._lock:
            connections = list(self._connections.values())
        with self._news:
            unused, self._adopted = list(self._adopted.values()), {}
        for link in unused:
            link.release()
        for connection in connections:
            connection.close("the program has ended")
        for connection in connections:
            connection.join(JOIN_TIMEOUT_S)
