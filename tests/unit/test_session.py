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
from mesh.core.events import Connected, Event, Lost, Reconnected, Reconnecting
from mesh.core.interfaces import Farewell
from mesh.protocol.frames import Decoder, encode
from mesh.protocol.messages import PROTOCOL_VERSION
from mesh.protocol.requests import RankStart
from mesh.remote.sender import PIECE_BYTES
from mesh.remote.session import Callbacks, Session
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


def test_an_agent_that_its_client_has_left_alone_for_too_long_was_not_killed() -> None:
    late = Answering(NO_AGENT)
    left = iter([Answering(HELLO), late])
    one = Session(0, 0, next(left), Callbacks(reopen=lambda: next(left, None)))
    one.begin(BEGIN.replaced(return_within=30.0))
    one.start(["true"], [RankStart(rank=0, env={}, stdin=False)])
    events = one.events()
    assert [type(next(events)) for _ in range(2)] == [Connected, Reconnecting]
    one._cut_at -= 40.0
    (lost,) = events
    assert isinstance(lost, Lost)
    assert lost.reason == "the connection was away for 40 s, and its agent ends the run after 30 s without a client"
    assert (lost.killed_by, lost.is_clear) == ("", True)


def test_an_agent_that_was_killed_is_gone() -> None:
    *_, lost = talk(Answering(HELLO), Answering(NO_AGENT))
    assert isinstance(lost, Lost)
    assert lost.reason.startswith("its agent is gone, and left there perhaps processes")
    assert lost.killed_by == "a signal"
