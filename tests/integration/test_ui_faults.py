"""Pages of `mesh ui` where something is wrong or large: gone, damaged, newer, slow, thousands of runs and ranks."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.rundir.writer import StoreSink
from tests.browser import CHROMIUM, Tab
from tests.conftest import Home
from tests.desk import Desk
from tests.full import times
from tests.ports import free_port
from tests.recorded import RANKS, abandon, make_run, runs_of, steps, written
from tests.uiserver import serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
RUN, WIDE, OTHER = "20261121-101500-3f9c2a", "20261121-101600-aaaaaa", "20261121-101700-bbbbbb"
MANY_RUNS, MANY_RANKS = times(1000, 5000), times(400, 1000)
TASKS = """\
accelerators:
  local:
    tasks:
      - {id: data, run: "true"}
      - {id: fit, run: "true", depends_on: data}
"""


def widen(directory: Path, ranks: int) -> None:
    """Give a recorded run so many ranks on its hosts."""
    path = directory / "run.json"
    about = json.loads(path.read_text())
    about["nproc"] = about["spec"]["groups"][0]["nproc"] = ranks // RANKS
    path.write_text(json.dumps(about))


def multiply(runs: Path, count: int) -> None:
    """Make copies of a recorded run; every tenth one has another name."""
    about = json.loads((runs / RUN / "run.json").read_text())
    for number in range(count):
        directory = runs / f"20261120-{number // 100:06d}-{number:06x}"
        directory.mkdir()
        named = {**about, "run": directory.name, "name": f"odd{number}"} if number % 10 == 0 else about
        (directory / "run.json").write_text(json.dumps(named))


def test_very_many_ranks_and_runs(home: Home, tab: Tab) -> None:
    runs = runs_of(home)
    make_run(runs, steps(3), failed=2)
    make_run(runs, steps(3), run=WIDE)
    widen(runs / WIDE, MANY_RANKS)
    multiply(runs, MANY_RUNS)
    with serving(home) as served:
        tab.open(served.address)
        tab.wait("document.querySelector('#today p')")
        tab.open(f"{served.base}run/{WIDE}")
        tab.wait(f"document.querySelectorAll('.cell').length == {MANY_RANKS}")
        tab.wait("document.querySelector('.cell[data-rank=\"3\"]').dataset.step == '2'")
        assert tab.value("document.querySelectorAll('.host').length") == RANKS
        assert tab.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        tab.open(f"{served.base}runs")
        tab.wait_text("#found", f"{MANY_RUNS + 2} runs")
        assert tab.value("document.querySelectorAll('#found tbody tr').length") == 200
        assert f"show more of {MANY_RUNS + 2}" in tab.text("#found")
        tab.open(f"{served.base}runs?q=odd&status=failed")
        tab.wait_text("#found", f"{MANY_RUNS // 10} runs")
        tab.value(
            "(one => { one.value = 'odd77'; one.dispatchEvent(new Event('input')); })(document.querySelector('input'))"
        )
        tab.wait_text("#found", "1 run\n")
        assert tab.value("location.search") == "?q=odd77&status=failed"


def test_runs_that_are_damaged_or_vanish(home: Home, tab: Tab) -> None:
    runs = runs_of(home)
    make_run(runs, [*steps(3), written(9.0, 0, b"a" * 64 + b"!\n")])
    make_run(runs, steps(3), run=OTHER)
    events = runs / RUN / "events.jsonl"
    whole = len(events.read_text().splitlines())
    with events.open("a") as file:
        file.write('no json\n{"event":"cut')
    about = json.loads((runs / OTHER / "run.json").read_text())
    (runs / OTHER / "run.json").write_text(json.dumps({**about, "more": float("nan")}))
    with serving(home) as served:
        tab.open(served.address)
        tab.wait("document.querySelector('#today p')")
        tab.open(f"{served.base}run/{RUN}/timeline")
        tab.wait_text("#count", f"{whole} events")
        tab.open(f"{served.base}run/{OTHER}")
        tab.wait_text("#tree", "ab12, equal on 4 of 4 hosts")
        tab.open(f"{served.base}run/{RUN}")
        tab.wait_text(".lines", "step 2")
        search = "document.querySelector('input[name=grep]')"
        tab.value(f"{search}.value = '^(a+)+$'; {search}.dispatchEvent(new Event('change'))")
        tab.wait_text("#members", "the search took more than 2 s")
        tab.value(f"{search}.value = 'step 1'; {search}.dispatchEvent(new Event('change'))")
        tab.wait("document.querySelectorAll('.row .text').length == 1")
        shutil.rmtree(runs / RUN)
        tab.wait_text("#words", f"run {RUN}: its directory is gone")
        tab.open(f"{served.base}run/{OTHER}/stacks")
        tab.wait("document.querySelector('#again')")
        shutil.rmtree(runs / OTHER)
        tab.value("document.querySelector('#again')?.click()")  # the page may have asked for the run meanwhile
        tab.wait_text("body", "not on this machine")


def test_a_server_that_ended_while_a_page_was_open(home: Home, tab: Tab) -> None:
    sink = make_run(runs_of(home), steps(3), is_over=False)
    port = str(free_port())
    with serving(home, "--port", port) as served:
        tab.call("Network.setBlockedURLs", urls=["*/static/runs.js"])
        tab.open(served.address)
        tab.wait_text("#page", "the page cannot be loaded")
        tab.call("Network.setBlockedURLs", urls=[])
        tab.call("Page.reload")
        tab.wait("document.querySelector('.card')")
        tab.open(f"{served.base}run/{RUN}")
        tab.wait("document.querySelectorAll('.cell').length == 4")
        _hidden(tab, sink)
    tab.wait_text("#link", "connecting again")
    with serving(home, "--port", port) as again:
        tab.wait_text("#words", "open the address that `mesh ui` has printed")
        tab.open(again.address)
        tab.wait("document.querySelector('.card')")
        tab.value("document.querySelector('.card a').click()")
        tab.wait_text("#words", "")
        tab.wait("document.querySelectorAll('.cell').length == 4")
    abandon(sink)


def _hidden(tab: Tab, sink: StoreSink) -> None:
    """Hide the tab, in which it ends its stream, and show it again. A browser has six connections for all tabs."""
    streams = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('/stream')).length"
    see = "Object.defineProperty(document, 'visibilityState', {{ value: '{}', configurable: true }});"
    changed = "document.dispatchEvent(new Event('visibilitychange'))"
    tab.value(see.format("hidden") + changed)
    tab.wait(f"{streams} == 1")  # an entry is there when its request has ended
    sink.close()  # what was printed is in the logs now
    tab.value(see.format("visible") + changed)
    tab.wait_text(".lines", "step 2")


def test_jobs_and_a_store_of_a_newer_version(desk: Desk, tab: Tab) -> None:
    desk.home.files(tasks__yaml=TASKS)
    job = desk.submit("machines: local:1\nrun: echo step 1\njob: {name: short}\n")
    assert desk.mesh("job", "wait", str(job)).status == 0
    desk.submit("machines: local:1\nrun: 'true'\njob: {name: later, after: '2099-01-01'}\n")
    with serving(desk.home) as served:
        tab.open(served.address)
        tab.wait("document.querySelector('main h1')")
        tab.open(f"{served.base}jobs")
        tab.wait_text("#jobs", "waits for its time")
        assert "looked after by mesh serve (pid" in tab.text("#steward")
        assert "fit\tpending\t0\t0\twaits for data" in tab.text("#jobs")
        _storage(tab)
        tab.value(f"document.querySelector('a[href=\"/job/{job}\"]').click()")
        tab.wait_text("#events", "cause=completed")
        tab.value("[...document.querySelectorAll('summary')].find(one => one.innerText == 'configuration').click()")
        tab.wait_text("details[open] pre", "echo step 1")
        tab.look_everywhere("job")
        tab.value("document.querySelector('a[href^=\"/run/\"]').click()")
        tab.wait_text(".lines", "step 1")
        assert desk.mesh("serve", "stop").status == 0
        tab.open(f"{served.base}jobs")
        tab.wait_text("#steward", "mesh serve does not run: mesh serve")
        with newer(desk.store):
            tab.wait_text("#jobs .error", "999")
            tab.open(f"{served.base}machines")
            tab.wait_text("#machines .error", "999")


def _storage(tab: Tab) -> None:
    """Ask for the sizes of buckets, which no job mounts, and for a quota without any zone."""
    for name in ("Storage", "Quota"):
        tab.value(f"[...document.querySelectorAll('button')].find(one => one.innerText == '{name}').click()")
        tab.wait("document.querySelector('#asked .error')")


@contextlib.contextmanager
def newer(store: Path) -> Iterator[None]:
    """Have a store with the version of a newer mesh for a while."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        ((version,),) = connection.execute("select value from meta where name = 'version'")
        for value in ("999", version):
            connection.execute("update meta set value = ? where name = 'version'", (value,))
            connection.commit()
            if value == "999":
                yield
