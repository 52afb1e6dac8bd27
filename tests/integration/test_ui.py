"""The pages of `mesh ui` in a real Chromium: recorded runs looked at often, live runs here and on four hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.events import Stream
from mesh.pages.verdicts import verdict_lines
from mesh.rundir.records import read_record
from tests.browser import CHROMIUM, Tab, browser
from tests.conftest import Home
from tests.lab import Lab
from tests.recorded import TRACEBACK, make_run, steps, written
from tests.uiserver import Served, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
RUN, OTHER, LARGE = "20261121-101500-3f9c2a", "20261121-101600-aaaaaa", "20261121-101700-bbbbbb"
HOSTILE = b"</script><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \xe2\x80\xaeevil\n"
LARGE_LINES = 60_000
LOOKS = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
PICTURES = os.environ.get("MESH_PICTURES", "")  # a directory for pictures of all pages
QUIET: dict[str, object] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
WORDS = ("python3", "train.py")
TRAIN = """\
import os, time
rank, failing = int(os.environ["RANK"]), int(os.environ.get("FAIL", "-1"))
for step in range(10_000):
    print(f"step {step} loss {2.5 / (step + 1) + rank / 100:.4f}", flush=True)
    if rank == failing and os.path.exists(os.environ["FLAG"]):
        raise ValueError("batch of 31, expected 32")
    time.sleep(1.0 if rank == 7 else 0.1)
