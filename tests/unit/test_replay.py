"""The output of a run, read back: what came, in the order in which it came, whatever is cut off."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Output, Started, Stream
from mesh.core.masking import Masker, Secrets
from mesh.core.nodes import Arrived, Restarted
from mesh.core.outcome import Cause, Outcome
from mesh.rundir.grep import MATCH_CHARACTERS, LineFilter, matches
from mesh.rundir.layout import INDEX, RECORD
from mesh.rundir.records import State, read_record
from mesh.rundir.replay import Replay
from mesh.rundir.resuming import read_left
from mesh.rundir.writer import INDEX_MERGE_S, StoreSink
from tests.full import times
from tests.specs import spec_of

RUN = "20261121-101500-3f9c2a"
PLACEMENT = place_ranks([Host(name=name, address="") for name in "abc"], (2, 2, 2))
BOTH = (Stream.STDOUT, Stream.STDERR)
EFFORT = settings(max_examples=times(25, full=50), deadline=None)
# (rank, stream, size, seconds since the one before)
CHUNKS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(BOTH), st.integers(1, 300), st.floats(0, 1)), max_size=60
)


def store_in(directory: Path, logs: int = 10**9) -> StoreSink:
    spec = spec_of(run=RUN, project="p", workspace=Path("/w"), command=("x",), nproc=2, logs=logs)
    return StoreSink(directory=directory / RUN, spec=spec, cluster_name="pod", placement=PLACEMENT)


def outputs_of(chunks: Sequence[tuple[int, Stream, int, float]]) -> list[Output]:
    now, made = 1000.0, []
    for number, (rank, stream, size, pause) in enumerate(chunks):
        now += pause
        data = (b"%d." % number * size)[: size - 1] + b"\n"
        made.append(Output(time=now, node=rank // 2, rank=rank, stream=stream, data=data))
    return made


def end(sink: StoreSink) -> None:
    sink.close()
    sink.finish(Outcome(run=RUN, exit_code=0, cause=Cause.COMPLETED, started=1.0, ended=2.0))


def replayed(directory: Path, *, rest: bool = True, **chosen: object) -> list[Output]:
    replay = Replay(read_record(directory / RUN), **{"streams": BOTH, **chosen})  # type: ignore[arg-type]
    try:
        return [*replay.advance(), *(replay.rest() if rest else ())]
    finally:
        replay.close()


def by_log(outputs: Sequence[Output]) -> dict[tuple[int, Stream], bytes]:
    found: dict[tuple[int, Stream], bytes] = {}
    for one in outputs:
        key = one.rank, one.stream
        found[key] = found.get(key, b"") + one.data
    return found


def merged(outputs: Sequence[Output]) -> list[tuple[int, Stream, bytes]]:
    """In their order, with neighbours of one log as one."""
    groups = groupby(outputs, key=lambda one: (one.rank, one.stream))
    return [(*key, b"".join(one.data for one in group)) for key, group in groups]


@EFFORT
@given(CHUNKS)
def test_it_comes_back_in_its_order(chunks: list[tuple[int, Stream, int, float]]) -> None:
    outputs = outputs_of(chunks)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sink = store_in(directory)
        for number, output in enumerate(outputs):
            sink.handle(output)
            if number % 7 == 0:
                sink.idle()
        end(sink)
        assert merged(replayed(directory, rest=False)) == merged(outputs)
        some = replayed(directory, ranks={1, 4}, streams=(Stream.STDERR,))
        assert merged(some) == merged([o for o in outputs if o.rank in (1, 4) and o.stream is Stream.STDERR])


def test_the_prerun_of_each_host_comes_back_after_a_rank_has_moved(tmp_path: Path) -> None:
    hosts = [Host(name=name, address="") for name in ("a", "b", "spare")]
    spec = spec_of(run=RUN, command=("x",), spares=1)
    sink = StoreSink(directory=tmp_path / RUN, spec=spec, cluster_name="pod", placement=spec.placed(hosts))
    said = [(0, 0, b"on a\n"), (1, 1, b"on b, in more words\n"), (spec.placed(hosts).first(2), 2, b"on spare\n")]
    for rank, node, data in said:
        sink.handle(Output(time=1000.0 + node, node=node, rank=rank, stream=Stream.PRERUN, data=data))
    sink.handle(Output(time=1010.0, node=1, rank=1, stream=Stream.STDOUT, data=b"before\n"))
    sink.handle(Restarted(time=1011.0, node=2, rank=1, attempt=1, pid=7))
    sink.handle(Output(time=1012.0, node=2, rank=1, stream=Stream.STDOUT, data=b"after\n"))
    sink.close()
    sink.finish(Outcome(run=RUN, exit_code=0, cause=Cause.COMPLETED, started=1.0, ended=2.0, moved=((1, 2),)))
    found = by_log(replayed(tmp_path, streams=(Stream.STDOUT, Stream.PRERUN)))
    assert found == {
        (0, Stream.PRERUN): b"on a\n",
        (1, Stream.PRERUN): b"on b, in more words\n",
        (1, Stream.STDOUT): b"before\nafter\n",
        (spec.placed(hosts).first(2), Stream.PRERUN): b"on spare\n",
    }


def test_more_records_than_are_read_together(tmp_path: Path) -> None:
    outputs = outputs_of([(number % 6, Stream.STDOUT, 5, 0.1) for number in range(20_000)])
    sink = store_in(tmp_path)
    for output in outputs:
        sink.handle(output)
    end(sink)
    assert merged(replayed(tmp_path, rest=False)) == merged(outputs)


@EFFORT
@given(CHUNKS, st.floats(0, 30))
def test_since(chunks: list[tuple[int, Stream, int, float]], after: float) -> None:
    outputs = outputs_of(chunks)
    with tempfile.TemporaryDirectory() as name:
        sink = store_in(Path(name))
        for output in outputs:
            sink.handle(output)
        end(sink)
        found = by_log(replayed(Path(name), rest=False, since=1000.0 + after))
    # Chunks are whole lines here. What is one record with what came before may be left out with it.
    for key, data in by_log([one for one in outputs if one.time >= 1000.0 + after + INDEX_MERGE_S]).items():
        assert found.get(key, b"").endswith(data)
    most = by_log([one for one in outputs if one.time >= 1000.0 + after])
    assert all(most[key].endswith(data) for key, data in found.items())


def test_a_line_that_was_being_written_then_is_whole(tmp_path: Path) -> None:
    sink = store_in(tmp_path)
    for at, data in ((1, b"one\ntw"), (2, b"o and"), (9, b" more\nthree\n")):
        sink.handle(Output(time=at, node=0, rank=0, stream=Stream.STDOUT, data=data))
    end(sink)
    assert b"".join(one.data for one in replayed(tmp_path, since=5.0)) == b"two and more\nthree\n"


@EFFORT
@given(CHUNKS, st.data())
def test_a_directory_that_a_crash_has_cut_short(
    chunks: list[tuple[int, Stream, int, float]], data: st.DataObject
) -> None:
    """Any file may be shorter, or not there: nothing fails, and what is told is the beginning of what there was."""
    outputs = outputs_of(chunks)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sink = store_in(directory)
        for output in outputs:
            sink.handle(output)
        end(sink)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                kept = data.draw(st.floats(-0.1, 1))
                if kept < 0:
                    path.unlink()
                else:
                    os.truncate(path, int(path.stat().st_size * kept))
        assert read_record(directory / RUN).state in (State.DIED, State.ENDED)
        written = by_log(outputs)
        for key, found in by_log(replayed(directory)).items():
            assert written[key].startswith(found)


def test_without_an_index_it_is_rank_by_rank(tmp_path: Path) -> None:
    outputs = outputs_of([(rank, stream, 5, 0.1) for stream in BOTH for _ in range(2) for rank in (3, 1)])
    sink = store_in(tmp_path)
    for output in outputs:
        sink.handle(output)
    end(sink)
    (tmp_path / RUN / "logs" / INDEX).unlink()
    found = replayed(tmp_path)
    assert [(one.rank, one.stream) for one in found] == [(rank, stream) for rank in (1, 3) for stream in BOTH]
    assert by_log(found) == by_log(outputs)


@EFFORT
@given(st.integers(0, 3_000_000))
def test_a_log_beyond_its_limit_reads_as_it_lies_there(size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sink = store_in(directory, logs=500_000)
        sink.handle(Started(time=1, node=0, rank=0, pid=1))
        for at in range(0, size, 60_000):
            data = b"x" * (min(size, at + 60_000) - at)
            sink.handle(Output(time=at, node=0, rank=0, stream=Stream.STDOUT, data=data))
        sink.close()
        assert read_record(directory / RUN).state is State.ON
        before = b"".join(one.data for one in replayed(directory))
        sink.finish(Outcome(run=RUN, exit_code=0, cause=Cause.COMPLETED, started=1.0, ended=2.0))
        log = directory / RUN / "logs/rank-0000.out"
        assert b"".join(one.data for one in replayed(directory)) == log.read_bytes() == before
        assert log.stat().st_size < 520_000
        assert sum(sink.left_out.values()) == size - len(log.read_bytes().replace(b"\n", b"")) + (
            len(re.sub(rb"x|\n", b"", log.read_bytes()))
        )


def test_following_sees_each_byte_once_while_the_logs_reach_their_limit(tmp_path: Path) -> None:
    """The reader looks at moments of all kinds: between chunks, while tails are dropped, after they were joined."""
    sink = store_in(tmp_path, logs=300_000)
    replay = Replay(read_record(tmp_path / RUN), streams=BOTH)
    found = b""
    for number in range(200):
        data = b"%06d\n" % number * 1000
        sink.handle(Output(time=number, node=0, rank=0, stream=Stream.STDOUT, data=data))
        sink.idle()
        if number % 3 == 0 or number > 190:
            found += b"".join(one.data for one in replay.advance())
    end(sink)
    found += b"".join(one.data for one in (*replay.advance(), *replay.rest()))
    replay.close()
    numbers = [int(line) for line in found.split(b"\n") if len(line) == 6]
    assert numbers == sorted(numbers)
    assert {0, 190, 199} <= set(numbers)
    assert all(numbers.count(number) <= 1000 for number in set(numbers))
    assert numbers.count(199) == 1000


def test_the_index_is_small(tmp_path: Path) -> None:
    """Output that pours costs next to nothing there."""
    sink = store_in(tmp_path)
    for number in range(1000):
        sink.handle(Output(time=number / 10_000, node=0, rank=0, stream=Stream.STDOUT, data=b"x" * 1000))
    end(sink)
    assert (tmp_path / RUN / "logs" / INDEX).stat().st_size <= 3 * RECORD.size * (0.1 / INDEX_MERGE_S + 1)


RUN_JSONS = [
    "",
    "{",
    "[]",
    "null",
    '{"ended": "x", "hosts": [1], "nproc": -3}',
    '{"nproc": 1e999, "created": -1}',
    '{"run": 1, "left_out": [{}, 3]}',
]


@pytest.mark.parametrize("text", RUN_JSONS)
def test_whatever_stands_in_run_json(tmp_path: Path, text: str) -> None:
    sink = store_in(tmp_path)
    sink.handle(Output(time=1, node=1, rank=3, stream=Stream.STDOUT, data=b"x\n"))
    end(sink)
    (tmp_path / RUN / "run.json").write_text(text)
    record = read_record(tmp_path / RUN)
    assert (record.state, record.run) == (State.DIED, RUN)
    assert [one.data for one in replayed(tmp_path)] == [b"x\n"]


# ---- lines that match


@EFFORT
@given(st.lists(st.text("ab \n", max_size=12)), st.sampled_from(["a", "^a", "b$", "^$", "a.b", "^ab$"]))
def test_lines_are_found_whatever_the_chunks(chunks: list[str], text: str) -> None:
    lines = LineFilter(re.compile(text))
    found = b""
    for chunk in chunks:
        one = Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=chunk.encode())
        found += b"".join(output.data for output in lines.feed(one))
    found += b"".join(output.data for output in lines.end())
    *whole, last = "".join(chunks).split("\n")
    expected = [line + "\n" for line in whole if re.search(text, line)] + [last] * bool(last and re.search(text, last))
    assert found.decode() == "".join(expected)


def test_a_line_that_does_not_fit_into_memory() -> None:
    long = b"begin" + b"x" * 3_000_000 + b"needle" + b"y" * 3_000_000 + b"end\n"
    for text, is_found in {
        "needle": True,
        "^begin": True,
        "end$": True,
        "nettle": False,
        "^x": False,
        "x$": False,
    }.items():
        lines = LineFilter(re.compile(text))
        found = []
        for at in range(0, len(long), 65536):
            one = Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=long[at : at + 65536])
            found += [output.data for output in lines.feed(one)]
        assert b"".join(found) == (long if is_found else b""), text


@EFFORT
@given(st.text("ab", max_size=30), st.lists(st.integers(0, 30)), st.sampled_from(["ab", "^b", "a$", "b+a", "^$"]))
def test_matches_in_pieces(text: str, cuts: list[int], pattern: str) -> None:
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[begin:end_] for begin, end_ in pairwise(places)]
    assert matches(re.compile(pattern), pieces) == bool(re.search(pattern, text))
    apart = ["a" * (MATCH_CHARACTERS + 1), "b", "c" * (MATCH_CHARACTERS + 1)]
    assert matches(re.compile("abc"), apart)
    assert not matches(re.compile("^b|b$|c$d"), apart)


def test_colours_do_not_hide_a_line() -> None:
    one = Output(time=1, node=0, rank=0, stream=Stream.STDOUT, data=b"\x1b[31mERROR\x1b[0m: x\r\nno\n")
    assert [o.data for o in LineFilter(re.compile("^ERROR: x$")).feed(one)] == [b"\x1b[31mERROR\x1b[0m: x\r\n"]


def test_a_directory_with_masks_counts_the_bytes_of_the_hosts_wherever_a_crash_has_cut_its_logs(tmp_path: Path) -> None:
    secrets = Secrets(["correct horse"])
    printed = b"one correct horse two correct horsecorrect horse three"
    sink = store_in(tmp_path)
    masker = Masker(secrets)
    for piece in [*masker.feed(printed), *masker.end()]:
        event = Output(time=1.0, node=0, rank=0, stream=Stream.STDOUT, data=piece.data, taken=piece.taken)
        sink.handle(event)
    sink.close()
    directory = tmp_path / RUN
    log = directory / "logs/rank-0000.out"
    masked = secrets.data(printed)
    assert log.read_bytes() == masked
    for size in range(len(masked), -1, -1):
        os.truncate(log, size)
        have = read_left(read_record(directory), -1).have[0, Stream.STDOUT]
        # What follows on the host gives the rest of the log; a mask that was cut counts as one that is there.
        assert secrets.data(printed[:have]).startswith(masked[:size])
        assert len(secrets.data(printed[:have])) - size in (0, 1, 2)


def test_prerun_of_spare_hosts_is_shown_and_a_host_keeps_its_own_after_its_rank_has_moved(tmp_path: Path) -> None:
    hosts = [Host(name=name, address="") for name in "abcd"]
    spec = spec_of(run=RUN, project="p", workspace=Path("/w"), command=("x",), nproc=1, spares=2)
    placement = spec.placed(hosts)
    sink = StoreSink(directory=tmp_path / RUN, spec=spec, cluster_name="pod", placement=placement)
    for node, host in enumerate(hosts):
        first, data = placement.first(node), f"of {host.name}\n".encode()
        sink.handle(Output(time=1000.0 + node, node=node, rank=first, stream=Stream.PRERUN, data=data))
    sink.handle(Arrived(time=1010.0, node=2, rank=1, attempt=1, printed={}))
    end(sink)
    assert read_record(tmp_path / RUN).placement.node(1) == 2
    shown = replayed(tmp_path, streams=(Stream.PRERUN,))
    assert [(one.node, one.data) for one in shown] == [(n, f"of {hosts[n].name}\n".encode()) for n in range(4)]
    chosen = replayed(tmp_path, streams=(Stream.PRERUN,), ranks={1})
    assert [(one.node, one.data) for one in chosen] == [(1, b"of b\n")]
