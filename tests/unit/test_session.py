"""The messages that a session sends, and how many bytes at once."""

from __future__ import annotations

import itertools
import re
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.agent.process.notes import NO_NOTES
from mesh.core.errors import HostUnreachable
from mesh.core.events import Connected, Event, Lost, Reconnected, Reconnecting
from mesh.core.interfaces import Farewell
from mesh.protocol.frames import Decoder, encode
from mesh.protocol.messages import PROTOCOL_VERSION
from mesh.protocol.requests import RankStart
from mesh.remote.blob import opening
from mesh.remote.callbacks import Callbacks
from mesh.remote.sender import PIECE_BYTES
from mesh.remote.session import Session
from tests.firsts import first_request

BEGIN = first_request(run="r", remote_dir="~/.mesh")
HELLO = {"type": "hello", "protocol": PROTOCOL_VERSION, "time": time.time(), "machine": "m"}


class Recorder:
    """A channel that notes what it is to send; what it receives is given."""

    def __init__(self, *told: bytes) -> None:
        self.sent: list[bytes] = []
        self._told = list(told)

    def send(self, data: bytes) -> None:
        if data:
            self.sent.append(data)

    def receive(self) -> bytes:
        return self._told.pop(0) if self._told else b""

    def farewell(self) -> Farewell:
        return Farewell(status=0, stderr=b"")

    def close(self, *, leave: bool = False) -> None: ...


def session(channel: Recorder) -> Session:
    return Session(0, 0, channel)


@given(
    changes=st.integers(1, 3 * PIECE_BYTES),
    pack=st.none() | st.integers(0, 3 * PIECE_BYTES) | st.sampled_from([PIECE_BYTES, 2 * PIECE_BYTES]),
)
def test_a_workspace_travels_in_few_pieces_and_none_is_large(changes: int, pack: int | None) -> None:
    """An order waits behind one of them; each one costs a packet."""
    channel = Recorder()
    with tempfile.TemporaryFile() as file:
        file.write(b"p" * (pack or 0))
        file.flush()
        told = session(channel)
        told.send_changes(b"c" * changes, attempt=0, fresh=False, pack=-1 if pack is None else file.fileno())
    sizes = [len(data) for data in channel.sent]
    frames = Decoder().feed(b"".join(channel.sent))
    assert all(size <= PIECE_BYTES + 200 for size in sizes)
    assert all(one + other > PIECE_BYTES for one, other in itertools.pairwise(sizes))
    assert b"".join(data for header, data in frames if header["type"] == "changes") == b"c" * changes
    assert b"".join(data for header, data in frames if header["type"] == "pack") == b"p" * (pack or 0)
    assert [bool(header.get("last")) for header, _ in frames] == [*[False] * (len(frames) - 1), True]
    assert told.sent == changes + (pack or 0)


def begun(*told: bytes) -> tuple[Recorder, Session]:
    """Return a session whose agent has greeted and then sends this."""
    channel = Recorder()
    talk = session(channel)
    talk._marker, talk._sender.has_begun, talk._is_greeted = "marker", True, True
    channel._told = [b"\nmarker\n", *told]
    return channel, talk


@pytest.mark.parametrize(
    ("told", "is_sent"),
    [
        pytest.param(encode({"type": "gone", "left": [], "stays": []}), False, id="it has gone"),
        pytest.param(b"", True, id="it is there"),
    ],
)
def test_a_goodbye_is_sent_only_to_an_agent_that_is_there(told: bytes, is_sent: bool) -> None:
    channel, talk = begun(told)
    if told:
        list(talk.events())
    channel.sent.clear()
    talk.leave()
    assert channel.sent == [encode({"type": "bye"})] * is_sent


def test_an_agent_without_a_first_request_gets_no_goodbye() -> None:
    channel = Recorder()
    talk = session(channel)
    talk.leave()
    talk.begin(BEGIN)
    assert channel.sent == []


def test_nothing_is_sent_ahead_of_the_program_that_the_interpreter_runs() -> None:
    """A watchdog beats to every host, also to one whose first request is still being made; Ctrl-C may come then too."""
    channel = Recorder()
    talk = session(channel)
    talk.beat()
    talk.finish(15, 5.0)
    assert channel.sent == []
    talk.begin(BEGIN)
    (first,) = channel.sent
    assert first.startswith(opening())
    assert [header["type"] for header, _ in Decoder().feed(first[len(opening()) :])] == ["begin", "finish"]


def test_a_beat_was_not_under_way_while_its_answer_was_held_back() -> None:
    sent = time.time() - 1000.0
    channel, talk = begun(encode({"type": "beat", "echo": sent, "time": sent + 0.5, "orders": 0, "held": 999.0}))
    list(talk.events())
    assert 1.0 <= talk.round_trip < 999.0
    assert channel.sent == []


def test_a_host_that_breaks_the_protocol_gets_a_goodbye_at_once() -> None:
    channel, talk = begun(b"nonsense\n")
    (event,) = talk.events()
    assert isinstance(event, Lost)
    assert "protocol" in event.reason
    assert channel.sent == [encode({"type": "bye"})]


