"""How fast the pages of `mesh ui` are: one million lines in a real Chromium, and twenty streams of events."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Spread, table
from benchmarks.rows import Chosen
from mesh.core.events import Event
from tests.browser import Tab, browser
from tests.conftest import Home, new_home
from tests.recorded import RANKS, make_run, written
from tests.uiserver import Served, serving

LINES, CHUNK_LINES, STREAMS, FRAMES, RUNS = 1_000_000, 1000, 20, 120, 5000
LARGE = "20261121-101500-3f9c2a"
HEAD = """\
## Pages of mesh ui

A recorded run of {lines:,} different lines in Chromium without a window, at 1280 x 900. First paint and first lines:
from the address to them, while the server still folds. Scrolling: {frames} jumps over the whole output, one a frame.
Runs: from the address of the list to its first row, with {runs:,} run directories, by a server that has just begun.
Streams: {streams} plain HTTP clients read the events of a run of 16 ranks with ten lines a second each. The load of the
machine at the begin was {load:.1f}, of {cores} cores.
"""
# Notes the time of the first line and the longest task of the page.
WATCH = """
window.found = {first: 0, longest: 0, row: 0};
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.found.longest = Math.max(window.found.longest, one.duration);
}).observe({type: "longtask"});
new MutationObserver(() => {
  if (!window.found.first && document.querySelector(".row .text")) window.found.first = performance.now();
  if (!window.found.row && document.querySelector("#found tbody tr")) window.found.row = performance.now();
}).observe(document, {subtree: true, childList: true});
"""
SCROLL = """
new Promise((done) => {
  window.found.longest = 0;
  const lines = document.querySelector(".lines");
  let frame = 0;
  const began = performance.now();
  const step = () => {
    lines.scrollTop = (lines.scrollHeight * (frame * 37 % %(frames)d)) / %(frames)d;
    frame += 1;
    if (frame < %(frames)d) requestAnimationFrame(step);
    else done(performance.now() - began);
  };
  requestAnimationFrame(step);
})
"""
TRAIN = """\
import sys, time
for step in range(int(sys.argv[1])):
    print(f"step {step} loss {2.5 / (step + 1):.4f}", flush=True)
    time.sleep(0.1)
"""


def ui(chosen: Chosen) -> str:
    """Measure, and return the section."""
    rows, load = [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        home = new_home(Path(place))
        runs = home.path / ".local/state/mesh/runs"
        runs.mkdir(parents=True)
        make_run(runs, list(_lines()), run=LARGE)
        looks = [_look(served, tab) for served, tab in _visits(home, Path(place), chosen.rounds)]
        paints, firsts, scrolls, longest, heaps = zip(*looks, strict=True)
        rows.append(["first paint, s", Spread.of(paints).told(), "< 1"])
        rows.append(["first lines, s", Spread.of(firsts).told(), "< 1"])
        rows.append(["frames a second while scrolling", Spread.of(scrolls).told(), ">= 30"])
        rows.append(["longest task while scrolling, ms", Spread.of(longest).told(), "< 100"])
        rows.append(["memory of the page's script, MB", Spread.of(heaps).told(), "< 200"])
        _multiply(runs)
        lists = [_first_row(served, tab) for served, tab in _visits(home, Path(place), chosen.rounds)]
        rows.append([f"list of {RUNS:,} runs, s", Spread.of(lists).told(), "< 1"])
        home.files(train__py=TRAIN)
        cpu, ratio = _streams(home, chosen.rounds)
        rows.append([f"CPU of the server with {STREAMS} streams, % of a core", f"{cpu:.1f}", "< 20"])
        rows.append(["time of a run with them / without", f"{ratio:.2f}", "< 1.10"])
    head = HEAD.format(
        lines=LINES, frames=FRAMES, streams=STREAMS, runs=RUNS, load=load, cores=len(os.sched_getaffinity(0))
    )
    return f"{head}\n{table(['', 'found', 'wanted'], rows)}"


def _visits(home: Home, place: Path, rounds: int) -> Iterator[tuple[Served, Tab]]:
    """Yield a server that has just begun and a new browser, once for each round; place: of the browsers' files"""
    for _ in range(rounds):
        directory = Path(tempfile.mkdtemp(dir=place))
        with serving(home) as served, browser(directory) as tab:
            yield served, tab