"""


def runs_of(home: Home) -> Path:
    directory = home.path / ".local/state/mesh/runs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with browser(tmp_path) as tab:
        tab.look(*LOOKS[0])
        yield tab


def rows_of(tab: Tab) -> list[str]:
    """Return the lines of the output that are in the page."""
    found: list[str] = tab.value("[...document.querySelectorAll('.row')].map(one => one.innerText)")
    return found


def test_recorded_runs(home: Home, tab: Tab, tmp_path: Path) -> None:
    outputs = [*steps(40, missing=2), written(60.0, 3, HOSTILE), written(61.0, 2, TRACEBACK, Stream.STDERR)]
    make_run(runs_of(home), outputs, failed=2)
    make_run(runs_of(home), steps(3), run=OTHER, grace=3.0)
    many = b"".join(b"line %d of many\n" % number for number in range(LARGE_LINES))
    make_run(runs_of(home), [written(1.0, 0, many)], run=LARGE)
    with serving(home) as served:
        tab.open(served.address)
        tab.wait_text("#today", "3 runs, 1 failed")
        assert tab.value("location.hash") == ""
        _output(home, served, tab)
        _parts(served, tab)
        _list(served, tab)
        _large(served, tab)
        _pictures(served, tab)
        assert tab.dialogs == 0
        assert [one for one in tab.requests if not one.startswith(served.base)] == []
    _report(home, tab, tmp_path)


def _output(home: Home, served: Served, tab: Tab) -> None:
    tab.look(1280, 2000, "light")  # all lines fit
    tab.open(f"{served.base}run/{RUN}")
    tab.wait("document.querySelectorAll('.row .text').length > 40")
    about = read_record(runs_of(home) / RUN).about
    assert tab.text("#verdict") == "\n".join(verdict_lines(about))
    assert tab.value("document.querySelectorAll('.cell').length") == 4
    assert tab.value("document.querySelector('.cell[data-rank=\"2\"]').dataset.state") == "failed"
    logs = home.mesh("logs", "--output", "fold", "--local", RUN)
    expected = {*logs.out.decode().splitlines(), *logs.err.splitlines()}
    shown = set(rows_of(tab))
    hostile = "[3] </script><script>alert(1)</script><img src=x onerror=alert(2)> red <U+202E>evil"
    assert hostile in shown
    assert {line for line in expected if "step" in line} <= shown
    assert {f"[2] {line}" for line in TRACEBACK.decode().splitlines()} <= shown
    assert tab.value("document.querySelectorAll('main img, main script').length") == 0
    tab.value("[...document.querySelectorAll('.label')].find(one => one.innerText == '[0-1,3]').click()")
    tab.wait_text("#members", "3 h3")
    tab.value("[...document.querySelectorAll('#members button')].find(one => one.innerText == '1 h1').click()")
    tab.wait("[...document.querySelectorAll('.row .label')].every(one => one.innerText == '[1]')")
    tab.wait_text("#total", "40 lines")
    tab.look(*LOOKS[0])


def _parts(served: Served, tab: Tab) -> None:
    tab.open(f"{served.base}run/{RUN}/timeline")
    tab.wait("document.querySelector('.phase-silent')")
    events = len(served.get(f"runs/{RUN}/timeline")["marks"])
    assert tab.text("#count") == f"{events} events"
    assert tab.value("document.querySelectorAll('#marks tbody tr').length") == events
    assert tab.value("document.querySelectorAll('circle.mark').length") == events
    assert tab.value("document.querySelectorAll('line.first').length") == 1
    tab.open(f"{served.base}run/{RUN}/metrics")
    tab.wait("document.querySelector('[data-metric=loss]').dataset.points == 40")
    assert tab.value("document.querySelectorAll('[data-metric=loss] polyline').length") == 3
    assert "least 0.05 (rank 0), most 0.08 (rank 3)" in tab.text("[data-metric=loss] .tip")
    tab.open(f"{served.base}run/{RUN}/stacks")
    tab.wait("document.querySelector('#again')")


def _list(served: Served, tab: Tab) -> None:
    tab.open(f"{served.base}runs?q=ValueError")
    tab.wait_text("#found", "1 run")
    assert "rank 2 on h2 failed first" in tab.text("#found")
    tab.open(f"{served.base}runs")
    tab.wait_text("#found", "3 runs")
    tab.value("[...document.querySelectorAll('#found input')].slice(1).forEach(one => one.click())")
    tab.value("[...document.querySelectorAll('button')].find(one => one.innerText == 'Compare two').click()")
    tab.wait_text("#differences", "rule grace")
    assert "pod" not in tab.text("#differences")
    for key in ("g", "j"):
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
    tab.wait_text("main", "There is no job")
    tab.open(f"{served.base}run/20261121-101500-ffffff")
    tab.wait_text(".error", "not on this machine")


def _large(served: Served, tab: Tab) -> None:
    tab.open(f"{served.base}run/{LARGE}#rank=0&line=41234")
    tab.wait_text(".row.target", "line 41234 of many")
    assert tab.value("document.querySelectorAll('.row').length") < 200
    tab.value("document.querySelector('.lines').scrollTop = 1e9")
    tab.wait(f"[...document.querySelectorAll('.row')].some(one => one.innerText.includes('line {LARGE_LINES - 1} of'))")


def _pictures(served: Served, tab: Tab) -> None:
    """Look at every page, light and dark, wide and narrow: none is wider than the window."""
    pages = ("", "runs", f"run/{RUN}", f"run/{RUN}/timeline", f"run/{RUN}/metrics", f"run/{RUN}/stacks", "clusters")
    pages = (*pages, f"compare?run={RUN}&run={OTHER}", "jobs", "machines")
    for page in pages:
        tab.open(f"{served.base}{page}")
        tab.wait("document.querySelector('main h1')")
        for width, height, scheme in LOOKS:
            tab.look(width, height, scheme)
            wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert tab.value(wide), (page, width)
            if PICTURES:
                name = page.partition("?")[0].replace(RUN, "run").replace("/", "-") or "now"
                tab.picture(Path(PICTURES) / f"{name}-{width}-{scheme}.png")
    tab.look(*LOOKS[0])


def _report(home: Home, tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_bytes(home.mesh("report", RUN).out)
    before = len(tab.requests)
    tab.open(file.as_uri())
    tab.wait_text("#verdict", "rank 2 on h2 failed first")
    assert "onerror=alert(2)> red <U+202E>evil" in tab.text("#output")
    assert {one for one in tab.requests[before:] if not one.startswith("data:")} == {file.as_uri()}
    assert tab.dialogs == 0


def test_a_live_run_of_sixteen_ranks(home: Home, tab: Tab, tmp_path: Path) -> None:
    flag = tmp_path / "fail"
    home.files(train__py=TRAIN)
    with serving(home, "--actions") as served:
        tab.open(served.address)
        tab.wait_text("#cards", "No run of this machine is on")
        run = home.popen("run", "--env", f"FLAG={flag}", "--env", "FAIL=11", "local:16", *WORDS, **QUIET)
        try:
            tab.wait("document.querySelector('.card')")
            tab.wait("document.querySelector('.card').innerText.includes('slowest: rank 7')")
            tab.value("document.querySelector('.card a').click()")
            tab.wait("document.querySelectorAll('.cell').length == 16")
            step = "Number(document.querySelector('.cell[data-rank=\"{}\"]').dataset.step)"
            tab.wait(f"{step.format(7)} > 0 && {step.format(7)} < {step.format(6)}")
            flag.touch()
            tab.wait("document.querySelector('.cell[data-rank=\"11\"]').dataset.state == 'failed'")
            tab.wait_text("#verdict", "ValueError: batch of 31, expected 32")
            assert run.wait(60.0) == 1
            (directory,) = runs_of(home).iterdir()
            tab.wait_text("#verdict", "rank 11 on local-11 failed first")
            assert tab.text("#verdict") == "\n".join(verdict_lines(read_record(directory).about))
            _killed_and_stopped(home, served, tab)
        finally:
            run.communicate()


def _killed_and_stopped(home: Home, served: Served, tab: Tab) -> None:
    """A client that is killed, and a run that is stopped from its page."""
    killed = home.popen("run", "local:2", "sleep", "600", **QUIET)
    tab.open(served.base)
    tab.wait("document.querySelector('.card')?.innerText.includes('2 running')")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    tab.wait("document.querySelector('.card')?.innerText.includes('client gone, lease')")
    run = home.popen("run", "--name", "stopme", "local:2", "sleep", "600", **QUIET)
    tab.wait("[...document.querySelectorAll('.card a')].find(one => one.innerText == 'stopme')")
    tab.wait("[...document.querySelectorAll('.card')].some(one => /stopme[^]*2 running/.test(one.innerText))")
    tab.value("[...document.querySelectorAll('.card a')].find(one => one.innerText == 'stopme').click()")
    tab.wait("document.querySelector('#stop')")
    tab.value("document.querySelector('#stop').click()")
    tab.wait_text("#answer", "stop: done")
    assert run.wait(60.0)
    run.communicate()
    tab.wait_text("#status", "stopped")


@pytest.mark.sshd
@pytest.mark.root
def test_four_hosts(pod: Home, lab: Lab, tab: Tab) -> None:
    pod.files(
        data__py="import os, threading\n\n\ndef load():\n    threading.Event().wait()\n\n\n"
        "def train():\n    threading.Event().wait()\n\n\n"
        'print("step 1 loss 2", flush=True)\n(load if os.environ["RANK"] == "2" else train)()\n'
    )
    run = pod.popen("run", "--stacks", "pod", "python3", "data.py", **QUIET)
    try:
        with serving(pod) as served:
            tab.open(served.address)
            tab.wait("document.querySelector('.card')?.innerText.includes('4 running')")
            tab.value("document.querySelector('.card a').click()")
            tab.wait("document.querySelectorAll('.cell').length == 4")
            tab.value("[...document.querySelectorAll('.tabs a')].find(one => one.innerText == 'Stacks').click()")
            tab.wait("document.querySelector('#again')")
            tab.value("document.querySelector('#again').click()")
            tab.wait("document.querySelectorAll('.stack').length > 1")
            first = tab.text(".stack summary")
            found = json.loads(pod.mesh("stacks", "--json").out)["groups"][0]
            assert found["ranks"] == [2]
            assert first.startswith("[2] ")
            tab.open(f"{served.base}cluster/pod")
            tab.wait("document.querySelectorAll('#check td[data-host]').length == 4")
            assert "busy" in tab.text("#check") or "lock" in tab.text("#check")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60.0)
    host = lab.hosts[1]
    host.cut()
    try:
        with serving(pod) as served:
            tab.open(served.address)
            tab.wait("document.querySelector('main h1')")
            tab.open(f"{served.base}cluster/pod")
            tab.wait(f"document.querySelector('#check td[data-host=\"{host.address}\"]')?.classList.contains('bad')")
    finally:
        host.mend()
