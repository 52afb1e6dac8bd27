"""What the agents of a run that goes on by itself tell each other: that a rank has failed, or a host is lost.

The first host's agent, that of rank 0, is the hub: the others, its guests, keep a link to it, and what one tells
reaches all. Only the first news counts, as it ends the run everywhere. A hub stays until its guests are done with
their ranks.
"""

from __future__ import annotations

import os
import select
import socket
import time

from .errand import Errand
from .links import Closed, Link, reach

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import Any, Dict

    News = Dict[str, Any]  # "cause": "rank", "lost" or "signal"; "signal"; for "lost" also "lost", a node, and "reason"

BEAT = 5.0  # seconds
SILENT = 15.0  # seconds without a word after which another link is tried: TCP may wait for long after a cut
RETURN = 5.0  # seconds in which an agent whose link has ended makes another one, unless it was killed
AGAIN = 1.0  # seconds between two tries to reach the hub
FIRST = 5.0  # seconds to reach it for the first time, and for a stranger to say who it is
REACH = 3.0  # seconds for one try: the waits of TCP grow, and a cut may have healed meanwhile
MOST_STRANGERS = 256


class Peers:
    """What hub and guest have in common. Times are monotonic."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext) -> None:
        """node: ours; host_grace: seconds that a host may be silent before it is lost; context: as with Link"""
        self.node, self._host_grace, self._context = node, host_grace, context
        self._pause = min(BEAT, host_grace / 4)
        self._beat_at = time.monotonic() + self._pause
        self.news: News | None = None  # the first that there was
        self.is_done = False  # our own ranks have ended

    @property
    def verdict(self) -> str | None:
        """Whether the others could be reached at first: "" if so, why not, or None as long as that is not known."""
        return ""

    def tell(self, news: News) -> None:
        """Something has happened here, or was heard."""
        if self.news is None:
            self.news = news
            self._spread(news)

    def done(self) -> None:
        """Our own ranks have ended."""
        self.is_done = True

    def _spread(self, news: News) -> None:
        raise NotImplementedError

    def _lose(self, node: int, reason: str) -> None:
        self.tell({"cause": "lost", "lost": node, "reason": reason})


class Guest:
    """As the hub knows it."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.is_met = False  # it knows that we know it
        self.heard = 0.0
        self.ended = 0.0  # when its last link did
        self.is_over = False  # its ranks have ended, or it is lost