def _lines() -> Iterator[Event]:
    for number in range(LINES // CHUNK_LINES):
        begin = number * CHUNK_LINES
        text = "".join(
            f"line {line} of a long output, loss {line / 7:.4f}\n" for line in range(begin, begin + CHUNK_LINES)
        )
        yield written(number / 100, number % RANKS, text.encode())


def _multiply(runs: Path) -> None:
    """Make directories of runs that have ended, as many as RUNS together."""
    about = json.loads((runs / LARGE / "run.json").read_text())
    for number in range(RUNS - 1):
        directory = runs / f"20261120-{number // 100:06d}-{number:06x}"
        directory.mkdir()
        (directory / "run.json").write_text(json.dumps({**about, "run": directory.name}))


def _first_row(served: Served, tab: Tab) -> float:
    """Return seconds to the first row of the list of runs."""
    tab.look(1280, 900, "light")
    tab.open(f"{served.base}machines#token={served.token}")  # it does not look at runs
    tab.wait("document.querySelector('main h1')")
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    tab.open(f"{served.base}runs")
    tab.wait("window.found?.row")
    return float(tab.value("window.found.row")) / 1000


def _look(served: Served, tab: Tab) -> tuple[float, float, float, float, float]:
    """Return seconds to the first paint and line, frames a second, the longest task in ms, and MB of memory."""
    tab.look(1280, 900, "light")
    tab.open(served.address)
    tab.wait("document.querySelector('main h1')")
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    tab.open(f"{served.base}run/{LARGE}")
    tab.wait("window.found?.first")
    first = tab.value("window.found.first") / 1000
    paint = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
    tab.wait("/^[0-9]+ lines$/.test(document.querySelector('#total')?.innerText)")
    milliseconds = tab.value(SCROLL.replace("%(frames)d", str(FRAMES)))
    tab.call("HeapProfiler.collectGarbage")
    heap = tab.call("Runtime.getHeapUsage")["usedSize"] / 1e6
    return paint, first, FRAMES / milliseconds * 1000, tab.value("window.found.longest"), heap


def _streams(home: Home, rounds: int) -> tuple[float, float]:
    """Return the CPU of the server in percent of a core, and the ratio of a run's times."""
    words = ("run", "--output", "none", "local:16", "python3", "train.py", "60")
    alone = [_timed(home, *words) for _ in range(rounds)]
    shares, beside = [], []
    with serving(home) as served:
        for _ in range(rounds):
            run = home.popen(*words)
            began = time.monotonic()
            while not (rows := [row for row in served.get("runs")["runs"] if row["state"] == "on"]):
                time.sleep(0.05)
            with _readers(served, str(rows[0]["run"])):
                time.sleep(1.0)
                before, at = _cpu(served.process.pid), time.monotonic()
                time.sleep(3.0)
                shares.append(100 * (_cpu(served.process.pid) - before) / (time.monotonic() - at))
                run.communicate()
                beside.append(time.monotonic() - began)
    return statistics.median(shares), statistics.median(beside) / statistics.median(alone)


def _timed(home: Home, *words: str) -> float:
    began = time.monotonic()
    assert home.mesh(*words).status == 0
    return time.monotonic() - began


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _readers(served: Served, run: str) -> Iterator[None]:
    """Have STREAMS clients read the events of a run."""
    ends = threading.Event()

    def read() -> None:
        with served.stream(f"runs/{run}/stream") as events:
            for _, _, data in events:
                if ends.is_set() or data["complete"]:
                    return

    threads = [threading.Thread(target=read) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()
