"""The agents of a detached run, which report to each other that a rank has failed, or that a host is lost.

The agent of rank 0's host is the hub. The others, its guests, keep a link to it, and a report of one reaches all. Only
the first report counts, because it ends the run everywhere. A hub stays until the ranks of its guests have ended.
"""

from __future__ import annotations

import select
import socket
import time

from mesh.agent.base.background import Background
from mesh.agent.detached.peer_link import Guest, LinkClosed, PeerLink, connect, resolve
from mesh.protocol.control import Beat, Bye, Changed, Done, Join, News, PeerMessage, Welcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mesh.agent.detached.peer_link import Address
    from mesh.protocol.nodes import NodeState

BEAT_INTERVAL_S = 5.0
SILENCE_LIMIT_S = 15.0  # after which another link is tried: TCP may wait for long after a cut
RECONNECT_LIMIT_S = 5.0  # in which an agent whose link has ended makes another one, unless it was killed
RETRY_INTERVAL_S = 1.0  # between two tries to reach the hub
JOIN_LIMIT_S = 5.0  # to reach the hub for the first time, and for a new connection to name its host
CONNECT_LIMIT_S = 3.0  # for one try: the waits of TCP grow, and a cut may have healed meanwhile
NEW_LINKS_MAX = 256
STATES_TOGETHER = 128  # of nodes in one message, whose size is limited