class Hub(Peers):
    """On rank 0's host."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext, listener: socket.socket) -> None:
        Peers.__init__(self, node, host_grace, context)
        self._listener = listener
        listener.setblocking(False)
        self._deaf_until = 0.0  # nobody is welcomed: there are no descriptors
        self._strangers: dict[int, Link] = {}  # who have not said who they are, by descriptor
        self._guests: dict[int, Guest] = {}  # by node

    @property
    def is_needed(self) -> bool:
        """Somebody is to hear from us, or we from them."""
        return any(not guest.is_over and (guest.is_met or guest.link is not None) for guest in self._guests.values())

    def events(self) -> dict[int, int]:
        """What to poll for, by descriptor."""
        links = [*self._strangers.values(), *(guest.link for guest in self._guests.values())]
        listener = {self._listener.fileno(): select.POLLIN} if time.monotonic() >= self._deaf_until else {}
        return {**listener, **{link.fileno(): link.events() for link in links if link is not None}}

    def next(self) -> float:
        """When ``serve`` is to be called at the latest."""
        return self._beat_at

    def serve(self, ready: set[int]) -> None:
        """Do what is due. ready: descriptors."""
        if self._listener.fileno() in ready:
            self._welcome()
        for descriptor, link in list(self._strangers.items()):
            if descriptor in ready:
                self._meet(descriptor, link)
        for node, guest in self._guests.items():
            if guest.link is not None and guest.link.fileno() in ready:
                self._listen(node, guest, guest.link)
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + self._pause
            for link in [link for link in self._strangers.values() if now - link.began > FIRST]:
                self._strangers.pop(link.fileno()).close()
            for node, guest in self._guests.items():
                self._look_after(node, guest, now)

    def close(self) -> None:
        self._listener.close()
        for link in [*self._strangers.values(), *(guest.link for guest in self._guests.values())]:
            if link is not None:
                link.close()

    def _spread(self, news: News) -> None:
        for guest in self._guests.values():
            self._send(guest, {"type": "news", **news})

    def _welcome(self) -> None:
        try:
            own, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._deaf_until = time.monotonic() + AGAIN
            return
        if len(self._strangers) >= MOST_STRANGERS:
            own.close()
            return
        link = Link(own, self._context, server=True)
        self._strangers[link.fileno()] = link

    def _meet(self, descriptor: int, link: Link) -> None:
        try:
            frames = link.receive()
        except Closed:
            self._strangers.pop(descriptor).close()
            return
        if frames and frames[0]["type"] != "join":
            self._strangers.pop(descriptor).close()
        elif frames:
            del self._strangers[descriptor]
            node = frames[0]["node"]
            guest = self._guests.setdefault(node, Guest())
            if guest.link is not None:
                guest.link.close()
            guest.link, guest.heard = link, time.monotonic()
            self._send(guest, {"type": "welcome"})
            if self.news is not None:
                self._send(guest, {"type": "news", **self.news})
            for header in frames[1:]:
                guest.is_met = True
                self._take(guest, header)

    def _listen(self, node: int, guest: Guest, link: Link) -> None:
        try:
            for header in link.receive():
                guest.heard, guest.is_met = time.monotonic(), True
                self._take(guest, header)
        except Closed:
            self._drop(guest)

    def _take(self, guest: Guest, header: dict[str, Any]) -> None:
        kind = header.pop("type")
        if kind == "news":
            self.tell(header)
        elif kind == "done":
            guest.is_over = True
            self._send(guest, {"type": "bye"})

    def _look_after(self, node: int, guest: Guest, now: float) -> None:
        self._send(guest, {"type": "beat"})
        if not guest.is_met and now - guest.heard > FIRST:
            self._drop(guest)
        if guest.is_over or not guest.is_met:
            return
        if guest.link is None and now - guest.ended > min(RETURN, self._host_grace / 2):
            guest.is_over = True
            self._lose(node, "its agent is gone")
        elif now - guest.heard > self._host_grace:
            guest.is_over = True
            self._drop(guest)
            self._lose(node, f"silent for {self._host_grace:g} s")

    def _send(self, guest: Guest, header: dict[str, Any]) -> None:
        if guest.link is not None:
            try:
                guest.link.send(header)
            except Closed:
                self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        if guest.link is not None:
            guest.link.close()
            guest.link, guest.ended = None, time.monotonic()


class Member(Peers):
    """On every other host."""

    def __init__(self, node: int, host_grace: float, context: ssl.SSLContext, address: str, port: int) -> None:
        """address, port: the hub's, an address or a name. Raises OSError if there is no process to ask for names."""
        Peers.__init__(self, node, host_grace, context)
        self._link: Link | None = None
        self._places: list[tuple[int, tuple[Any, ...]]] = []  # the hub's, with their family
        self._began = self._heard = self._ended = time.monotonic()
        self._try_at = self._tried_at = self._began
        self._why = "no answer"  # the link could not be made, or has ended
        self._is_refused = False
        self.is_met = False  # we have been welcome once
        self.is_over = False  # the hub knows that our ranks have ended, or is lost
        self._asking: Errand | None = Errand(lambda: _resolve(address, port), self._found)

    @property
    def is_needed(self) -> bool:
        """The hub is to know that we are done."""
        return self.is_met and not self.is_over

    @property
    def verdict(self) -> str | None:
        if self.is_met:
            return ""
        return self._why if self.is_over else None

    def events(self) -> dict[int, int]:
        """What to poll for, by descriptor."""
        if self._asking is not None:
            return {self._asking.answer: select.POLLIN}
        return {self._link.fileno(): self._link.events()} if self._link is not None else {}

    def next(self) -> float:
        """When ``serve`` is to be called at the latest."""
        if self.is_over:
            return float("inf")
        moments = [self._beat_at]
        if not self.is_met:
            moments.append(self._began + FIRST)
        if self._asking is None and self._link is None:
            moments.append(self._try_at)
        elif self._link is not None and not self._link.is_open:
            moments.append(self._tried_at + REACH)
        return min(moments)

    def serve(self, ready: set[int]) -> None:
        """Do what is due. ready: descriptors."""
        now = time.monotonic()
        if self._asking is not None and self._asking.answer in ready:
            self._asking.end()
            self._asking = None
        if self.is_over or self._asking is not None:
            self._judge(now)
            return
        if self._link is None and now >= self._try_at:
            self._try(now)
        elif self._link is not None and self._link.fileno() in ready:
            self._listen(self._link)
        if now >= self._beat_at:
            self._beat_at = now + self._pause
            self._send({"type": "beat"})
        self._judge(time.monotonic())

    def done(self) -> None:
        Peers.done(self)
        if self.is_met:
            self._send({"type": "done"})

    def close(self) -> None:
        self._drop()
        if self._asking is not None:
            os.close(self._asking.answer)

    def _spread(self, news: News) -> None:
        if self.is_met:
            self._send({"type": "news", **news})

    def _found(self, answer: dict[str, Any]) -> None:
        self._places = [(family, tuple(place)) for family, place in answer.get("places", [])]
        if not self._places and not self.is_over:
            self._why = answer.get("error", "no address")
            self._leave()

    def _try(self, now: float) -> None:
        self._try_at, self._tried_at = now + min(AGAIN, self._host_grace / 8), now
        self._places.append(self._places.pop(0))  # each has its turn
        try:
            self._link = Link(reach(*self._places[-1]), self._context, server=False)
        except Closed as closed:
            self._fail(closed)
            return
        self._send({"type": "join", "node": self.node})

    def _listen(self, link: Link) -> None:
        try:
            frames = link.receive()
        except Closed as closed:
            self._fail(closed)
            return
        for header in frames:
            self._heard = time.monotonic()
            kind = header.pop("type")
            if kind == "welcome":
                self.is_met, self._is_refused = True, False
                self._send({"type": "beat"})  # so that it knows
                if self.news is not None:
                    self._send({"type": "news", **self.news})
                if self.is_done:
                    self._send({"type": "done"})
            elif kind == "news" and self.news is None:
                self.news = header
            elif kind == "bye":
                self._leave()

    def _judge(self, now: float) -> None:
        """Whether the hub is lost, or out of reach from the beginning, or another link is to be tried."""
        if self.is_over:
            return
        if not self.is_met:
            if now - self._began >= FIRST:
                self._leave()
        elif now - self._heard > self._host_grace:
            self._lose(0, f"silent for {self._host_grace:g} s")
            self._leave()
        elif self._is_refused and now - self._ended > min(RETURN, self._host_grace / 2):
            self._lose(0, "its agent is gone")
            self._leave()
        elif self._link is not None and now - max(self._heard, self._tried_at) > min(SILENT, self._host_grace / 2):
            self._drop()
        if self._link is not None and not self._link.is_open and now - self._tried_at >= REACH:
            self._drop()

    def _leave(self) -> None:
        self.is_over = True
        self._drop()

    def _send(self, header: dict[str, Any]) -> None:
        if self._link is not None:
            try:
                self._link.send(header)
            except Closed as closed:
                self._fail(closed)

    def _fail(self, closed: Closed) -> None:
        self._why, self._is_refused = str(closed), isinstance(closed.__cause__, ConnectionRefusedError)
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            if self._link.is_open:
                self._ended = time.monotonic()
            self._link.close()
            self._link = None


def _resolve(address: str, port: int) -> dict[str, Any]:
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        return {"error": f"{address} cannot be resolved: {error}"}
    return {"places": [[family, list(place)] for family, _, _, _, place in found]}
