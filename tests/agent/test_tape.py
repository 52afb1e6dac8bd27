"""Tapes: whoever reads one, from wherever and whenever, gets every byte, or is told how many are missing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.agent.link import journal as module
from mesh.agent.link import journal_reader
from mesh.agent.link.journal import FACTS, Journal, journals, prune
from mesh.agent.link.journal_reader import JournalReader
from mesh.agent.link.outbox import Outbox
from mesh.agent.link.spool import Spool
from mesh.protocol.answers import Exited, Gone, Output, Started
from mesh.protocol.frames import Decoder, encode
from mesh.protocol.journal import JOURNAL_VERSION, About, read_about
from mesh.protocol.messages import VersionError


class Writer:
    """A tape, and what it should hold."""

    def __init__(self, directory: Path, limit: int = 10**9) -> None:
        self.directory = str(directory / "tape-run-0")
        self.journal = Journal(self.directory, limit, About())
        self.printed: dict[int, bytes] = {0: b"", 1: b""}
        self.exits = 0

    def output(self, rank: int, size: int) -> None:
        data = b"%d" % (size % 10) * size
        header = {"type": "output", "rank": rank, "stream": "stdout", "at": len(self.printed[rank])}
        self.printed[rank] += data
        self.journal.add_output(f"{rank}.stdout", len(self.printed[rank]), encode(header, data))
        self.journal.flush()

    def fact(self) -> None:
        self.exits += 1
        self.journal.add(Exited(rank=self.exits, time=0.0, code=0))
        self.journal.flush()

    def end(self) -> None:
        self.journal.add(Gone(left=[], stays=[]))
        self.journal.close()


class Reader:
    """A client that has some of it, and reads on."""

    def __init__(self, writer: Writer, have: dict[int, int]) -> None:
        self.have = {rank: have.get(rank, 0) for rank in writer.printed}
        self.got = {rank: writer.printed[rank][:count] for rank, count in self.have.items()}
        self.missing = dict.fromkeys(writer.printed, 0)
        self.facts: list[dict[str, Any]] = []
        self._playback = JournalReader(writer.directory, {f"{rank}.stdout": count for rank, count in self.have.items()})
        self._decoder = Decoder()

    def read(self) -> None:
        while self._playback:
            for header, data in self._decoder.feed(self._playback.take()):
                self._take(header, data)

    def finish(self) -> None:
        self.read()
        self._playback.end()
        self.read()
        assert self._playback.is_whole
        self._playback.close()

    def _take(self, header: dict[str, Any], data: bytes) -> None:
        if header["type"] != "output":
            self.facts.append(header)
            return
        rank, at = header["rank"], header["at"]
        self.missing[rank] += max(0, at - self.have[rank])
        self.got[rank] += data[max(0, self.have[rank] - at) :]
        self.have[rank] = max(self.have[rank], at + len(data))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 3000)
    monkeypatch.setattr(journal_reader, "READ_BYTES", 700)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("output"), st.integers(0, 1), st.integers(1, 900)),
        st.just(("fact", 0, 0)),
        st.tuples(st.just("comes"), st.integers(0, 3000), st.integers(0, 3000)),
        st.just(("reads", 0, 0)),
    ),
    max_size=120,
)


@given(steps=STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_readers_that_come_at_any_time_get_everything_once(
    small: None, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """ "comes" is a reader that has so many bytes of the two ranks already."""
    writer = Writer(tmp_path_factory.mktemp("tape"))
    readers = [Reader(writer, {})]
    for what, first, second in steps:
        if what == "output":
            writer.output(first, second)
        elif what == "fact":
            writer.fact()
        elif what == "comes":
            have = {0: min(first, len(writer.printed[0])), 1: min(second, len(writer.printed[1]))}
            readers.append(Reader(writer, have))
        else:
            for reader in readers:
                reader.read()
    writer.end()
    for reader in readers:
        reader.finish()
        assert reader.got == writer.printed
        assert reader.missing == {0: 0, 1: 0}
        assert [fact["rank"] for fact in reader.facts if fact["type"] == "exited"] == list(range(1, writer.exits + 1))


def test_beyond_its_limit_the_middle_is_missing_and_counted(small: None, tmp_path: Path) -> None:
    writer = Writer(tmp_path, limit=20_000)
    early = Reader(writer, {})
    for number in range(300):
        writer.output(number % 2, 400)
        if number % 50 == 0:
            writer.fact()
            early.read()
    writer.end()
    size = sum(path.stat().st_size for path in Path(writer.directory).iterdir() if path.name.isdigit())
    assert size <= 20_000 + 3000 + 1000
    late = Reader(writer, {})
    for reader in (late, early):
        reader.finish()
        assert [fact["rank"] for fact in reader.facts if fact["type"] == "exited"] == list(range(1, writer.exits + 1))
        for rank, printed in writer.printed.items():
            assert reader.missing[rank] + len(reader.got[rank]) == len(printed)
            assert printed.startswith(reader.got[rank][:400])
            assert printed.endswith(reader.got[rank][-400:])
    assert all(count > 30_000 for count in late.missing.values())


@pytest.mark.parametrize("limit", [1, 9000])
def test_the_last_words_stay_however_large_they_are(small: None, tmp_path: Path, limit: int) -> None:
    """Each output fills a piece, which is beyond the limit as soon as it is written."""
    writer = Writer(tmp_path, limit)
    for _ in range(10):
        writer.output(0, 3501)
    writer.end()
    assert len([path for path in Path(writer.directory).iterdir() if path.name.isdigit()]) <= 4
    reader = Reader(writer, {})
    reader.finish()
    assert reader.missing[0] + len(reader.got[0]) == len(writer.printed[0])
    assert reader.missing[0] >= 6 * 3501
    assert reader.got[0].endswith(writer.printed[0][-3501:])


def test_what_a_full_disk_has_no_room_for_is_missing_and_how_it_ended_is_not(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    writer.output(0, 500)
    reader = Reader(writer, {})
    reader.read()
    with monkeypatch.context() as patched:
        patched.setattr(module, "_write", lambda descriptor, size, data: False)
        writer.output(0, 600)
        writer.fact()
        reader.read()
    writer.output(0, 700)
    writer.end()
    reader.finish()
    assert reader.missing == {0: 600, 1: 0}
    assert reader.got[0] == writer.printed[0][:500] + writer.printed[0][1100:]
    assert [fact["type"] for fact in reader.facts] == ["exited", "gone"]


@pytest.mark.root
def test_a_tape_that_cannot_be_begun_leaves_nothing(tiny_disk: Path) -> None:
    full = tiny_disk / "full"
    with contextlib.suppress(OSError), full.open("wb", 0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError, match="No space"):
        Journal(str(tiny_disk / "tape"), 1, About(about={"command": "x" * 9000}))
    full.unlink()
    Journal(str(tiny_disk / "tape"), 1, About()).close()


def test_a_client_that_leaves_loses_nothing_of_what_it_had_not_acknowledged(tmp_path: Path) -> None:
    """What is in the window, in memory and in files of the spool goes to the tape, in order."""
    outbox = Outbox(Spool(str(tmp_path / "spool"), 10**9))
    outbox.channel = -1
    data = [bytes([65 + number % 26]) * 50_000 for number in range(100)]
    outbox.send(Started(rank=0, pid=1, time=0.0))
    for one in data[:60]:
        outbox.send(Output(rank=0, stream="stdout"), one)
    journal = Journal(str(tmp_path / "tape-run-0"), 10**9, About())
    outbox.part(journal)
    for one in data[60:]:
        outbox.send(Output(rank=0, stream="stdout"), one)
        outbox.move()
        journal.flush()
    outbox.send(Gone(left=[], stays=[]))
    outbox.close()
    playback = JournalReader(str(tmp_path / "tape-run-0"), {})
    got, decoder = b"", Decoder()
    while playback:
        got += b"".join(part for header, part in decoder.feed(playback.take()) if header["type"] == "output")
    playback.close()
    assert got == b"".join(data)
    assert not (tmp_path / "spool").exists()


def test_what_a_spool_had_left_out_before_the_client_left_is_told_once(tmp_path: Path) -> None:
    """By where the next output begins, as all that a tape lacks."""
    outbox = Outbox(Spool(str(tmp_path / "spool"), 1_000_000))
    outbox.channel = -1
    for _ in range(100):
        outbox.send(Output(rank=0, stream="stdout"), bytes(50_000))
    journal = Journal(str(tmp_path / "tape-run-0"), 10**9, About())
    outbox.part(journal)
    outbox.send(Exited(rank=0, time=0.0, code=0))
    outbox.send(Gone(left=[], stays=[]))
    outbox.close()
    playback = JournalReader(str(tmp_path / "tape-run-0"), {})
    frames = []
    while playback:
        frames += Decoder().feed(playback.take())
    playback.close()
    assert {header["type"] for header, _ in frames} == {"output", "exited", "gone"}
    places = [(header["at"], len(data)) for header, data in frames if header["type"] == "output"]
    missing = sum(at - before - size for (before, size), (at, _) in itertools.pairwise(places))
    assert missing > 0
    assert missing + sum(size for _, size in places) == 5_000_000


def test_tapes_that_are_old_or_too_many_go_and_those_that_were_read_go_first(tmp_path: Path) -> None:
    now = time.time()
    for name, age, size, is_read in (
        ("a", 40, 10, False),
        ("b", 8, 10, True),
        ("c", 3, 5000, False),
        ("d", 2, 5000, True),
        ("e", 1, 5000, False),
    ):
        place = tmp_path / f"tape-{name}-0"
        place.mkdir()
        (place / FACTS).write_bytes(b"x" * size)
        (place / "about.json").write_text("{}")
        if is_read:
            (place / "fetched").touch()
        os.utime(place / FACTS, (now - age * 86400, now - age * 86400))
    prune(str(tmp_path), 20_000)
    assert [journal.run for journal in journals(str(tmp_path))] == ["c", "d", "e"]
    prune(str(tmp_path), 11_000)
    assert [journal.run for journal in journals(str(tmp_path))] == ["c", "e"]


def test_a_journal_carries_its_version_and_one_without_is_the_first(tmp_path: Path) -> None:
    Journal(str(tmp_path / "tape-run-0"), 1, About(boot="b")).close()
    written = json.loads((tmp_path / "tape-run-0" / "about.json").read_text())
    assert read_about(written) == About(journal=JOURNAL_VERSION, boot="b")
    assert read_about({"about": {}, "plan": {}, "boot": "b", "cgroup": ""}).journal == 0
    with pytest.raises(VersionError) as refused:
        read_about({"journal": JOURNAL_VERSION + 1})
    assert refused.value.hint
