"""Agents of a run that nobody looks after: what one of them knows, all get to know, and nobody else takes part."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from mesh.agent.detached import peers as peers_module
from mesh.agent.detached.other_hosts import OtherHosts
from mesh.agent.detached.peer_link import LinkClosed, PeerLink
from mesh.agent.detached.peers import Hub, Member
from mesh.agent.link.tls import tls_context
from mesh.agent.loop import Loop
from mesh.agent.run.facts import Fact, PeersMet
from mesh.agent.sync.fanout import listen
from mesh.engine.credentials import make_credentials
from mesh.protocol.control import Join, News

GRACE = 600.0  # seconds that a host may be silent: no test that stands still for a while has a lost host
SHORT_S = 0.5  # the same, and the time for another link, where a host is really gone


@pytest.fixture(scope="module")
def credentials() -> str:
    return make_credentials()


def reap(member: Member) -> None:
    """The process that it asks for names, as the agent does."""
    assert member._lookup is not None
    os.waitpid(member._lookup.pid, 0)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats come often, and on a slow machine all links are made in time."""
    monkeypatch.setattr(peers_module, "BEAT_INTERVAL_S", 0.2)
    for limit in ("RECONNECT_LIMIT_S", "JOIN_LIMIT_S", "CONNECT_LIMIT_S", "SILENCE_LIMIT_S"):
        monkeypatch.setattr(peers_module, limit, GRACE / 2)


class Circle:
    """A hub and its members in one process; they are served until something is so."""

    def __init__(self, credentials: str, members: int) -> None:
        listener = listen()
        self.port = listener.getsockname()[1]
        self.hub = Hub(0, GRACE, tls_context(credentials, True), listener)
        context = tls_context(credentials, False)
        self.members = [Member(node, GRACE, context, "127.0.0.1", self.port) for node in range(1, members + 1)]
        self.all: list[Hub | Member] = [self.hub, *self.members]
        for member in self.members:
            reap(member)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            poll = select.poll()
            for one in self.all:
                for descriptor, events in one.events().items():
                    poll.register(descriptor, events)
            wait = min(one.next() for one in self.all) - time.monotonic()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, min(wait, 1.0)) * 1000 + 1)}
            for one in self.all:
                one.serve(ready)

    def leave(self, one: Hub | Member) -> None:
        """As an agent that is killed."""
        self.all.remove(one)
        one.close()


@pytest.fixture
def closed() -> Iterator[socket.socket]:
    """A port at which nobody listens, and that no other program can have."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


@pytest.fixture
def circle(credentials: str) -> Iterator[Circle]:
    made = Circle(credentials, 3)
    made.until(lambda: all(member.is_met for member in made.members))
    made.until(lambda: all(guest.is_met for guest in made.hub._guests.values()))
    yield made
    for one in made.all:
        one.close()


def test_what_one_tells_reaches_all_and_the_first_word_holds(circle: Circle) -> None:
    circle.members[1].report(News(cause="rank"))
    circle.members[2].report(News(cause="signal", signal=15))
    circle.until(lambda: all(one.news is not None for one in circle.all))
    assert circle.members[0].news == circle.hub.news
    assert circle.members[1].news == News(cause="rank")


class FactsPort:
    """A port that records facts."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def post(self, fact: Fact) -> None:
        self.facts.append(fact)

    def send_now(self, message: object) -> None: ...


def test_each_agent_reports_once_that_it_has_met_another_one(circle: Circle, credentials: str) -> None:
    alone = Hub(0, GRACE, tls_context(credentials, True), listen())
    for peers, count in ((circle.hub, 1), (circle.members[0], 1), (alone, 0)):
        port = FactsPort()
        with Loop() as loop:
            hosts = OtherHosts(port, loop)  # type: ignore[arg-type]
            hosts._peers = peers
            hosts.serve()
            hosts.serve()
        assert [type(fact) for fact in port.facts] == [PeersMet] * count
    alone.close()


def test_a_hub_stays_until_all_are_done(circle: Circle) -> None:
    circle.hub.done()
    assert circle.hub.is_needed
    for member in circle.members:
        assert member.is_needed
        member.done()
    circle.until(lambda: not circle.hub.is_needed and not any(member.is_needed for member in circle.members))
    assert circle.hub.news is None


