"""What is shown and what is kept: lines, labels, escape sequences, JSON, the run directory, the summary."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mesh.core.cluster import Host, place_ranks
from mesh.core.errors import OutputClosed
from mesh.core.escapes import Cleaner, clean
from mesh.core.events import (
    Event,
    Exited,
    Finished,
    HostNotice,
    Lost,
    Notice,
    Output,
    PrepareFailed,
    PrerunDecided,
    Silent,
    Started,
    Stream,
    Synced,
)
from mesh.core.lines import LineCutter
from mesh.core.module import ModuleStep
from mesh.core.outcome import Cause, Outcome
from mesh.core.run import PrerunEntry
from mesh.pages.verdicts import verdict_lines
from mesh.rundir.writer import StoreSink
from mesh.screen.jsonl import JsonSink
from mesh.screen.output import Style
from mesh.screen.summary import SUMMARY_LINES, run_summary
from mesh.screen.terminal import About, Streams, TerminalSink
from mesh.verdict.verdict import make_verdict
from mesh.verdict.words import raised, without_lead
from tests.specs import spec_of

PLACEMENT = place_ranks(tuple(Host(name=f"tpu-{n}", address=f"10.0.0.{n}") for n in range(12)))
SPEC = spec_of(run="r1", project="p", workspace=Path("/w"), command=("echo", "hi"), env={"TOKEN": "swordfish"})


def output(rank: int, data: bytes, stream: Stream = Stream.STDOUT) -> Output:
    return Output(time=1.0, node=rank, rank=rank, stream=stream, data=data)


def exited(rank: int, code: int = 0, *, at: float = 5.0, by: int = 0) -> Exited:
    return Exited(time=at, node=rank, rank=rank, code=code, signal=by)


@contextmanager
def reading(*, terminal: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """A descriptor to write to, and a list that holds what was written, afterwards."""
    read_end, write_end = pty.openpty() if terminal else os.pipe()
    told: list[bytes] = []
    try:
        yield write_end, told
        os.set_blocking(read_end, False)
        try:
            while chunk := os.read(read_end, 1 << 20):
                told.append(chunk)
                if not terminal and len(chunk) < 1 << 16:
                    break
        except BlockingIOError:
            pass
    finally:
        os.close(write_end)
        os.close(read_end)


def show(
    *events: Event, mode: str = "all", label: str = "rank", terminal: bool = False, github: bool = False
) -> tuple[bytes, bytes]:
    """What a terminal sink writes to stdout and stderr; github: in a job there, of a run that fails."""
    environ = {"NO_COLOR": "1", **({"GITHUB_ACTIONS": "true"} if github else {})}
    with reading(terminal=terminal) as (out, out_told), reading(terminal=terminal) as (err, err_told):
        streams = Streams(stdout_fd=out, stderr_fd=err, environ=environ)
        sink = TerminalSink(PLACEMENT, Style(mode=mode, label=label), streams, About(title="train 50%"))
        for event in events:
            sink.handle(event)
        sink.idle()
        sink.close()
        if github:
            sink.conclude(["rank 0 failed", "at 50%"], failed=True)
    return b"".join(out_told), b"".join(err_told)


# ---- lines


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_no_byte_is_lost_whatever_the_chunks(chunks: list[bytes], kept: int) -> None:
    cutter = LineCutter(kept)
    found = b""
    for lines in [*map(cutter.feed, chunks), cutter.end()]:
        if lines is not None:
            found += b"".join(lines.pieces()) + lines.text
    assert found == b"".join(chunks)


def test_whole_lines_with_padded_ranks() -> None:
    out, err = show(
        output(3, b"one\ntw"),
        output(11, b"eleven\n"),
        output(3, b"o\nend"),
        output(3, b"e\n", Stream.STDERR),
        exited(3),
    )
    assert out == b"[03] one\n[11] eleven\n[03] two\n[03] end\n"
    assert err == b"[03] e\n"


def test_labels_with_hosts() -> None:
    assert show(output(3, b"x\n"), label="host")[0] == b"[tpu-3:03] x\n"


def test_in_a_github_job_lines_are_grouped_and_a_failure_is_annotated() -> None:
    events = [
        Notice(time=0, text="waiting"),
        Started(time=1, node=0, rank=0, pid=1),
        Started(time=1, node=1, rank=1, pid=1),
        output(0, b"x\n", Stream.STDERR),
        Finished(time=2, exit_code=1, cause="rank", run="r"),
    ]
    lines = show(*events, github=True)[1].decode().splitlines()
    token = lines[1].removeprefix("::stop-commands::")
    begin, end = f"::stop-commands::{token}", f"::{token}::"
    assert len(token) == 32
    # Whatever a host prints, the runner obeys none of it.
    assert lines == [
        *("::group::mesh: getting the hosts ready", begin, "==> waiting", end, "::endgroup::"),
        *("::group::train 50%25", begin, "[00] x", end, "::endgroup::"),
        *(begin, "error: rank 0 failed", "       at 50%", end, "::error title=mesh::rank 0 failed%0Aat 50%25"),
    ]
    assert b"::" not in show(*events)[1]
    assert b"::" not in show(*events, terminal=True, github=True)[1]  # somebody tries it by hand


def test_only_a_newline_ends_a_line() -> None:
    assert show(output(0, b"a\x0bb\x0cc\rd\xe2\x80\xa8e\n"))[0] == b"[00] a\x0bb\x0cc\rd\xe2\x80\xa8e\n"


def test_a_long_line_has_one_label_and_is_not_torn() -> None:
    piece = b"x" * 60_000
    events = [output(rank, piece) for _ in range(30) for rank in (0, 1)]
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        sink = TerminalSink(PLACEMENT, Style(mode="all"), Streams(stdout_fd=write_end, environ={}))
        for event in [*events, output(1, b"\n"), output(0, b"end\n")]:
            sink.handle(event)
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        assert file.read().split(b"\n") == [b"[01] " + piece * 30, b"[00] " + piece * 30 + b"end", b""]
    assert os.waitpid(pid, 0)[1] == 0


def test_rank_0_alone_as_it_is() -> None:
    out, err = show(output(0, b"a\r\x1b[2J\xff"), output(1, b"b"), output(0, b"e", Stream.STDERR), mode="rank0")
    assert (out, err) == (b"a\r\x1b[2J\xff", b"e")


def everyone(data: bytes, stream: Stream = Stream.STDOUT) -> list[Event]:
    return [output(rank, data, stream) for rank in range(12)]


def test_folded() -> None:
    out, err = show(
        *everyone(b"one\n"),
        *everyone(b"bad\n", Stream.STDERR),
        output(3, b"\xff\x1b[2J only\nno end"),
        *(exited(rank) for rank in range(12)),
        mode="fold",
    )
    assert out == b"[0-11] one\n[3] \xff\x1b[2J only\n[3] no end\n"
    assert err == b"[0-11] bad\n"


def test_folded_on_a_terminal() -> None:
    colour = "".join(f"\x1b[3{n}mloss {n}.5\x1b[2J and so on\n" for n in (1, 2)).encode()
    out, _ = show(*everyone(colour), mode="fold", label="host", terminal=True)
    assert out == (
        b"[tpu-[0-11]:0-11] \x1b[31mloss 1.5 and so on\x1b[0m\r\n"
        b"[tpu-[0-11]:0-11] \x1b[32mloss 2.5 and so on\x1b[0m\r\n"
    )


def test_what_mesh_says_of_a_rank_comes_after_what_the_rank_has_said() -> None:
    said = Notice(time=1, text="rank 3 on tpu-3: exit 1")
    _, err = show(
        output(3, b"bad\n", Stream.STDERR),
        exited(3, 1),
        said,
        Finished(time=2, exit_code=1, cause="", run=""),
        mode="fold",
    )
    assert err == b"[3] bad\n==> rank 3 on tpu-3: exit 1\n"


def test_a_long_line_in_its_place() -> None:
    piece = b"x" * 60_000
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        sink = TerminalSink(PLACEMENT, Style(mode="fold"), Streams(stdout_fd=write_end, environ={}))
        for event in [output(0, b"a\n"), *(output(0, piece) for _ in range(30)), output(0, b"end\nb\n"), exited(0)]:
            sink.handle(event)
        sink.handle(Finished(time=2, exit_code=1, cause="", run=""))
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        assert file.read().split(b"\n") == [b"[0] a", b"[0] " + piece * 30 + b"end", b"[0] b", b""]
    assert os.waitpid(pid, 0)[1] == 0


def test_nothing_of_the_ranks() -> None:
    assert show(output(0, b"a\n"), mode="none") == (b"", b"")


# ---- terminals


def test_on_a_terminal_escape_sequences_are_removed_and_colours_end_with_their_line() -> None:
    out, _ = show(output(0, b"\x1b[31mred\n\x1b]0;title\x07\x1b[2Jplain\xff\n10%\r20%\n"), terminal=True)
    assert out == "[00] \x1b[31mred\x1b[0m\r\n[00] plain\ufffd\r\n[00] 20%\r\n".encode()


def test_off_a_terminal_they_stay() -> None:
    assert show(output(0, b"\x1b[2J\x07\n"))[0] == b"[00] \x1b[2J\x07\n"


def test_a_message_does_not_land_in_a_line_of_rank_0() -> None:
    out, err = show(output(0, b"no newline"), Notice(time=1, text="stopping"), mode="rank0", terminal=True)
    assert (out, err) == (b"no newline", b"\r\n==> stopping\r\n")


DANGEROUS = st.lists(
    st.sampled_from(
        [
            "\x1b",
            "[",
            "]",
            "P",
            "m",
            "2J",
            "31",
            ";",
            "\x07",
            "\\",
            "\x9b",
            "\x90",
            "a",
            "é",
            "\n",
            "\x08",
            "\x1b[0m",
            "?25l",
        ]
    )
)


@given(DANGEROUS, st.integers(1, 7))
def test_nothing_but_text_and_colours_gets_through(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    cleaner = Cleaner()
    found = "".join(cleaner.feed(data[at : at + size]) for at in range(0, len(data), size))
    rest = found
    while (begin := rest.find("\x1b")) >= 0:
        end = rest.index("m", begin)
        assert all(c in "0123456789;:[" for c in rest[begin + 1 : end])
        rest = rest[end + 1 :]
    assert not any((ord(c) < 32 and c not in "\n\t\r") or 0x7F <= ord(c) <= 0x9F for c in rest)


def test_a_sequence_that_never_ends_eats_nothing() -> None:
    assert clean("\x1b]0;title\ntext") == "0;title\ntext"
    cleaner = Cleaner()
    assert cleaner.feed(b"\x1b]" + b"x" * 10_000) + cleaner.feed(b"y" * 10_000) == "x" * 10_000 + "y" * 10_000


# ---- the ends of our own output


def test_a_reader_that_has_gone() -> None:
    read_end, write_end = os.pipe()
    sink = TerminalSink(PLACEMENT, Style(mode="all"), Streams(stdout_fd=write_end, environ={}))
    sink.idle()
    os.close(read_end)
    with pytest.raises(OutputClosed):
        sink.idle()
    os.close(write_end)
    read_end, write_end = os.pipe()
    os.close(read_end)
    sink = TerminalSink(PLACEMENT, Style(mode="all"), Streams(stdout_fd=write_end, environ={}))
    with pytest.raises(OutputClosed):
        sink.handle(output(0, b"x\n"))
    os.close(write_end)


def test_messages_that_nobody_can_read_are_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    sink = TerminalSink(PLACEMENT, Style(mode="all"), Streams(stdout_fd=write_end, stderr_fd=write_end, environ={}))
    sink.handle(Notice(time=1, text="x"))
    os.close(write_end)


def test_what_is_told_on_the_way() -> None:
    _, err = show(
        *(Synced(time=1, node=node, files=42, bytes=100_000, seconds=0.25) for node in range(12)),
        output(0, b"pip\n", Stream.PRERUN),
        output(1, b"pip\n", Stream.PRERUN),
        Notice(time=2, text="rank 2 on tpu-2: exit 3"),
        Lost(time=2, node=5, reason="the connection ended"),
    )
    assert err.decode().splitlines() == [
        "==> synced 42 files to 12 hosts: 1.2 MB sent, 0.2 s",
        "[tpu-0] pip",
        "==> rank 2 on tpu-2: exit 3",
        "error: host tpu-5 lost: the connection ended",
    ]


# ---- JSON


def as_json(*events: Event) -> list[dict[str, object]]:
    with reading() as (out, told):
        sink = JsonSink(placement=PLACEMENT, stdout_fd=out)
        for event in events:
            sink.handle(event)
        sink.close()
    return [json.loads(line) for line in b"".join(told).splitlines()]


def test_what_many_hosts_report_at_once_is_one_line() -> None:
    silent = [Silent(time=1.0, node=node, seconds=15.0) for node in range(9)]
    back = [Silent(time=2.0, node=node, seconds=0.0) for node in range(2)]
    _, err = show(*silent, *back, Notice(time=3.0, text="later"), HostNotice(time=4.0, node=3, text="alone"))
    named = ", ".join(f"tpu-{node}" for node in range(8))
    assert err.decode().splitlines() == [
        f"==> 9 hosts ({named}, ...): silent for 15 s",
        "==> tpu-0, tpu-1: is back",
        "==> later",
        "==> tpu-3: alone",
    ]


def test_names_and_fields() -> None:
    assert as_json(
        Synced(time=1.5, node=1, files=2, bytes=3, seconds=0.5),
        Started(time=2, node=1, rank=1, pid=77),
        output(1, b"one\ntwo"),
        output(1, "é\xff\n".encode("latin-1"), Stream.STDERR),
        exited(1, by=9),
        Lost(time=6, node=2, reason="gone"),
        Finished(time=7, exit_code=76, cause="lost", run="r1"),
    ) == [
        {"event": "synced", "time": 1.5, "rank": 1, "host": "tpu-1", "files": 2, "bytes": 3, "seconds": 0.5},
        {"event": "started", "time": 2, "rank": 1, "host": "tpu-1", "pid": 77},
        {"event": "line", "time": 1.0, "rank": 1, "host": "tpu-1", "stream": "stdout", "text": "one"},
        {"event": "line", "time": 1.0, "rank": 1, "host": "tpu-1", "stream": "stderr", "text": "��"},
        {"event": "line", "time": 1.0, "rank": 1, "host": "tpu-1", "stream": "stdout", "text": "two"},
        {"event": "exited", "time": 5.0, "rank": 1, "host": "tpu-1", "signal": 9},
        {"event": "lost", "time": 6, "rank": 2, "host": "tpu-2", "reason": "gone"},
        {"event": "finished", "time": 7, "exit_code": 76, "cause": "lost", "run": "r1"},
    ]


def test_a_long_line_is_one_object() -> None:
    text = 'é"\\\x01' * 100_000
    data = text.encode()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read_end)
        sink = JsonSink(placement=PLACEMENT, stdout_fd=write_end)
        for at in range(0, len(data), 65521):  # cuts characters
            sink.handle(output(0, data[at : at + 65521]))
        sink.handle(output(0, b"\xff" * 3_000_000))
        sink.handle(output(0, b"\nnext\n"))
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:
        first, second = (json.loads(line) for line in file)
    assert os.waitpid(pid, 0)[1] == 0
    assert first["text"] == text + "\ufffd" * 3_000_000
    assert second["text"] == "next"


# ---- the run directory


def store_of(tmp_path: Path, *events: Event) -> StoreSink:
    sink = StoreSink(directory=tmp_path / "runs/r1", spec=SPEC, cluster_name="pod", placement=PLACEMENT)
    for event in events:
        sink.handle(event)
    sink.close()
    return sink


def test_the_prerun_log_tells_what_was_skipped(tmp_path: Path) -> None:
    spec = replace(SPEC, prerun=(PrerunEntry(run="pip"), PrerunEntry(run="uv\n sync", inputs=("a",))))
    sink = StoreSink(directory=tmp_path / "r1", spec=spec, cluster_name="pod", placement=PLACEMENT)
    sink.handle(output(1, b"pip\n", Stream.PRERUN))
    sink.handle(PrerunDecided(time=1, node=1, entry=1, why="", missing=("a",)))
    sink.handle(PrerunDecided(time=1, node=2, entry=1, why="a changed", missing=()))
    sink.close()
    assert not sink.problem
    skipped = '==> "uv sync" skipped: its inputs have not changed\n'
    assert (sink.logs / "prerun-tpu-1.log").read_text() == f"pip\n{skipped}"
    assert (sink.logs / "prerun-tpu-2.log").read_text() == '==> "uv sync" runs: a changed\n'
    events = [json.loads(line) for line in (sink.directory / "events.jsonl").read_text().splitlines()]
    told = [(event["event"], event["host"], event["entry"], event["skipped"], event["why"]) for event in events]
    assert told == [("prerun_entry", "tpu-1", 1, True, ""), ("prerun_entry", "tpu-2", 1, False, "a changed")]


def test_the_log_of_a_module_is_written_meanwhile_and_is_one_file_in_the_end(tmp_path: Path) -> None:
    spec = replace(SPEC, rules=replace(SPEC.rules, logs=1 << 20))
    sink = StoreSink(directory=tmp_path / "r1", spec=spec, cluster_name="pod", placement=PLACEMENT)
    sink.handle(ModuleStep(time=1, node=1, module="uv", step=0, state="apply"))
    for number in range(9000):
        sink.handle(output(1, b"%d %s\n" % (number, b"x" * 650), Stream.MODULE))
    assert sum(path.stat().st_size for path in sink.logs.glob("uv-tpu-1.log*"))
    sink.close()
    assert not sink.problem
    (log,) = sink.logs.glob("uv-*")
    assert log.name == "uv-tpu-1.log"
    lines = log.read_bytes().splitlines()
    assert (lines[0][:2], lines[-1][:5]) == (b"0 ", b"8999 ")
    assert log.stat().st_size < 2 << 20


def test_the_run_directory(tmp_path: Path) -> None:
    every = [Started(time=4, node=rank, rank=rank, pid=1) for rank in range(12)]
    chunks = [output(rank, bytes([rank, 255])) for _ in range(3) for rank in range(12)]
    sink = store_of(tmp_path, *every, *chunks, output(1, b"pip\n", Stream.PRERUN), exited(1, 3), exited(2, by=15))
    outcome = Outcome(
        run="r1",
        exit_code=3,
        cause=Cause.RANK,
        started=4.0,
        ended=9.0,
        first=exited(1, 3),
        exits=(exited(1, 3), exited(2, by=15)),
    )
    sink.finish(outcome, {"job": "12"})
    assert not sink.problem
    assert (sink.logs / "rank-0007.out").read_bytes() == b"\x07\xff" * 3
    assert (sink.logs / "rank-0007.err").read_bytes() == b""
    assert (sink.logs / "prerun-tpu-1.log").read_bytes() == b"pip\n"
    assert sink.directory.stat().st_mode & 0o777 == 0o700
    about = json.loads((sink.directory / "run.json").read_text())
    assert {"run", "cluster", "command", "started", "ended", "exit_code", "cause", "ranks"} <= about.keys()
    assert (about["run"], about["cluster"], about["exit_code"], about["cause"]) == ("r1", "pod", 3, "rank")
    assert about["slurm"] == {"job": "12"}
    assert about["ranks"][1] == {"rank": 1, "host": "tpu-1", "code": 3, "ended": 5.0}
    assert about["ranks"][2] == {"rank": 2, "host": "tpu-2", "signal": 15, "ended": 5.0}
    assert "swordfish" not in (sink.directory / "run.json").read_text()
    events = [json.loads(line)["event"] for line in (sink.directory / "events.jsonl").read_text().splitlines()]
    assert events == ["started"] * 12 + ["exited"] * 2


def test_many_ranks_with_few_descriptors(tmp_path: Path) -> None:
    placement = place_ranks(tuple(Host(name=f"h{n}", address="x") for n in range(300)))
    sink = StoreSink(directory=tmp_path / "r", spec=SPEC, cluster_name="pod", placement=placement)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(2):
        for rank in range(300):
            sink.handle(Output(time=1, node=rank, rank=rank, stream=Stream.STDOUT, data=b"%d" % turn))
    assert len(os.listdir("/proc/self/fd")) - before < 70
    sink.close()
    sink.finish(Outcome(run="r1", exit_code=0, cause=Cause.COMPLETED, started=1.0, ended=2.0))
    assert all((sink.logs / f"rank-{rank:04d}.out").read_bytes() == b"01" for rank in range(300))


def test_a_full_disk_is_told_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no directory")
    sink = store_of(tmp_path, output(0, b"x"), exited(0))
    sink.finish(Outcome(run="r1", exit_code=0, cause=Cause.COMPLETED, started=1.0, ended=2.0))
    assert sink.problem


# ---- the summary


def summarize(outcome: Outcome, said: list[str] | None = None) -> list[str]:
    verdict = make_verdict(outcome, PLACEMENT, lambda rank: said or [])
    return run_summary(outcome, PLACEMENT, verdict, lambda node: ["pip: no wheel"], Path("/logs"))


def outcome(cause: Cause, code: int, **more: object) -> Outcome:
    return Outcome(run="r1", exit_code=code, cause=cause, ended=14.0, **{"started": 4.0, **more})  # type: ignore[arg-type]


def test_summaries() -> None:
    assert summarize(outcome(Cause.COMPLETED, 0)) == ["done: 12 ranks exited 0 in 10.0 s", "logs: /logs"]
    first = exited(2, 3, at=8.1)
    failed = outcome(
        Cause.RANK,
        3,
        first=first,
        exits=(first, exited(4, 1, at=8.3), exited(0, by=15), exited(1, by=15)),
        stopped=(0, 1),
    )
    assert summarize(failed, [f"line {n}" for n in range(30)]) == [
        "rank 2 on tpu-2 failed first: exit 3, 4.1 s after the start",
        *(f"    line {n}" for n in range(20, 30)),
        "after it: rank 4 failed within 0.2 s (exit 1); ranks 0-1 stopped by mesh",
        "logs: /logs",
    ]
    assert summarize(outcome(Cause.OUTPUT_CLOSED, 141)) == []
    assert summarize(outcome(Cause.SIGNAL, 130)) == ["ended by SIGINT: the command was stopped", "logs: /logs"]


def test_ranks_that_failed_alike_are_one_subject() -> None:
    ends = (exited(0, 3, at=8.1), exited(1, 3, at=8.11), exited(2, 3, at=8.12), exited(5, 4, at=8.12))
    failed = outcome(Cause.RANK, 3, first=ends[0], alike=(0, 1, 2), exits=ends)
    assert summarize(failed, ["no data"]) == [
        "ranks 0-2 failed alike: exit 3, 4.1 s after the start",
        "last lines of rank 0 on tpu-0:",
        "    no data",
        "after it: rank 5 failed within 0.0 s (exit 4)",
        "logs: /logs",
    ]


def test_equal_failures_are_told_once() -> None:
    failures = tuple(
        PrepareFailed(time=1, node=node, step="python", message="no python3 there", hint="install one")
        for node in range(3)
    )
    prerun = PrepareFailed(time=1, node=5, step="prerun", message="exit 1 in 'pip'")
    assert summarize(outcome(Cause.PREPARE, 125, started=0.0, failures=(*failures, prerun))) == [
        "the command was not started",
        "3 hosts (tpu-0, tpu-1, tpu-2): no python3 there",
        "    install one",
        "tpu-5: prerun: exit 1 in 'pip'",
        "    pip: no wheel",
        "logs: /logs",
    ]


def test_a_summary_is_never_longer_than_it_may_be() -> None:
    failures = tuple(
        PrepareFailed(time=1, node=node, step="python", message=f"problem {node}", hint="a\nb\nc") for node in range(12)
    )
    lines = summarize(outcome(Cause.PREPARE, 125, started=0.0, failures=failures, unverified=("x",) * 9))
    assert len(lines) == SUMMARY_LINES
    assert lines[-1] == "logs: /logs"


LAST_WORDS = st.sampled_from(
    (
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in f',
        "ValueError: no",
        "[rank1]: E: x",
        "  | KeyError: 3",
    )
)


@given(st.lists(LAST_WORDS | st.text(max_size=20), max_size=12))
def test_any_last_words_are_read(said: list[str]) -> None:
    found = raised(said)
    assert found is None or (found.error in found.lines and set(found.lines) <= {without_lead(x) for x in said})


def away(node: int, is_clear: bool = True) -> Lost:
    reason = "the API server was away (the client was away for 33 s, and its agent waits 30 s)"
    return Lost(time=37.0, node=node, reason=reason, is_clear=is_clear, is_cut=not is_clear, return_within=30.0)


AWAY_TOLD = "within 30 s: the API server was away (the client was away for 33 s, and its agent waits 30 s)"


def test_a_client_that_could_not_come_back_in_time() -> None:
    """Hosts are not lost then: their agents end the run by the rule."""
    first = away(3)
    alone = outcome(Cause.LOST, 76, first=first, lost=(first,), exits=(exited(1, by=15),), stopped=(1,))
    assert summarize(alone) == [
        f"the client could not come back to tpu-3 (rank 3) {AWAY_TOLD}",
        "its agent ends rank 3 then, as the rule is; `mesh run -d` starts ranks that need no client",
        "after it: rank 1 stopped by mesh",
        "logs: /logs",
    ]
    all_hosts = tuple(away(node, is_clear=node % 2 == 0) for node in range(12))
    assert summarize(outcome(Cause.LOST, 76, first=all_hosts[0], lost=all_hosts)) == [
        f"the client could not come back to 12 hosts (ranks 0-11) {AWAY_TOLD}",
        "their agents end ranks 0-11 then, as the rule is; `mesh run -d` starts ranks that need no client",
        "logs: /logs",
    ]
    deleted = Lost(time=38.0, node=5, reason="the pod was deleted")
    mixed = outcome(Cause.LOST, 76, first=first, lost=(first, away(1), deleted))
    assert "after it: 1 more host lost" in summarize(mixed)


def test_a_client_that_was_away_is_no_lost_host_in_run_json() -> None:
    deleted = Lost(time=38.0, node=5, reason="the pod was deleted")
    first = away(2)
    ended = outcome(Cause.LOST, 76, first=first, lost=(first, away(1), deleted))
    verdict = make_verdict(ended, PLACEMENT, lambda rank: [])
    assert verdict is not None
    told = verdict.to_json(PLACEMENT)
    assert told["first"]["fact"] == "no client"
    assert (told["first"]["hosts"], told["first"]["ranks"]) == (["tpu-2", "tpu-1"], [1, 2])
    assert told["lost"] == ["tpu-5"]
    lines = verdict_lines({"verdict": told})
    assert lines == [*summarize(ended)[:2], "after it: lost: tpu-5"]


def test_a_host_of_a_client_that_was_away_is_not_lost_on_the_terminal() -> None:
    _, err = show(away(3))
    assert err.decode().splitlines() == [f"error: host tpu-3: the client was not back {AWAY_TOLD}"]


def test_a_verdict_that_blames_another_rank() -> None:
    first, slow = exited(2, 1, at=8.1), exited(5, 1, at=9.0)
    said = {2: ["E: Connection closed by peer"], 5: ["Traceback (most recent call last):", "MemoryError"]}
    ended = outcome(Cause.RANK, 1, first=first, exits=(first, slow))
    verdict = make_verdict(ended, PLACEMENT, lambda rank: said[rank])
    assert run_summary(ended, PLACEMENT, verdict, lambda node: [], Path("/logs")) == [
        "rank 2 on tpu-2 failed first: exit 1, 4.1 s after the start",
        "    E: Connection closed by peer",
        "its output is about another rank; last lines of rank 5 on tpu-5:",
        "    Traceback (most recent call last):",
        "    MemoryError",
        "after it: rank 5 failed within 0.9 s (exit 1)",
        "try: a smaller batch, fewer data loader workers, or a host with more memory",
        "logs: /logs",
    ]
