"""Pages about runs: folded lines as `mesh logs` has them, board, timeline, metrics, differences, the HTML file."""

from __future__ import annotations

import html
import json
import math
import re
import time
from pathlib import Path

import pytest

from mesh.core.events import Output, Stream
from mesh.pages.board import Board
from mesh.pages.differences import Difference, lines
from mesh.pages.events import all_events, read_events
from mesh.pages.lines import EVERYTHING, Choice, FoldedOutput
from mesh.pages.metrics import POINTS_MAX, Metrics
from mesh.pages.report import report_html
from mesh.pages.stackgroups import merged
from mesh.pages.timeline import Timeline
from mesh.pages.verdicts import sentence, verdict_lines
from mesh.rundir.commit import commit_of
from mesh.rundir.layout import RECORD, log_number
from mesh.rundir.records import Record, read_record
from mesh.ui.live import View
from tests.conftest import PATIENCE, Home
from tests.recorded import BEGIN, RANKS, TRACEBACK, abandon, make_run, runs_of, steps, written

RUN, OTHER = "20261121-101500-3f9c2a", "20261121-101600-aaaaaa"
HOSTILE = b"</script><script>alert(1)</script> \x1b[31mred\x1b[0m \x1b[2J \xe2\x80\xaeevil \xff\n"
FAILING = [*steps(5, missing=2), written(9.0, 3, HOSTILE), written(9.5, 2, TRACEBACK, Stream.STDERR)]


def counts(view: View) -> dict[str, int]:
    assert view.board
    return view.board.counts()


def folded(record: Record, choice: Choice = EVERYTHING) -> list[tuple[str, str, str]]:
    """Return label, stream and text of all lines."""
    output = FoldedOutput(record, choice)
    try:
        while output.advance(0.05):
            pass
        assert output.is_complete
        return [(line.label, line.stream, line.text) for line in output.window(0, len(output))]
    finally:
        output.close()


def test_lines_are_those_of_mesh_logs(home: Home) -> None:
    make_run(runs_of(home), [*steps(40, missing=1), written(60.0, 0, b"no newline")])
    lines = folded(read_record(runs_of(home) / RUN))
    done = home.mesh("logs", "--output", "fold", "--local", RUN)
    assert "".join(f"{label} {text}\n" for label, _, text in lines) == done.out.decode()
    assert ("[0,2-3]", "stdout", "step 39 loss 0.0500..0.0800") in lines


def test_a_part_of_the_lines(tmp_path: Path) -> None:
    make_run(tmp_path, FAILING)
    record = read_record(tmp_path / RUN)
    assert [label for label, _, _ in folded(record, Choice(ranks=frozenset({2}), streams=(Stream.STDOUT,)))] == [
        "[2]"
    ] * 2
    errors = folded(record, Choice(streams=(Stream.STDERR,)))
    assert [text for _, _, text in errors] == TRACEBACK.decode().splitlines()
    assert [text for _, _, text in folded(record, Choice(grep="step 4 "))] == ["step 4 loss 0.4000..0.4300"]
    assert len(folded(record, Choice(since=BEGIN + 9.2))) == 3
    with pytest.raises(re.error):
        FoldedOutput(record, Choice(grep="("))


def test_windows_of_lines_that_still_come(tmp_path: Path) -> None:
    sink = make_run(tmp_path, [written(step, 0, b"line %d\n" % step) for step in range(30)], is_over=False)
    record = read_record(tmp_path / RUN)
    output = FoldedOutput(record)
    try:
        sink.close()
        output.advance(60.0)
        assert [line.text for line in output.window(10, 3)] == ["line 10", "line 11", "line 12"]
        assert output.window(len(output), 5) == []
        assert output.members(3) == [0]
        assert (output.first_of([0], 7), output.first_of([1], 0)) == (7, -1)
    finally:
        output.close()
        abandon(sink)


def test_a_view_of_a_run_with_which_another_client_goes_on(tmp_path: Path) -> None:
    abandon(make_run(tmp_path, [written(1.0, 0, b"step 1\n")], is_over=False))
    directory = tmp_path / RUN
    view = View(read_record(directory), EVERYTHING)
    try:
        while view.look():
            pass
        assert view.count() == (1, True)
        with (directory / "logs/rank-0000.out").open("ab") as log:
            log.write(b"step 2\n")
            end = log.tell()
        with (directory / "logs/index").open("ab") as index:
            index.write(RECORD.pack(BEGIN + 2, log_number(0, Stream.STDOUT), end) + b"cut")
        deadline = time.monotonic() + PATIENCE
        while view.look() or view.count()[0] < 2:
            assert time.monotonic() < deadline
        assert [line.text for line in view.window(0, 9)] == ["step 1", "step 2"]
        assert not view.is_stale()
    finally:
        view.close()