class Peers:
    """The common part of hub and member. Times are monotonic."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext) -> None:
        """node: of this host; host_grace: seconds that a host may be silent before it is lost; context: of PeerLink"""
        self.node, self._host_grace, self._context = node, host_grace, context
        self._pause = min(BEAT_INTERVAL_S, host_grace / 4)
        self._beat_at = time.monotonic() + self._pause
        self.news: News | None = None  # the first that there was
        self.is_done = False  # the ranks of this host have ended
        self.changes: list[NodeState] = []  # of nodes on other hosts, for the owner of the links
        self._states: dict[str, NodeState] = {}  # of all nodes, for agents that are met later

    @property
    def verdict(self) -> str | None:
        """The reason why the others cannot be reached; "" if they were, and None until that is decided."""
        return ""

    def report(self, news: News) -> None:
        """Pass on why the run ends, unless it ends already."""
        if self.news is None:
            self.news = news
            self._spread(news)

    def done(self) -> None:
        """Record that the ranks of this host have ended."""
        self.is_done = True

    def change(self, states: Sequence[NodeState]) -> None:
        """Pass on how nodes of this host have changed."""
        raise NotImplementedError

    def _note(self, states: Iterable[NodeState]) -> None:
        self._states.update((state.label, state) for state in states)

    def _known(self) -> Iterator[Changed]:
        """Yield messages with the state of every node that has one."""
        states = list(self._states.values())
        for begin in range(0, len(states), STATES_TOGETHER):
            yield Changed(nodes=states[begin : begin + STATES_TOGETHER])

    def _spread(self, news: News) -> None:
        raise NotImplementedError

    def _lose(self, node: int, reason: str) -> None:
        self.report(News(cause="lost", lost=node, reason=reason))


class Hub(Peers):
    """The agent on rank 0's host."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext, listener: socket.socket) -> None:
        Peers.__init__(self, node, host_grace, context)
        self._listener = listener
        listener.setblocking(False)
        self._accepts_at = 0.0  # later than now, if there were no descriptors for a connection
        self._new_links: dict[int, PeerLink] = {}  # that have not named their host, by descriptor
        self._guests: dict[int, Guest] = {}  # by node

    @property
    def is_met(self) -> bool:
        """True once a guest was welcomed."""
        return any(guest.is_met for guest in self._guests.values())

    @property
    def is_needed(self) -> bool:
        """True while a guest waits for a message of the hub, or the hub for one of a guest."""
        return any(not guest.is_over and (guest.is_met or guest.link is not None) for guest in self._guests.values())

    def events(self) -> dict[int, int]:
        """Return the events to poll for, by descriptor."""
        links = [*self._new_links.values(), *(guest.link for guest in self._guests.values())]
        listener = {self._listener.fileno(): select.POLLIN} if time.monotonic() >= self._accepts_at else {}
        return {**listener, **{link.fileno(): link.events() for link in links if link is not None}}

    def next(self) -> float:
        """Return the time by which ``serve`` must be called."""
        return self._beat_at

    def serve(self, ready: set[int]) -> None:
        """Do what is due. ready: descriptors."""
        if self._listener.fileno() in ready:
            self._accept()
        for descriptor, link in list(self._new_links.items()):
            if descriptor in ready:
                self._join(descriptor, link)
        for guest in self._guests.values():
            if guest.link is not None and guest.link.fileno() in ready:
                self._receive(guest, guest.link)
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self._pause
            for link in [link for link in self._new_links.values() if now - link.began > JOIN_LIMIT_S]:
                self._new_links.pop(link.fileno()).close()
            for node, guest in self._guests.items():
                self._look_after(node, guest, now)

    def close(self) -> None:
        self._listener.close()
        for link in [*self._new_links.values(), *(guest.link for guest in self._guests.values())]:
            if link is not None:
                link.close()

    def change(self, states: Sequence[NodeState]) -> None:
        self._note(states)
        for guest in self._guests.values() if states else ():
            self._send(guest, Changed(nodes=states))

    def _spread(self, news: News) -> None:
        for guest in self._guests.values():
            self._send(guest, news)

    def _accept(self) -> None:
        try:
            own, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._accepts_at = time.monotonic() + RETRY_INTERVAL_S
            return
        if len(self._new_links) >= NEW_LINKS_MAX:
            own.close()
            return
        link = PeerLink(own, self._context, server=True)
        self._new_links[link.fileno()] = link

    def _join(self, descriptor: int, link: PeerLink) -> None:
        try:
            messages = link.receive()
        except LinkClosed:
            self._new_links.pop(descriptor).close()
            return
        if not messages:
            return
        join, *more = messages
        if not isinstance(join, Join):
            self._new_links.pop(descriptor).close()
        else:
            del self._new_links[descriptor]
            guest = self._guests.setdefault(join.node, Guest())
            if guest.link is not None:
                guest.link.close()
            guest.link, guest.received_at = link, time.monotonic()
            self._send(guest, Welcome())
            for known in self._known():
                self._send(guest, known)
            if self.news is not None:
                self._send(guest, self.news)
            for message in more:
                guest.is_met = True
                self._take(guest, message)

    def _receive(self, guest: Guest, link: PeerLink) -> None:
        try:
            for message in link.receive():
                guest.received_at, guest.is_met = time.monotonic(), True
                self._take(guest, message)
        except LinkClosed:
            self._drop(guest)

    def _take(self, guest: Guest, message: PeerMessage) -> None:
        if isinstance(message, News):
            self.report(message)
        elif isinstance(message, Changed):
            self._note(message.nodes)
            self.changes += message.nodes
            for other in self._guests.values():
                if other is not guest:
                    self._send(other, message)
        elif isinstance(message, Done):
            guest.is_over = True
            self._send(guest, Bye())

    def _look_after(self, node: int, guest: Guest, now: float) -> None:
        self._send(guest, Beat())
        if not guest.is_met and now - guest.received_at > JOIN_LIMIT_S:
            self._drop(guest)
        if guest.is_over or not guest.is_met:
            return
        if guest.link is None and now - guest.ended_at > min(RECONNECT_LIMIT_S, self._host_grace / 2):
            guest.is_over = True
            self._lose(node, "its agent is gone")
        elif now - guest.received_at > self._host_grace:
            guest.is_over = True
            self._drop(guest)
            self._lose(node, f"silent for {self._host_grace:g} s")

    def _send(self, guest: Guest, message: PeerMessage) -> None:
        if guest.link is not None:
            try:
                guest.link.send(message)
            except LinkClosed:
                self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        if guest.link is not None:
            guest.link.close()
            guest.link, guest.ended_at = None, time.monotonic()


