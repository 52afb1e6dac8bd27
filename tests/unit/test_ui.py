"""The server of `mesh ui`: who gets an answer, what the answers are, and streams that go on where they broke."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from mesh.core.events import Output
from mesh.ui import children
from mesh.ui.pumps import PumpError, Pumps
from mesh.ui.routes import Json
from tests.conftest import PATIENCE, Home
from tests.lab import eventually
from tests.recorded import BEGIN, RANKS, TRACEBACK, abandon, make_run, steps, written
from tests.uiserver import Served, redirecting_file, serving

FRONT_END_BYTES_MAX = 400_000
RUN, OTHER, LATER = "20261121-101500-3f9c2a", "20261121-101600-aaaaaa", "20261121-101700-bbbbbb"


@pytest.fixture
def runs(home: Home) -> Path:
    directory = home.path / ".local/state/mesh/runs"
    directory.mkdir(parents=True)
    make_run(directory, [*steps(6, missing=2), written(9.5, 2, TRACEBACK)], failed=2)
    make_run(directory, steps(3), run=OTHER, grace=3.0)
    return directory


def listeners(port: int) -> list[str]:
    """Return the local addresses that listen at a port, as the kernel writes them."""
    lines = Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
    found = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    return [address for address in found if address.endswith(f":{port:04X}")]


def test_only_its_user_gets_an_answer(home: Home, runs: Path) -> None:
    with serving(home) as served:
        assert listeners(served.port) == [f"0100007F:{served.port:04X}"]
        assert served.ask("runs")[0] == 200
        assert served.ask("runs", Authorization="")[0] == 401
        assert served.ask("runs", Authorization="Bearer wrong")[0] == 401
        assert served.ask("runs", Host="evil.example")[0] == 403
        assert served.ask("runs", Host=f"evil.example:{served.port}")[0] == 403
        assert served.ask("runs", Origin="http://evil.example")[0] == 403
        assert served.ask("runs", Origin="null")[0] == 403
        assert served.ask("runs", Origin="http://evil.example", origin=f"http://localhost:{served.port}")[0] == 403
        assert served.ask("runs", Origin=f"http://localhost:{served.port}")[0] == 200
        assert served.ask("runs", Sec_Fetch_Site="cross-site")[0] == 403
        assert served.fetch("/", Host="evil.example")[0] == 403
        assert served.ask("now", Upgrade="websocket", Connection="Upgrade", Authorization="")[0] == 401
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as other:
            other.sendall(b"no request\r\n\r\n")
            assert other.recv(99).startswith(b"HTTP/1.1 400 ")
        status, headers, page = served.fetch("/", Authorization="")
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "set-cookie" not in headers
        assert served.token not in page.decode()
        assert served.fetch("/static/main.js")[1]["content-type"].startswith("text/javascript")
        assert served.fetch("/static/%2e%2e/server.py")[0] == 404
        file = redirecting_file(home)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert served.token in file.read_text()
        command_line = Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
        assert served.token.encode() not in command_line


def test_runs_are_looked_up_in_the_listing(home: Home, runs: Path) -> None:
    (home.path / "secret").mkdir()
    (home.path / "secret/run.json").write_text("{}")
    with serving(home) as served:
        for name in ("..%2f..%2f..%2f..%2fsecret", "..", "20261121-101500-ffffff", "last", "%00"):
            assert served.ask(f"runs/{name}")[0] == 404, name
        status, found = served.ask(f"runs/{RUN}/stop", method="POST", body="{}")
        assert (status, found["hint"]) == (400, "mesh ui --actions")
        assert served.ask(f"check/{'--help'}")[0] == 404


def test_answers_about_a_run(home: Home, runs: Path) -> None:
    with serving(home) as served:
        rows = served.get("runs")["runs"]
        assert [(row["run"], row["status"]) for row in rows] == [(OTHER, "done"), (RUN, "failed, exit 1")]
        assert served.get("runs?count=1") == {"runs": rows[:1], "more": True}
        assert served.get("runs?count=9") == {"runs": rows, "more": False}
        assert rows[1]["verdict"].startswith("rank 2 on h2 failed first: exit 1")
        (printed,) = [line for line in home.mesh("runs", "--json").out.decode().splitlines() if RUN in line]
        assert served.get(f"runs/{RUN}")["record"] == json.loads(printed)
        found = served.get(f"runs/{RUN}/lines?count=1000")
        assert found["complete"]
        text = "".join(f"{label} {text}\n" for _, label, _, text, _ in found["rows"])
        assert text == home.mesh("logs", "--output", "fold", "--local", RUN).out.decode()
        assert served.get(f"runs/{RUN}/lines?first=2&count=1")["members"] == [0, 1, 3]
        assert folded(served, f"runs/{RUN}/lines?ranks=2&grep=Error&count=9")["lines"] == 1
        assert folded(served, f"runs/{RUN}/lines?host=h2&stream=stderr")["lines"] == 0
        assert folded(served, f"runs/{RUN}/lines?since={BEGIN + 9.2}")["lines"] == len(TRACEBACK.splitlines())
        assert served.ask(f"runs/{RUN}/lines?grep=(")[0] == 400
        assert served.ask(f"runs/{RUN}/lines?ranks=x")[0] == 400
        assert served.get(f"runs/{RUN}/lines?rank=2")["first_of"] >= 0
        assert served.get(f"runs/{RUN}/lines?rank=99999999999")["first_of"] == -1
        events = (runs / RUN / "events.jsonl").read_text().splitlines()
        assert len(served.get(f"runs/{RUN}/timeline")["marks"]) == len(events)
        assert len(served.get(f"runs/{RUN}/metrics")["metrics"]["loss"]) == 6
        assert served.get(f"runs/{RUN}/metrics")["more"] is False
        differences = served.get(f"compare?run={RUN}&run={OTHER}")["differences"]
        assert ["rule grace", "10.0", "3.0"] in differences
        assert served.ask(f"compare?run={RUN}")[0] == 404
        assert served.get("clusters")["clusters"][0]["name"] == "local"
        assert served.get("jobs")["jobs"] == []
        assert served.get("jobs")["steward"] is None
        assert served.get("machines")["machines"] == []
        assert served.ask(f"jobs/{'9' * 5000}")[0] == 404


def folded(served: Served, path: str) -> dict[str, object]:
    """Return an answer about lines, once all of the output is folded."""
    deadline = time.monotonic() + PATIENCE
    while (found := served.get(path))["folding"]:
        assert time.monotonic() < deadline, found
    assert isinstance(found, dict)
    return found


def test_a_slow_expression_ends_its_own_search_alone(home: Home, runs: Path) -> None:
    make_run(runs, [written(1.0, 0, b"a" * 64 + b"!\n"), written(2.0, 1, b"b\n")], run=LATER)
    path = f"runs/{LATER}/lines?grep={quote('^(a+)+$')}"
    with serving(home) as served:
        deadline = time.monotonic() + PATIENCE
        while (answer := served.ask(path))[0] == 200:
            assert answer[1]["folding"]
            assert time.monotonic() < deadline
        assert answer[0] == 400
        assert answer[1]["error"] == "the search took more than 2 s for a part of the output"
        assert served.ask(path) == answer
        assert folded(served, f"runs/{LATER}/lines?grep=^b")["lines"] == 1
        assert served.ask(f"runs/{LATER}/lines?grep={'a' * 2000}")[0] == 400


def test_numbers_grow_with_the_output_of_a_run(home: Home, runs: Path) -> None:
    sink = make_run(runs, steps(3), run=LATER, is_over=False)
    sink.idle()
    with serving(home) as served:
        assert len(served.get(f"runs/{LATER}/metrics")["metrics"]["loss"]) == 3
        for output in steps(5)[-2 * RANKS :]:
            sink.handle(output)
        sink.close()
        points = served.get(f"runs/{LATER}/metrics")["metrics"]["loss"]
        assert [(point[0], point[4], point[5]) for point in points] == [(step, 0, RANKS - 1) for step in range(5)]
        shutil.rmtree(runs / LATER)
        assert served.ask(f"runs/{LATER}/metrics")[0] == 404
    abandon(sink)


def test_a_run_json_with_numbers_that_browsers_refuse(home: Home, runs: Path) -> None:
    path = runs / RUN / "run.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "created": float("nan"), "more": [float("inf")]}))
    with serving(home) as served:
        record = served.get(f"runs/{RUN}")["record"]
        assert (record["created"], record["more"]) == (None, [None])
        with served.stream(f"runs/{RUN}/stream") as events:
            assert next(events)[1] == "run"


def test_a_damaged_run_json_is_named(home: Home, runs: Path) -> None:
    path = runs / OTHER / "run.json"
    path.write_text('{"run": "cut')
    with serving(home) as served:
        assert [row["run"] for row in served.get("runs")["runs"]] == [OTHER, RUN]
        status, found = served.ask(f"runs/{OTHER}")
        assert (status, found["error"]) == (404, f"{path}: it is not there, or damaged")


def test_an_error_of_the_server_is_an_answer_and_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> tuple[int, float]:
        raise RuntimeError("no such thing")

    async def read() -> str:
        async with Pumps().of("one", look) as pump:
            with pytest.raises(PumpError) as found:
                await pump.wait(-1)
            return str(found.value)

    assert asyncio.run(read()) == "mesh ui has failed: RuntimeError: no such thing"
    assert "raise RuntimeError" in caplog.text


def states(served: Served, run: str, last: str = "") -> tuple[list[str], list[list[object]], dict[str, object]]:
    """Return the ids, the marks and the last state of a stream up to the end of a run that is over."""
    ids, marks = [], []
    with served.stream(f"runs/{run}/stream", last) as events:
        for place, name, data in events:
            assert name == "run"
            ids.append(place)
            marks += data["events"]
            if data["complete"]:
                return ids, marks, data
    raise AssertionError("the stream has ended")


def test_a_stream_goes_on_where_another_one_has_ended(home: Home, runs: Path) -> None:
    sink = make_run(runs, [], run=LATER, is_over=False)
    sink.idle()
    with serving(home) as served, served.stream(f"runs/{LATER}/stream") as events:
        last, _, first = next(events)
        assert first["row"]["state"] == "on"
        assert len(first["ranks"]) == RANKS
        sink.handle(Output(time=BEGIN + 5, node=0, rank=0, stream=written(0, 0, b"").stream, data=b"step 1 loss 2\n"))
        sink.close()
        seen = first["events"]
        for place, _, data in events:
            last = place
            seen += data["events"]
            if data["lines"]:
                break
        abandon(sink)
        assert data["ranks"][0][:2] == [0, "running"]
        assert data["ranks"][0][4:6] == [1, "step"]
    text = (runs / LATER / "events.jsonl").read_bytes()
    more = b'{"event":"notice","time":1700000030.0,"text":"one"}\n{"event":"notice","time":1700000031.0,"text":"two"}\n'
    (runs / LATER / "events.jsonl").write_bytes(text + more + b'{"event":"cut')
    with serving(home) as served:
        ids, marks, state = states(served, LATER, last)
        assert [mark[4] for mark in marks] == ["one", "two"]
        assert int(ids[-1]) == len(text + more)
        assert len(seen) + len(marks) == len((text + more).splitlines())
        row = state["row"]
        assert isinstance(row, dict)
        assert row["status"] == "client died"


def test_a_run_that_is_removed_while_it_is_looked_at(home: Home, runs: Path) -> None:
    with serving(home) as served, served.stream(f"runs/{RUN}/stream") as events:
        next(events)
        shutil.rmtree(runs / RUN)
        names = [name for _, name, data in events]
        assert names[-1] == "gone"
        assert served.ask(f"runs/{RUN}/lines")[0] == 404
        assert served.ask(f"runs/{OTHER}/lines")[0] == 200


def test_cards_of_the_runs_that_are_on(home: Home, runs: Path) -> None:
    with serving(home) as served, served.stream("now") as events:
        _, _, data = next(events)
        assert data["state"]["cards"] == []
        sink = make_run(runs, steps(3, missing=1), run="20261121-101800-cccccc", is_over=False)
        while not data["state"]["cards"] or not data["state"]["cards"][0]["slowest"]:
            sink.idle()
            _, _, data = next(events)
        card = data["state"]["cards"][0]
        assert (card["run"], card["counts"]) == ("20261121-101800-cccccc", {"running": RANKS})
        assert card["slowest"] == [1, "step", 1]
        abandon(sink)


def test_a_home_without_runs_and_a_broken_store(home: Home) -> None:
    store = home.path / ".local/state/mesh/jobs/store.db"
    store.parent.mkdir(parents=True)
    store.write_bytes(b"no database at all, and long enough to be read as one" * 100)
    with serving(home) as served:
        assert served.get("runs") == {"runs": [], "more": False}
        status, found = served.ask("jobs")
        assert status == 409
        assert str(store) in found["error"]


def test_sigterm_ends_the_server_and_leaves_no_token(home: Home) -> None:
    (home.path / "tmp").mkdir()
    home.environ["TMPDIR"] = str(home.path / "tmp")
    process = home.popen("ui", "--no-browser")
    try:
        assert process.stdout
        process.stdout.readline()
        assert len(os.listdir(home.path / "tmp")) == 1
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 143
        assert os.listdir(home.path / "tmp") == []
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_while_a_file_gives_no_answer(home: Home, runs: Path) -> None:
    (runs / LATER).mkdir()
    os.mkfifo(runs / LATER / "run.json")
    pipe = -1

    def is_being_read() -> bool:
        nonlocal pipe
        with contextlib.suppress(OSError):  # nothing reads it yet
            pipe = os.open(runs / LATER / "run.json", os.O_WRONLY | os.O_NONBLOCK)
        return pipe >= 0

    with serving(home) as served, contextlib.closing(served.begin("/api/runs")):  # its end is that of any server
        assert eventually(is_being_read)
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(PATIENCE) == 0
    os.close(pipe)


def test_a_child_that_ignores_the_end_of_the_server_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "KILL_AFTER_S", 0.1)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"

    async def ended() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", stubborn, stdout=asyncio.subprocess.PIPE)
        assert process.stdout
        await process.stdout.readline()
        await children.end(process)
        return await process.wait()

    assert asyncio.run(ended()) == -signal.SIGKILL


def test_the_front_end_is_small() -> None:
    files = [path for path in (Path(children.__file__).parent / "static").iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < FRONT_END_BYTES_MAX


def test_json_of_texts_that_are_not_utf8() -> None:
    assert json.loads(Json({"command": "\udcff"}).body) == {"command": "\udcff"}


def test_what_is_said_before_the_server_begins(home: Home, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = home.mesh("ui", "--no-browser", "--port", str(port))
        assert (done.status, done.err) == (
            125,
            f"error: port {port} on 127.0.0.1: Address already in use\n       mesh ui --port 0\n",
        )
    assert home.mesh("ui", "--port", "70000").status == 2
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('starlette', name='starlette')\n")
    home.environ["PYTHONPATH"] = f"{tmp_path}:{home.environ['PYTHONPATH']}"
    done = home.mesh("ui", "--no-browser")
    assert done.status == 2
    assert re.search(r"pip install .*(starlette|\.\[ui\])", done.err), done.err