def test_a_run_that_is_over_has_no_running_rank_though_its_events_are_cut(tmp_path: Path) -> None:
    make_run(tmp_path, FAILING, failed=2)
    events = tmp_path / RUN / "events.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if "exited" not in line) + '{"ev')
    view = View(read_record(tmp_path / RUN), EVERYTHING)
    try:
        deadline = time.monotonic() + PATIENCE
        while view.look() or counts(view).get("running"):
            assert time.monotonic() < deadline
        assert counts(view) == {"failed": 1, "done": 3}
    finally:
        view.close()


def test_hostile_lines_are_text_without_control_sequences(tmp_path: Path) -> None:
    make_run(tmp_path, [written(1.0, 3, HOSTILE), written(2.0, 0, b"x" * 100_000 + b"\n")])
    (_, _, text), (_, _, long) = folded(read_record(tmp_path / RUN))
    assert text == "</script><script>alert(1)</script> \x1b[31mred\x1b[0m  <U+202E>evil \ufffd\x1b[0m"
    assert long.endswith("[mesh: the rest of this line is in the logs]")
    assert len(long) < 66_000


def test_the_board_follows_events_and_output(tmp_path: Path) -> None:
    make_run(tmp_path, FAILING, failed=2)
    record = read_record(tmp_path / RUN)
    board = Board(record.placement)
    states = []
    for one in all_events(record.directory):
        board.note(one.fields)
        states.append(board.cells[1].state)
    assert list(dict.fromkeys(states)) == ["waiting", "ready", "running", "silent", "done"]
    output = FoldedOutput(record, seen=board.output)
    output.advance(60.0)
    output.close()
    board.find_steps()
    assert [cell.step for cell in board.cells] == [4, 4, 1, 4]
    assert (board.cells[2].state, board.cells[2].how) == ("failed", "exit 1")
    assert board.cells[2].spoke == BEGIN + 9.5
    board.end({**record.about, "stopped": [0]})
    assert board.counts() == {"failed": 1, "stopped": 1, "done": 2}


def test_every_event_is_on_the_timeline_and_phases_follow_each_other(tmp_path: Path) -> None:
    make_run(tmp_path, FAILING, failed=2)
    record = read_record(tmp_path / RUN)
    events = all_events(record.directory)
    timeline = Timeline(record.hosts, BEGIN - 1)
    for one in events:
        timeline.note(one.fields)
    assert len(timeline.marks) == len(events) == len((record.directory / "events.jsonl").read_text().splitlines())
    bars = [bar for bar in timeline.bars(BEGIN + 30) if bar.host == "h1"]
    assert {bar.phase for bar in bars} == {"connect", "sync", "prerun", "ready", "run", "end", "silent"}
    silent = next(bar for bar in bars if bar.phase == "silent")
    assert (silent.begin, silent.end) == (BEGIN + 2, BEGIN + 4)
    run = next(bar for bar in bars if bar.phase == "run")
    assert (run.begin, run.end) == (BEGIN + 0.6, BEGIN + 20)