class Answering(Recorder):
    """A channel to an agent that greets with the marker that it was sent, then says these messages, and ends."""

    def __init__(self, *messages: dict[str, object]) -> None:
        super().__init__()
        self._messages = messages

    def receive(self) -> bytes:
        found = re.search(rb'"marker":"(\w+)"', b"".join(self.sent))
        if found is None or not self._messages:
            return b""
        frames, self._messages = b"".join(map(encode, self._messages)), ()
        return b"\n%s\n" % found[1] + frames

    def farewell(self) -> Farewell:
        return Farewell(status=None, stderr=b"")  # the connection broke


ATTACHED: dict[str, object] = {"type": "attached", "orders": 1}


def talk(*channels: Answering) -> list[Event]:
    """Start a rank through the first channel; return the events of all channels."""
    left = iter(channels)
    one = Session(0, 0, next(left), Callbacks(reopen=lambda: next(left, None)))
    one.begin(BEGIN)
    one.start(["true"], [RankStart(rank=0, env={}, stdin=False)])
    return list(one.events())


def test_a_second_message_that_a_channel_is_attached_changes_nothing() -> None:
    """The first one was for a channel that broke before it was delivered."""
    events = talk(Answering(HELLO), Answering(ATTACHED, ATTACHED))
    assert [type(event) for event in events] == [Connected, Reconnecting, Reconnected, Reconnecting, Lost]
    assert "could not be reached again" in events[-1].reason  # type: ignore[attr-defined]


def test_a_host_that_was_offered_no_channel_attaches_none() -> None:
    *_, last = talk(Answering(HELLO, ATTACHED))
    assert isinstance(last, Lost)
    assert last.reason == "does not speak our protocol: attached: no channel was offered"


NO_AGENT: dict[str, object] = {"type": "no-agent", "left": [NO_NOTES]}


def lose(
    last: Answering | None, away_s: float, *misses: HostUnreachable, given_up: str = "", why: str = ""
) -> tuple[Lost, list[str]]:
    """Return the end of a host whose connection was away; last: the channel that comes then, if any does.

    why: what the backend has; the other value: how often it was asked
    """
    asked: list[str] = []

    def known() -> str:
        asked.append(why)
        return why

    left = iter([Answering(HELLO)])
    one = Session(0, 0, next(left), Callbacks(reopen=lambda: last, why=known))
    one.begin(BEGIN.replaced(return_within=30.0))
    one.start(["true"], [RankStart(rank=0, env={}, stdin=False)])
    events = one.events()
    assert [type(next(events)) for _ in range(2)] == [Connected, Reconnecting]
    assert one.absence.began is not None
    one.absence.began -= away_s
    for miss in misses:
        one.absence.miss(miss)
    if given_up:
        one.give_up(given_up)
    (lost,) = events
    assert isinstance(lost, Lost)
    return lost, asked


API_AWAY = HostUnreachable("the API server was away (https://k: no answer)", step="api")
NO_ROUTE = HostUnreachable("no route to host")


def test_an_agent_that_its_client_has_left_alone_for_too_long_was_not_killed() -> None:
    lost, _ = lose(Answering(NO_AGENT), 40.0)
    assert lost.reason == "the client was away for 40 s, and its agent waits 30 s"
    assert (lost.killed_by, lost.is_clear, lost.is_cut, lost.return_within) == ("", True, False, 30.0)


def test_the_reason_of_a_late_return_is_the_api_server_whatever_came_later() -> None:
    """A server that has just started may refuse what it grants a moment later."""
    lost, asked = lose(
        Answering(NO_AGENT), 33.0, NO_ROUTE, API_AWAY, HostUnreachable("pod p: forbidden", step="rights")
    )
    assert lost.reason == f"{API_AWAY} (the client was away for 33 s, and its agent waits 30 s)"
    assert lost.is_clear
    assert asked == []  # which may take seconds


@pytest.mark.parametrize("given_up", ["", "silent for 60 s"])
def test_a_client_that_never_comes_back_names_the_api_server(given_up: str) -> None:
    lost, _ = lose(None, 60.0, API_AWAY, given_up=given_up)
    assert lost.reason == f"{API_AWAY} (the client was away for 60 s, and its agent waits 30 s)"
    assert (lost.is_clear, lost.is_cut, lost.return_within) == (False, True, 30.0)


@pytest.mark.parametrize(
    ("away_s", "miss", "given_up", "reason"),
    [
        (60.0, NO_ROUTE, "", "the pod was deleted (the connection ended, and it could not be reached again)"),
        (60.0, NO_ROUTE, "silent for 60 s", "the pod was deleted (silent for 60 s)"),
        (20.0, API_AWAY, "silent for 60 s", "the pod was deleted (silent for 60 s)"),
        (60.0, API_AWAY, "given up", "given up"),
    ],
)
def test_a_host_that_is_not_reached_is_lost_for_another_reason(
    away_s: float, miss: HostUnreachable, given_up: str, reason: str
) -> None:
    lost, _ = lose(None, away_s, miss, given_up=given_up, why="the pod was deleted")
    assert (lost.reason, lost.return_within, lost.is_cut) == (reason, 0.0, True)


def test_an_agent_that_was_killed_is_gone() -> None:
    *_, lost = talk(Answering(HELLO), Answering(NO_AGENT))
    assert isinstance(lost, Lost)
    assert lost.reason.startswith("its agent is gone, and left there perhaps processes")
    assert lost.killed_by == "a signal"