class Member(Peers):
    """The agent on each other host."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext, address: str, port: int) -> None:
        """address, port: of the hub; an address or a name. Raises OSError if no process can look up names."""
        Peers.__init__(self, node, host_grace, context)
        self._link: PeerLink | None = None
        self._addresses: list[tuple[int, Address]] = []  # of the hub, with their families
        self._began = self._received_at = self._ended_at = time.monotonic()
        self._try_at = self._tried_at = self._began
        self._why = "no answer"  # the link could not be made, or has ended
        self._is_refused = False
        self.is_met = False  # the hub has welcomed this agent once
        self.is_over = False  # the hub has our last message, or is lost
        self._lookup: Background | None = Background(lambda: resolve(address, port))

    @property
    def is_needed(self) -> bool:
        """True until the hub has our last message."""
        return self.is_met and not self.is_over

    @property
    def verdict(self) -> str | None:
        if self.is_met:
            return ""
        return self._why if self.is_over else None

    def events(self) -> dict[int, int]:
        """Return the events to poll for, by descriptor."""
        if self._lookup is not None:
            return {self._lookup.channel: select.POLLIN}
        return {self._link.fileno(): self._link.events()} if self._link is not None else {}

    def next(self) -> float:
        """Return the time by which ``serve`` must be called."""
        if self.is_over:
            return float("inf")
        moments = [self._beat_at]
        if not self.is_met:
            moments.append(self._began + JOIN_LIMIT_S)
        if self._lookup is None and self._link is None:
            moments.append(self._try_at)
        elif self._link is not None and not self._link.is_open:
            moments.append(self._tried_at + CONNECT_LIMIT_S)
        return min(moments)

    def serve(self, ready: set[int]) -> None:
        """Do what is due. ready: descriptors."""
        now = time.monotonic()
        if self._lookup is not None and self._lookup.channel in ready:
            found, self._lookup = self._lookup.end(), None
            self._found(found)
        if self.is_over or self._lookup is not None:
            self._check_hub(now)
            return
        if self._link is None and now >= self._try_at:
            self._try(now)
        elif self._link is not None and self._link.fileno() in ready:
            self._receive(self._link)
        if now >= self._beat_at:
            self._beat_at = now + self._pause
            self._send(Beat())
        self._check_hub(time.monotonic())

    def done(self) -> None:
        Peers.done(self)
        if self.is_met:
            self._send(Done())

    def close(self) -> None:
        self._drop()
        if self._lookup is not None:
            self._lookup.close()

    def change(self, states: Sequence[NodeState]) -> None:
        self._note(states)
        if self.is_met and states:
            self._send(Changed(nodes=states))

    def _spread(self, news: News) -> None:
        if self.is_met:
            self._send(news)

    def _found(self, answer: Mapping[str, object]) -> None:
        found = answer.get("addresses")
        self._addresses = [(family, tuple(address)) for family, address in found] if isinstance(found, list) else []
        if not self._addresses and not self.is_over:
            self._why = str(answer.get("error", "no address"))
            self._leave()

    def _try(self, now: float) -> None:
        self._try_at, self._tried_at = now + min(RETRY_INTERVAL_S, self._host_grace / 8), now
        self._addresses.append(self._addresses.pop(0))  # each address has its turn
        try:
            self._link = PeerLink(connect(*self._addresses[-1]), self._context, server=False)
        except LinkClosed as closed:
            self._fail(closed)
            return
        self._send(Join(node=self.node))

    def _receive(self, link: PeerLink) -> None:
        try:
            messages = link.receive()
        except LinkClosed as closed:
            self._fail(closed)
            return
        for message in messages:
            self._received_at = time.monotonic()
            if isinstance(message, Welcome):
                self.is_met, self._is_refused = True, False
                self._send(Beat())  # which confirms the welcome
                for known in self._known():
                    self._send(known)
                if self.news is not None:
                    self._send(self.news)
                if self.is_done:
                    self._send(Done())
            elif isinstance(message, News) and self.news is None:
                self.news = message
            elif isinstance(message, Changed):
                self.changes += message.nodes
            elif isinstance(message, Bye):
                self._leave()

    def _check_hub(self, now: float) -> None:
        """Decide if the hub is lost, or was never in reach, or another link is to be tried."""
        if self.is_over:
            return
        if not self.is_met:
            if now - self._began >= JOIN_LIMIT_S:
                self._leave()
        elif now - self._received_at > self._host_grace:
            self._lose(0, f"silent for {self._host_grace:g} s")
            self._leave()
        elif self._is_refused and now - self._ended_at > min(RECONNECT_LIMIT_S, self._host_grace / 2):
            self._lose(0, "its agent is gone")
            self._leave()
        elif self._link is not None and now - max(self._received_at, self._tried_at) > min(
            SILENCE_LIMIT_S, self._host_grace / 2
        ):
            self._drop()
        if self._link is not None and not self._link.is_open and now - self._tried_at >= CONNECT_LIMIT_S:
            self._drop()

    def _leave(self) -> None:
        self.is_over = True
        self._drop()

    def _send(self, message: PeerMessage) -> None:
        if self._link is not None:
            try:
                self._link.send(message)
            except LinkClosed as closed:
                self._fail(closed)

    def _fail(self, closed: LinkClosed) -> None:
        self._why, self._is_refused = str(closed), isinstance(closed.__cause__, ConnectionRefusedError)
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            if self._link.is_open:
                self._ended_at = time.monotonic()
            self._link.close()
            self._link = None