def test_events_that_are_half_written(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event":"ready","time":1}\nno json\n[1]\n{"event":"go')
    found, place = read_events(tmp_path)
    assert [one.fields["event"] for one in found] == ["ready"]
    assert read_events(tmp_path, place) == ([], place)
    with file.open("a") as more:
        more.write('ne"}\n')
    (gone,), end = read_events(tmp_path, place)
    assert (gone.fields, end) == ({"event": "gone"}, file.stat().st_size)


def test_metrics_name_the_extremes_and_what_is_no_number() -> None:
    metrics = Metrics()
    for step in range(200):
        for rank in range(16):
            loss = b"nan" if (step, rank) == (7, 5) else b"%.3f" % (2.0 + rank - step / 1000)
            line = b"step %d loss %s lr=1e-3 tokens/s: 1%d\n" % (step, loss, step)
            metrics.output(Output(time=1.0, node=0, rank=rank, stream=Stream.STDOUT, data=line))
    points = metrics.points()
    assert set(points) == {"loss", "lr", "tokens/s"}
    assert len(points["loss"]) == 200
    first, seventh = points["loss"][0], points["loss"][7]
    assert (first.least, first.least_rank, first.most, first.most_rank) == (2.0, 0, 17.0, 15)
    assert first.median == 10.0
    assert seventh.bad == (5,)
    assert all(math.isfinite(value) for value in (seventh.least, seventh.median, seventh.most))
    for step in range(5000):
        metrics.output(Output(time=1.0, node=0, rank=0, stream=Stream.STDOUT, data=b"step %d x 1\n" % step))
    assert len(metrics.points()["x"]) == POINTS_MAX


def test_numbers_of_many_steps_and_ranks_take_bounded_memory() -> None:
    one, many = Metrics(), Metrics(values_max=1000)
    text = b"".join(b"step %d x %d\n" % (step, step) for step in range(1, 50_001))
    one.output(Output(time=1.0, node=0, rank=0, stream=Stream.STDOUT, data=text))
    for step in range(0, 30_000, 100):
        for rank in range(20):
            line = b"step %d loss %d\n" % (step, step + rank)
            many.output(Output(time=1.0, node=0, rank=rank, stream=Stream.STDOUT, data=line))
    points = one.points()["x"]
    assert len(points) == POINTS_MAX
    assert (points[0].step, points[0].least) == (1, 1.0)
    assert points[-1].step > 49_900  # the end of the run is there as well
    points = many.points()["loss"]
    assert 20 <= len(points) <= 50
    assert [(point.least, point.most) for point in points] == [(point.step, point.step + 19) for point in points]
    assert points[-1].step > 28_000


def test_stacks_of_several_hosts_are_grouped() -> None:
    frames = [{"function": "load", "file": "data.py", "line": 14}]
    waits = [{"function": "wait", "file": "threading.py", "line": 320}]
    groups = merged(
        [
            {"ranks": [0], "frames": waits, "role": ""},
            {"ranks": [7], "frames": frames, "role": ""},
            {"ranks": [1], "frames": waits, "role": ""},
        ]
    )
    assert [group.head for group in groups] == ["[7] load at data.py:14", "[0-1] wait at threading.py:320"]


def test_the_verdict_in_lines(tmp_path: Path) -> None:
    make_run(tmp_path, FAILING, failed=2)
    about = read_record(tmp_path / RUN).about
    head, *quoted = verdict_lines(about)
    assert head == "rank 2 on h2 failed first: exit 1, 19.4 s after the start"
    assert [line.strip() for line in quoted[:3]] == [line.strip() for line in about["verdict"]["first"]["said"]]
    assert sentence(about).endswith("ValueError: bad <b>shape</b>")
    assert verdict_lines({}) == []
    root = {**about["verdict"]["first"], "fact": "a file is missing", "advice": "mesh push --explain PATH shows it"}
    first = {**root, "said": [f"{number} {'x' * 300}" for number in range(9)]}
    both = verdict_lines({"verdict": {"first": first, "root": root, "alike": [2, 3]}})
    assert both[0].startswith("ranks 2-3 failed alike: exit 1 (a file is missing)")
    assert both[1] == "last lines of rank 2 on h2:"
    assert [len(line) for line in both[2:5]] == [204] * 3
    assert both[5].startswith("its output is about another rank")
    assert both[-1] == "mesh push --explain PATH shows it"
    lost = {"verdict": {"first": {"host": "a", "ranks": [1], "lost": "silent"}, "others": [3], "span": 1.5}}
    assert verdict_lines(lost) == ["lost contact with a (rank 1): silent", "after it: rank 3 failed within 1.5 s"]
    timed = {**lost, "started": 5.0, "first": {"time": 9.5}}
    assert verdict_lines(timed)[0] == "lost contact with a (rank 1), 4.5 s after the start: silent"


def test_the_report_is_one_file_that_runs_nothing(home: Home) -> None:
    home.environ["MY_TOKEN"] = "correct-horse-battery"
    home.files(mesh__yaml="secret: [MY_TOKEN]\n")
    (home.project / ".git").mkdir()
    (home.project / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (home.project / ".git/packed-refs").write_text(f"# pack-refs\n{'a1' * 20} refs/heads/main\n")
    assert commit_of(home.project) == {"commit": "a1" * 20, "branch": "main"}
    more = [written(10.0, 1, b"key correct-horse-battery\n")]
    make_run(runs_of(home), [*FAILING, *more], failed=2)
    done = home.mesh("report", RUN)
    assert (done.status, done.err) == (0, "")
    text = done.out.decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert re.findall(r"<script|\son\w+=|https?://|<link|<img|<iframe|url\(", text) == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\u202e" not in text
    assert "&lt;U+202E&gt;evil" in text
    assert "correct-horse" not in text
    verdict = re.search(r'<pre id="verdict" tabindex="0">(.*?)</pre>', text, re.DOTALL)
    assert verdict is not None
    assert html.unescape(verdict[1]) == "\n".join(verdict_lines(read_record(runs_of(home) / RUN).about))
    output = re.search(r'<pre id="output" tabindex="0">(.*?)</pre>', text, re.DOTALL)
    assert output is not None
    assert "[0-1,3] step 4 loss 0.4000..0.4300" in html.unescape(re.sub(r"<[^>]+>", "", output[1]))
    assert "ab12, equal on 4 of 4 hosts" in text
    assert text.count("<tr><td>2023-") == len(all_events(runs_of(home) / RUN))


def test_a_report_is_utf8_in_every_locale(home: Home) -> None:
    make_run(runs_of(home), [written(1.0, 0, "語\n".encode())])
    home.environ["PYTHONIOENCODING"] = "ascii"
    done = home.mesh("report", RUN)
    assert (done.status, done.err) == (0, "")
    assert "語" in done.out.decode()


def test_differences_are_lines_without_control_sequences() -> None:
    one = Difference(what="command", left="a\x1b[2J\nb", right="c\u202e")
    assert list(lines([one], "x", "y")) == ["- x", "+ y", "command", "- a\\nb", "+ c<U+202E>"]


def test_a_large_report_counts_bytes(tmp_path: Path) -> None:
    make_run(tmp_path, [written(1.0, 0, b"".join(b"%d %s\n" % (n, "語".encode() * 300) for n in range(4000)))])
    text = "".join(report_html(read_record(tmp_path / RUN), str))
    assert "lines left out here: the file would be too large" in text
    assert len(text.encode()) < 1_600_000


def test_a_large_report_leaves_lines_out_of_the_middle(home: Home) -> None:
    make_run(runs_of(home), [written(1.0, 0, b"".join(b"line %d %s\n" % (n, b"y" * 150) for n in range(20_000)))])
    text = home.mesh("report").out.decode()
    assert len(text) < 2_000_000
    assert "line 0 " in text
    assert "lines left out here" in text
    assert "line 15000 " in text


def test_packages_that_differ(home: Home) -> None:
    for run, torch in ((RUN, "2.12.0"), (OTHER, "2.13.0")):
        make_run(runs_of(home), steps(2), run=run)
        events = runs_of(home) / run / "events.jsonl"
        packages = {"python": "3.11", "torch": torch}
        ready = {"event": "ready", "time": 1.0, "rank": 0, "host": "h0", "packages": packages}
        events.write_text(f"{json.dumps(ready)}\n{events.read_text()}")
    found = json.loads(home.mesh("diff", "--json", RUN, OTHER).out)["differences"]
    assert found == [{"what": "package torch", "left": "2.12.0", "right": "2.13.0"}]


def test_differences_of_two_runs(home: Home) -> None:
    make_run(runs_of(home), FAILING, failed=2)
    make_run(runs_of(home), steps(5), run=OTHER, grace=3.0)
    done = home.mesh("diff", "--json", RUN, OTHER)
    assert done.status == 1, done.err
    found = json.loads(done.out)
    assert found["runs"] == [RUN, OTHER]
    differing = {one["what"]: (one["left"], one["right"]) for one in found["differences"]}
    assert differing["rule grace"] == ("10.0", "3.0")
    assert differing["exit"] == ("1", "0")
    assert {"command", "cluster", "hosts", "tree", "created"}.isdisjoint(differing)
    home.environ["PYTHONIOENCODING"] = "ascii"
    (runs_of(home) / OTHER / "run.json").write_text(
        (runs_of(home) / OTHER / "run.json").read_text().replace('"cluster": "pod"', '"cluster": "h\\u00f6he"')
    )
    done = home.mesh("diff", RUN, OTHER)
    assert (done.status, done.err) == (1, "")
    assert b"cluster\n- pod\n+ h\\xf6he\n" in done.out
    assert home.mesh("diff", RUN, RUN).out.decode() == f"{RUN} and {RUN} do not differ\n"
    assert home.mesh("diff", RUN, "nothing").status == 2
    assert home.mesh("report", "nothing").out == b""
    assert len(read_record(runs_of(home) / RUN).hosts) == RANKS
