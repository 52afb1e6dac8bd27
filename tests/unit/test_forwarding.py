"""Streams that share a connection, and the ports of this machine that lead to them."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.agent.forward import debugging
from mesh.agent.forward.forwarding import _Debugged
from mesh.agent.forward.streams import Connection
from mesh.agent.loop import Loop
from mesh.app.console import Consoles
from mesh.app.listening import listen
from mesh.config.forwarding import read_forwarded
from mesh.core.cluster import Host
from mesh.core.errors import UsageError
from mesh.core.forwarding import Forwarded
from mesh.protocol.forwarding import STREAM_WINDOW_BYTES, Carry, Waiting
from mesh.protocol.messages import encode

SMALL, LARGE = 1, 4 << 20
TURNS = 2000


class Pair:
    """Two ends of a connection in one loop; each stream has a program at either end."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self.loop, self._held = Loop(), held
        self.wires = socket.socketpair()
        for wire in self.wires:
            held.enter_context(wire)
        self.near, self.far = (Connection(self.loop, wire.fileno(), wire.fileno()) for wire in self.wires)
        held.callback(self.near.close)
        held.callback(self.far.close)

    def stream(self, number: int) -> tuple[socket.socket, socket.socket]:
        """Return the sockets of the two programs."""
        programs = []
        for end in (self.near, self.far):
            own, program = socket.socketpair()
            for one in (own, program):
                self._held.enter_context(one)
                one.setblocking(False)
            end.add(number, own, 0)  # type: ignore[arg-type]
            programs.append(program)
        return programs[0], programs[1]

    def turn_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(TURNS):
            if condition():
                return
            self.loop.at("next", 0.0, lambda: None)
            self.loop.turn()
        raise AssertionError("it does not come about")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as held:
        yield Pair(held)


def read(program: socket.socket, into: bytearray) -> bool:
    """Read what is there; return True at the end."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data = program.recv(1 << 16)
            if not data:
                return True
            into += data
    return False


def send(program: socket.socket, data: bytes) -> int:
    """Send what goes; return how much that was."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < len(data):
            sent += program.send(data[sent : sent + (1 << 16)])
    return sent


def test_a_stream_without_a_reader_stops_at_its_window_and_others_go_on(pair: Pair) -> None:
    sender, _ = pair.stream(1)
    other, its_reader = pair.stream(2)
    sent, came, text = 0, bytearray(), bytes(range(256)) * (LARGE >> 8)
    given = 0

    def all_came() -> bool:
        nonlocal sent, given
        sent += send(sender, b"x" * LARGE)
        given += send(other, text[given:])
        read(its_reader, came)
        return len(came) == len(text)

    pair.turn_until(all_came)
    assert bytes(came) == text
    waiting = sum(map(len, pair.far.streams[1].waiting))
    assert 0 < waiting <= STREAM_WINDOW_BYTES


def test_each_direction_ends_by_itself(pair: Pair) -> None:
    one, other = pair.stream(1)
    one.sendall(b"question")
    one.shutdown(socket.SHUT_WR)
    came = bytearray()
    pair.turn_until(lambda: read(other, came))
    assert came == b"question"
    other.sendall(b"answer")
    other.shutdown(socket.SHUT_WR)
    came = bytearray()
    pair.turn_until(lambda: read(one, came))
    assert came == b"answer"
    pair.turn_until(lambda: not pair.near.streams and not pair.far.streams)


def test_the_end_of_the_connection_breaks_all_streams(pair: Pair) -> None:
    pair.stream(1)
    ended = []
    pair.far.on_end = lambda: ended.append("far")
    pair.near.close()
    pair.wires[0].shutdown(socket.SHUT_RDWR)
    pair.turn_until(lambda: pair.far.is_over)
    assert (pair.far.streams, ended) == ({}, ["far"])


def test_a_stream_that_comes_after_the_end_of_its_connection_is_cut(pair: Pair) -> None:
    pair.near.close()
    own, program = socket.socketpair()
    with own, program:
        pair.near.connect(1, own, 80)
        program.settimeout(60)
        assert (program.recv(1), pair.near.streams) == (b"", {})


def test_a_rank_that_was_left_is_shown_at_its_next_stop() -> None:
    consoles = Consoles(None, None, "run", list)  # type: ignore[arg-type]  # it shows nothing here
    stopped, nothing = Waiting(ranks=[2], asked=[]), Waiting(ranks=[], asked=[])
    shown = []
    consoles._left.add(2)
    for waiting in (nothing, stopped, nothing, stopped, stopped):
        consoles.note(0, waiting)
        shown.append(consoles._stopped.qsize())
    assert shown == [0, 0, 0, 1, 1]


def test_a_rank_that_stops_again_between_two_looks_is_reported_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="mesh-") as place:
        monkeypatch.setattr(debugging, "directory", lambda run, node: place)
        path, came = os.path.join(place, f"2-{os.getpid()}"), []
        pair.near.on_other = came.append
        debugged = _Debugged(pair.loop, pair.far, "run", 0)
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, path + ".old")
            Path(path).touch()
            debugged.look()
        pair.turn_until(lambda: len(came) == 3)
        assert [list(one.ranks) for one in came if isinstance(one, Waiting)] == [[2], [], [2]]


def test_an_end_that_sends_more_than_the_window_is_left(pair: Pair) -> None:
    pair.stream(1)
    frame, sent = encode(Carry(stream=1), b"x" * (1 << 16)), 0

    def is_over() -> bool:
        nonlocal sent
        if not pair.far.is_over and sent < 100:
            with contextlib.suppress(BlockingIOError):
                pair.wires[0].sendall(frame)
                sent += 1
        return pair.far.is_over

    pair.turn_until(is_over)


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "80:", ":80", "a:80", "80:0", "1:2:3", "-1", "８０"])
def test_a_port_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        read_forwarded("--forward", text)


def test_ports_count_up_and_a_taken_one_is_replaced() -> None:
    hosts = tuple(Host(name=f"h{number}", address="h") for number in range(3))
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        places = listen(hosts, [Forwarded(local=taken - 1, remote=80)])
        try:
            numbers = [place.listener.getsockname()[1] for place in places]
            assert [place.host for place in places] == ["h0", "h1", "h2"]
            assert places[1].told.endswith(f":{numbers[1]}  ({taken} is taken)")
            assert numbers[1] not in (0, taken)
            # The neighbours may be other programs' as well.
            assert all(place.instead or numbers[index] == taken - 1 + index for index, place in enumerate(places))
        finally:
            for place in places:
                place.close()


def test_a_port_of_this_machine_itself_is_left_to_the_host() -> None:
    hosts = tuple(Host(name=f"h{number}", address="h") for number in range(3))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    places = listen(hosts, [Forwarded(local=free, remote=free)], without={0}, here={1})
    try:
        assert [place.host for place in places] == ["h1", "h2"]
        assert free not in [place.listener.getsockname()[1] for place in places]
    finally:
        for place in places:
            place.close()
    places = listen(hosts[:1], [Forwarded(local=free, remote=free)], here={0})
    try:
        assert places[0].told.endswith(f"  ({free} is the host's own port)")
    finally:
        places[0].close()
