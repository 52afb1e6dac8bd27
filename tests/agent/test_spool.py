"""The spool and the outbox: what waits for the client comes whole and in order, or is counted."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.agent.link import spool as module
from mesh.agent.link.outbox import WINDOW_BYTES, Outbox, output_frame
from mesh.agent.link.spool import Spool
from mesh.protocol import messages
from mesh.protocol.answers import Beat, Gone, Notice, Output, Started
from mesh.protocol.frames import Decoder, encode

BEAT = Beat(echo=1.0, time=2.0, orders=3)


def output(number: int, size: int) -> bytes:
    return encode({"type": "output", "rank": 0, "stream": "stdout"}, b"%d:" % number + b"x" * size)


def test_a_frame_of_output_is_that_of_its_message() -> None:
    for data in (b"", b"some"):
        message = Output(rank=3, stream="stderr", at=1 << 40)
        assert output_frame(message, 1 << 40, data) == messages.encode(message, data)


def frames(data: bytes) -> list[tuple[dict[str, object], bytes]]:
    return Decoder().feed(data)


def everything(spool: Spool) -> bytes:
    found = b""
    while spool:
        found += spool.take()
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 2000)
    monkeypatch.setattr(module, "MEMORY_BYTES", 5000)


@given(st.lists(st.one_of(st.integers(0, 900), st.none()), max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_whatever_is_taken_when_it_comes_whole_and_in_order(
    small: None, tmp_path: Path, steps: list[int | None]
) -> None:
    """A number adds a frame of that size, None takes."""
    spool = Spool(str(tmp_path / "spool"), 10**9)
    added, found = b"", b""
    for number, size in enumerate(steps):
        if size is None:
            found += spool.take()
        else:
            added += output(number, size)
            spool.add(output(number, size))
    found += everything(spool)
    assert found == added
    spool.close()
    assert not (tmp_path / "spool").exists()


def test_beyond_its_limit_head_and_tail_are_kept_and_the_rest_is_counted(small: None, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 10_000)
    for number in range(500):
        spool.add(output(number, 100))
        if number == 250:
            spool.add(encode({"type": "exited", "rank": 1}))
    assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) <= 12_000
    found = frames(everything(spool))
    numbers = [int(data.partition(b":")[0]) for header, data in found if header["type"] == "output"]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (0, 499)
    (gap,) = [header for header, _ in found if header["type"] == "left-out"]
    missing = set(range(500)) - set(numbers)
    assert gap["bytes"] == sum(len(b"%d:" % number) + 100 for number in missing) > 20_000
    assert ({"type": "exited", "rank": 1}, b"") in found
    spool.close()


def test_a_full_disk_is_a_gap_and_no_failure(small: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(str(tmp_path / "file" / "spool"), 10**9)
    for number in range(200):
        spool.add(output(number, 100))
    found = frames(everything(spool))
    assert found[0][1].startswith(b"0:")
    (gap,) = [header for header, _ in found if header["type"] == "left-out"]
    numbers = {int(data.partition(b":")[0]) for header, data in found if header["type"] == "output"}
    assert gap["bytes"] == sum(len(b"%d:" % number) + 100 for number in set(range(200)) - numbers)


@given(st.lists(st.tuples(st.integers(1, 300_000), st.booleans()), min_size=1, max_size=40), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_a_stream_over_many_channels_has_no_gap_and_nothing_twice(
    tmp_path: Path, sizes: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Channels end at any byte; the next one begins after the last whole frame that the client has."""
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    pipe = Pipe()
    outbox.channel = pipe.writer
    got: list[int] = []
    try:
        for number, (size, cut) in enumerate(sizes):
            outbox.send(Output(rank=0, stream="stdout"), b"%d:" % number + b"x" * size)
            outbox.flush()
            got += pipe.receive(data.draw(st.integers(0, 200_000)))
            if cut:
                pipe.close()
                pipe = Pipe(pipe.place)
                outbox.go_on(pipe.writer, pipe.place)
            elif data.draw(st.booleans()):
                outbox.acknowledge(pipe.place)
        for _ in range(10_000):
            outbox.flush()
            got += pipe.receive(1 << 20)
            outbox.acknowledge(pipe.place)
            if outbox.is_acknowledged:
                break
    finally:
        pipe.close()
        outbox.close()
    assert got == list(range(len(sizes)))