def test_a_member_that_is_killed_is_lost_to_all(circle: Circle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "RECONNECT_LIMIT_S", SHORT_S)
    circle.leave(circle.members[0])
    circle.until(lambda: all(one.news is not None for one in circle.all))
    assert circle.members[1].news == News(cause="lost", lost=1, reason="its agent is gone")
    assert circle.hub.news == circle.members[2].news == circle.members[1].news


def test_a_hub_that_is_killed_is_lost_to_all(circle: Circle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "RECONNECT_LIMIT_S", SHORT_S)
    circle.leave(circle.hub)
    circle.until(lambda: all(one.news is not None for one in circle.all))
    assert {str(member.news) for member in circle.members} == {
        str(News(cause="lost", lost=0, reason="its agent is gone"))
    }
    assert not any(member.is_needed for member in circle.members)


def test_a_link_that_breaks_is_made_again_and_what_was_said_meanwhile_arrives(circle: Circle) -> None:
    first = circle.members[0]
    assert first._link is not None
    first._link._socket.shutdown(socket.SHUT_RDWR)
    first.report(News(cause="rank"))
    circle.until(lambda: all(one.news is not None for one in circle.all))
    assert circle.hub.news == News(cause="rank")


def test_new_links_are_not_heard(circle: Circle) -> None:
    stranger = PeerLink(
        socket.create_connection(("127.0.0.1", circle.port)), tls_context(make_credentials(), False), server=False
    )
    silent = socket.create_connection(("127.0.0.1", circle.port))
    loud = socket.create_connection(("127.0.0.1", circle.port))
    loud.sendall(b'{"type":"join","node":2}\n{"type":"news","cause":"rank"}\n' * 100)
    stranger.send(Join(node=2))
    stranger.send(News(cause="rank"))

    def is_refused() -> bool:
        try:
            stranger.receive()
        except LinkClosed:
            return True
        return False

    circle.until(is_refused)
    circle.members[0].done()
    circle.until(lambda: circle.members[0].is_over)
    assert all(one.news is None for one in circle.all)
    stranger.close()
    silent.close()
    loud.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-host.invalid"])
def test_who_cannot_reach_the_hub_says_so(
    credentials: str, address: str, monkeypatch: pytest.MonkeyPatch, closed: socket.socket
) -> None:
    monkeypatch.setattr(peers_module, "JOIN_LIMIT_S", 6.0)
    member = Member(1, GRACE, tls_context(credentials, False), address, closed.getsockname()[1])
    reap(member)
    deadline = time.monotonic() + 60
    while member.verdict is None:
        assert time.monotonic() < deadline
        ready = select.select(list(member.events()), [], [], max(0.0, min(member.next() - time.monotonic(), 0.5)))[0]
        member.serve(set(ready))
    assert "refused" in member.verdict or "cannot be resolved" in member.verdict
    assert not member.is_needed
    member.close()


def test_who_says_nothing_costs_nothing_and_is_sent_away(circle: Circle) -> None:
    silent = socket.create_connection(("127.0.0.1", circle.port))
    turns = 0
    circle.until(lambda: len(circle.hub._new_links) == 1)
    (known,) = circle.hub._new_links.values()
    known.began -= GRACE

    def is_gone() -> bool:
        nonlocal turns
        turns += 1
        return not circle.hub._new_links

    circle.until(is_gone)
    assert turns < 50
    assert all(one.news is None for one in circle.all)
    silent.close()


def test_a_hub_that_takes_connections_and_says_nothing_is_lost(circle: Circle) -> None:
    circle.all.remove(circle.hub)  # as one that was stopped: the kernel goes on to take connections
    for member in circle.members:
        member._host_grace = SHORT_S
    circle.until(lambda: all(one.news is not None for one in circle.all))
    assert circle.members[0].news == News(cause="lost", lost=0, reason="silent for 0.5 s")
    circle.all.append(circle.hub)


def test_a_guest_that_never_heard_that_it_is_one_is_no_lost_host(credentials: str) -> None:
    alone = Circle(credentials, 0)
    link = PeerLink(
        socket.create_connection(("127.0.0.1", alone.port)), tls_context(credentials, server=False), server=False
    )
    link.send(Join(node=1))
    heard: list[object] = []
    alone.until(lambda: bool(heard.extend(link.receive()) or heard))
    link.close()
    alone.until(lambda: alone.hub._guests[1].link is None)
    assert not alone.hub.is_needed
    alone.hub._guests[1].ended_at -= GRACE
    alone.hub._beat_at = 0.0
    alone.hub.serve(set())
    assert alone.hub.news is None
    alone.hub.close()