def test_nobody_waits_for_what_comes_behind_the_last_word(tmp_path: Path) -> None:
    """The client does not acknowledge a beat, and may have left when it comes."""
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    pipe = Pipe()
    outbox.channel = pipe.writer
    try:
        outbox.send(Gone(left=[], stays=[]))
        assert not outbox.is_acknowledged
        outbox.flush()
        end = outbox.places[1]
        assert not outbox.is_acknowledged
        outbox.send_urgently(BEAT)
        outbox.acknowledge(end - 1)
        assert not outbox.is_acknowledged
        outbox.acknowledge(end)
        assert outbox.is_acknowledged
        outbox.flush()
        assert outbox.is_acknowledged
        outbox.send(Notice(text="", seconds=0.0))
        assert not outbox.is_acknowledged
    finally:
        pipe.close()
        outbox.close()


def test_what_is_little_goes_out_in_one_write(tmp_path: Path) -> None:
    """Each is a packet of sshd's, and wakes two of its processes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps writes apart
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    outbox.channel = ours.fileno()
    with ours, theirs:
        outbox.precede(b"\nmarker\n")
        outbox.send(Started(rank=0, pid=1, time=0.0))
        outbox.send(Output(rank=0, stream="stdout"), b"all")
        outbox.answer(BEAT, time.monotonic())
        assert outbox.flush()
        assert outbox.places == (0, outbox.places[1])
        marker, told = theirs.recv(65536).split(b"\n", 2)[1:]
        assert marker == b"marker"
        assert len(told) == outbox.places[1]
        (beat, _), (started, _), (_, data) = frames(told)
        assert (beat["type"], started["type"], data) == ("beat", "started", b"all")
        assert isinstance(beat["held"], float)
        assert beat["held"] >= 0
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    outbox.close()


def test_another_channel_brings_many_small_frames(tmp_path: Path) -> None:
    """More than one call of writev(2) takes."""
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    first, second = Pipe(), Pipe()
    try:
        outbox.channel = first.writer
        for number in range(3000):
            outbox.send(Output(rank=0, stream="stdout"), b"%d:" % number)
            assert outbox.flush()
            first.receive(1 << 20)
        outbox.go_on(second.writer, 0)
        found: list[int] = []
        while outbox:
            assert outbox.flush()
            found += second.receive(1 << 20)
        assert found == list(range(3000))
    finally:
        first.close()
        second.close()
        outbox.close()


class Pipe:
    """A channel, and the client at its end."""

    def __init__(self, place: int = 0) -> None:
        self._reader, self.writer = os.pipe()
        for descriptor in (self._reader, self.writer):
            os.set_blocking(descriptor, False)
        self._decoder, self._begin, self.place = Decoder(), place, place

    def receive(self, most: int) -> list[int]:
        """The numbers of what came in at most so many bytes."""
        found: list[int] = []
        while most > 0:
            try:
                chunk = os.read(self._reader, min(most, 65536))
            except BlockingIOError:
                break
            most -= len(chunk)
            found += [int(data.partition(b":")[0]) for _, data in self._decoder.feed(chunk) if data]
            self.place = self._begin + self._decoder.consumed
        return found

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.writer)


def test_urgent_frames_pass_what_waits(tmp_path: Path) -> None:
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    pipe = Pipe()
    outbox.channel = pipe.writer
    try:
        for number in range(100):
            outbox.send(Output(rank=0, stream="stdout"), b"%d:" % number + b"x" * 50_000)
        found: list[int] = []
        while outbox:
            outbox.flush()
            found += pipe.receive(1 << 20)
        assert outbox.is_behind  # the client has acknowledged nothing
        outbox.send_urgently(BEAT)
        outbox.flush()
        before = pipe.place
        assert pipe.receive(1 << 20) == []
        assert pipe.place == before + len(messages.encode(BEAT))
        assert found == list(range(len(found)))
        assert WINDOW_BYTES <= before <= WINDOW_BYTES + 400_000
    finally:
        pipe.close()
        outbox.close()
