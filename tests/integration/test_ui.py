"""The pages of `mesh ui` in a real Chromium: recorded runs looked at often, live runs here and on four hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mesh.core.events import Stream
from mesh.pages.verdicts import verdict_lines
from mesh.rundir.records import read_record
from tests.browser import CHROMIUM, LOOKS, PATIENCE_S, Tab
from tests.conftest import Home
from tests.lab import Lab, TestHost, eventually, wait_for_sshd
from tests.recorded import BEGIN, TRACEBACK, disguise, make_run, runs_of, steps, written
from tests.uiserver import Served, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
RUN, OTHER, LARGE = "20261121-101500-3f9c2a", "20261121-101600-aaaaaa", "20261121-101700-bbbbbb"
HOSTILE = b"</script><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \xe2\x80\xaeevil\n"
LARGE_LINES = 45_000
PLOT_LEFT, PLOT_EDGES = 60, 68  # pixels of a plot beside its steps
DISGUISE = "</script><script>alert(3)</script>\u202eevil\x1b[31m\x1b]0;t\x07\u200b'\"><img src=x onerror=alert(4)>"
QUIET: dict[str, object] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
WORDS = ("python3", "train.py")
WAIT = """\
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("caught", flush=True))
print("up", flush=True)
while True:
    signal.pause()
"""
TRAIN = """\
import os, time
rank, failing = int(os.environ["RANK"]), int(os.environ.get("FAIL", "-1"))
for step in range(10_000):
    print(f"step {step} loss {2.5 / (step + 1) + rank / 100:.4f}", flush=True)
    if rank == failing and os.path.exists(os.environ["FLAG"]):
        raise ValueError("batch of 31, expected 32")
    time.sleep(1.0 if rank == 7 else 0.1)
"""


def rows_of(tab: Tab) -> list[str]:
    """Return the lines of the output that are in the page."""
    found: list[str] = tab.value("[...document.querySelectorAll('.row')].map(one => one.innerText)")
    return found


def test_recorded_runs(home: Home, tab: Tab, tmp_path: Path) -> None:
    outputs = [
        *steps(40, missing=2),
        written(50.0, 1, b"step 40 loss nan\n"),
        written(60.0, 3, HOSTILE),
        written(61.0, 2, TRACEBACK, Stream.STDERR),
    ]
    make_run(runs_of(home), outputs, failed=2)
    make_run(runs_of(home), steps(3), run=OTHER, grace=3.0)
    many = b"".join(b"line %d of many\n" % number for number in range(LARGE_LINES))
    make_run(runs_of(home), [written(1.0, 0, many)], run=LARGE)
    disguise(runs_of(home) / LARGE, DISGUISE)
    with serving(home) as served:
        tab.open(served.address)
        tab.wait_text("#today", "3 runs, 1 failed")
        assert tab.value("location.hash") == ""
        created_at_begin(runs_of(home) / RUN)
        _output(home, served, tab)
        _parts(served, tab)
        _list(served, tab)
        _large(served, tab)
        _pictures(served, tab)
        assert tab.dialogs == 0
        assert [one for one in tab.requests if not one.startswith(served.base)] == []
    _report(home, tab, tmp_path)


def created_at_begin(directory: Path) -> None:
    """Date a recorded run back to its first event, as a timeline needs it."""
    path = directory / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": BEGIN - 0.4}))


def _output(home: Home, served: Served, tab: Tab) -> None:
    tab.look(1280, 2000, "light")  # all lines fit
    tab.open(f"{served.base}run/{RUN}")
    tab.wait("document.querySelectorAll('.row .text').length > 40")
    about = read_record(runs_of(home) / RUN).about
    assert tab.text("#verdict") == "\n".join(verdict_lines(about))
    assert tab.value("document.querySelectorAll('.cell').length") == 4
    assert tab.value("document.querySelector('.cell[data-rank=\"2\"]').dataset.state") == "failed"
    logs = home.mesh("logs", "--output", "fold", "--local", RUN)
    lines = {*logs.out.decode().splitlines(), *logs.err.splitlines()}
    hostile = "[3] </script><script>alert(1)</script><img src=x onerror=alert(2)> red <U+202E>evil"
    expected = {hostile, *(line for line in lines if "step" in line)}
    expected |= {f"[2] {line}" for line in TRACEBACK.decode().splitlines()}
    assert eventually(lambda: expected <= set(rows_of(tab)), PATIENCE_S), expected - set(rows_of(tab))
    assert tab.value("document.querySelectorAll('main img, main script').length") == 0
    tab.value("[...document.querySelectorAll('.label')].find(one => one.innerText == '[0-1,3]').click()")
    tab.wait_text("#members", "3 h3")
    tab.value("[...document.querySelectorAll('#members button')].find(one => one.innerText == '1 h1').click()")
    tab.wait("[...document.querySelectorAll('.row .label')].every(one => one.innerText == '[1]')")
    tab.wait_text("#total", "41 lines")
    tab.look(*LOOKS[0])


def _parts(served: Served, tab: Tab) -> None:
    tab.open(f"{served.base}run/{RUN}/timeline")
    tab.wait("document.querySelector('.phase-silent')")
    events = len(served.get(f"runs/{RUN}/timeline")["marks"])
    assert tab.text("#count") == f"{events} events"
    assert tab.value("document.querySelectorAll('#marks tbody tr').length") == events
    assert tab.value("document.querySelectorAll('circle.mark').length") == events
    assert tab.value("document.querySelectorAll('line.first').length") == 1
    phases = "[...document.querySelectorAll('[data-host=h1]')].map(one => one.dataset.phase)"
    assert {"connect", "sync", "prerun", "run", "end"} < set(tab.value(phases))
    assert tab.value(phases)[-1] == "silent"  # drawn over the others
    tab.open(f"{served.base}run/{RUN}/metrics")
    tab.wait("document.querySelector('[data-metric=loss]').dataset.points == 41")
    assert tab.value("document.querySelectorAll('[data-metric=loss] polyline').length") == 3
    assert tab.text("[data-metric=loss] .tip") == "step 40: not a number: rank 1"
    assert tab.value("document.querySelector('.tick').textContent") == "step 40: not a number on rank 1"
    box = tab.value("document.querySelector('[data-metric=loss] svg').getBoundingClientRect().toJSON()")
    place = box["left"] + PLOT_LEFT + (box["width"] - PLOT_EDGES) * 39 / 40
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place, y=box["top"] + 20)
    tab.wait_text("[data-metric=loss] .tip", "step 39: median 0.06, least 0.05 (rank 0), most 0.08 (rank 3)")
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
    _disguised(tab)
    assert tab.value("document.querySelectorAll('.row').length") < 200
    tab.value("document.querySelector('.lines').scrollTop = 1e9")
    tab.wait(f"[...document.querySelectorAll('.row')].some(one => one.innerText.includes('line {LARGE_LINES - 1} of'))")


def _disguised(tab: Tab) -> None:
    """Texts of the run are shown as they are, with their marks as code points, and none is read as HTML."""
    shown = "</script><script>alert(3)</script><U+202E>evil<U+200B>'\"><img src=x onerror=alert(4)>"
    assert tab.text(".facts").count(shown) == 3  # command, cluster, branch
    titles = tab.value("[...document.querySelectorAll('[title]')].map(one => one.title).join(' ')")
    assert f"{shown}h0" in titles
    read = tab.text("body") + titles + tab.value("document.title")
    assert [mark for mark in "\u202e\u200b\x1b\x07" if mark in read] == []
    assert tab.value("document.querySelectorAll('main img, main script').length") == 0


def _pictures(served: Served, tab: Tab) -> None:
    pages = {"now": "", "compare": f"compare?run={RUN}&run={OTHER}", "run": f"run/{RUN}"}
    pages |= {name: f"run/{RUN}/{name}" for name in ("timeline", "metrics", "stacks")}
    pages |= {name: name for name in ("runs", "clusters", "jobs", "machines")}
    for name, page in pages.items():
        tab.open(f"{served.base}{page}")
        tab.wait("document.querySelector('main h1')")
        tab.look_everywhere(name)


def _report(home: Home, tab: Tab, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    file.write_bytes(home.mesh("report", RUN).out)
    tab.open("about:blank")  # the page before may still ask for something
    tab.wait("location.href == 'about:blank'")
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
            light = "Number(document.querySelector('.cell[data-rank=\"{}\"]').style.opacity)"
            tab.wait(f"{light.format(7)} < {light.format(6)}")
            flag.touch()
            tab.wait("document.querySelector('.cell[data-rank=\"11\"]').dataset.state == 'failed'")
            tab.wait_text("#verdict", "ValueError: batch of 31, expected 32")
            assert run.wait(60.0) == 1
            (directory,) = runs_of(home).iterdir()
            verdict = "\n".join(verdict_lines(read_record(directory).about))
            assert "rank 11 on local-11 failed first" in verdict
            tab.wait(f"document.querySelector('#verdict')?.innerText == {json.dumps(verdict)}")
            _killed_and_stopped(home, served, tab, tmp_path / "enough")
        finally:
            run.communicate()


def _killed_and_stopped(home: Home, served: Served, tab: Tab, enough: Path) -> None:
    """A client that is killed, and a run that is stopped from its page."""
    stays = f"trap '' TERM; until [ -e {enough} ]; do sleep 0.5; done"  # while the page is looked at
    killed = home.popen("run", "--grace", "300", "local:2", "sh", "-c", stays, **QUIET)
    tab.open(served.base)
    tab.wait("document.querySelector('.card')?.innerText.includes('2 running')")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    tab.wait("document.querySelector('.card')?.innerText.includes('client gone, lease 60 s')")
    is_shown = "/busy: (running|ending)/.test(document.querySelector('#holders').innerText)"
    ask = "document.querySelector('#ask')"
    tab.wait(f"{is_shown} || (!{ask}.disabled && {ask}.click())", 3 * PATIENCE_S)  # a host may be too busy to answer
    assert f"until [ -e {enough} ]" in tab.text("#holders")
    enough.touch()
    home.files(wait__py=WAIT)
    run = home.popen("run", "--name", "stopme", "local:2", "python3", "wait.py", **QUIET)
    tab.wait("[...document.querySelectorAll('.card a')].find(one => one.innerText == 'stopme')")
    tab.wait("[...document.querySelectorAll('.card')].some(one => /stopme[^]*2 running/.test(one.innerText))")
    tab.value("[...document.querySelectorAll('.card a')].find(one => one.innerText == 'stopme').click()")
    _wait_for_both(tab, "up")
    tab.value("document.querySelector('#signal').click()")
    tab.wait_text("#answer", "signal: done")
    _wait_for_both(tab, "caught")
    tab.value("document.querySelector('#detach').click()")
    tab.wait_text("#answer", "detach: done")
    assert run.wait(60.0) == 0
    run.communicate()
    tab.wait_text("#status", "detached")
    tab.value("document.querySelector('#stop').click()")
    tab.wait_text("#answer", "stop: done")
    assert "stopme" not in home.mesh("ps", "local:2").out.decode()


def _wait_for_both(tab: Tab, text: str) -> None:
    """Wait until ranks 0 and 1 have printed a line: one row has both, or two rows if one of them came late."""
    rows = f"[...document.querySelectorAll('.row')].filter(one => one.querySelector('.text')?.innerText == '{text}')"
    labels = f"{rows}.map(one => one.querySelector('.label').innerText).join()"
    tab.wait(f"(found => found.includes('0') && found.includes('1'))({labels})")


DATA = """\
import os, threading


def load():
    threading.Event().wait()


def train():
    threading.Event().wait()


print("step 1 loss 2", flush=True)
(load if os.environ["RANK"] == "2" else train)()
"""


@pytest.mark.sshd
@pytest.mark.root
def test_four_hosts(home: Home, lab: Lab, tab: Tab) -> None:
    home.clusters(lab.cluster_yaml("pod", "devices: [/root/dev/chip*]"))
    home.trust(lab)
    home.files(data__py=DATA)
    for host in lab.hosts:
        host.script("mkdir dev; touch dev/chip0")
    with serving(home) as served:
        run = home.popen("run", "--stacks", "pod", "python3", "data.py", **QUIET)
        try:
            tab.open(served.address)
            tab.wait("document.querySelector('.card')?.innerText.includes('4 running')")
            tab.value("document.querySelector('.card a').click()")
            tab.wait("document.querySelectorAll('.cell').length == 4")
            _stacks_of(home, tab)
            tab.open(f"{served.base}cluster/pod")
            tab.wait("document.querySelectorAll('#check td[data-host]').length == 4")
            assert "busy with" in tab.text("#check")
            assert f"{home.project.name}-" in tab.text("#check")  # the workspace there, with its size
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60.0)
        _cluster(home, lab, tab)


def _stacks_of(home: Home, tab: Tab) -> None:
    """Take two shots of the stacks, and read one of them."""

    def groups() -> list[dict[str, Any]]:
        return [one for one in json.loads(home.mesh("stacks", "--json").out)["groups"] if one["main_thread"]]

    def places() -> list[tuple[object, str]]:
        return [(one["ranks"], one["where"].partition(",")[0]) for one in groups()]

    expected = [([2], "load at data.py:5"), ([0, 1, 3], "train at data.py:9")]
    assert eventually(lambda: places() == expected, PATIENCE_S), places()  # once all have got there
    tab.value("[...document.querySelectorAll('.tabs a')].find(one => one.innerText == 'Stacks').click()")
    for count in (1, 2):
        tab.wait("document.querySelector('#again') && !document.querySelector('#again').disabled")
        tab.value("document.querySelector('#again').click()")
        tab.wait(f"document.querySelectorAll('.shot').length == {count}")
    shown = tab.value("[...document.querySelector('.shot').querySelectorAll('summary')].map(one => one.innerText)")
    found = groups()
    assert shown == [f"[2] {found[0]['where']}", f"[0-1,3] {found[1]['where']}"]
    tab.value("document.querySelector('.shot summary').click()")
    calls = [f"{one['function']} at {one['file']}:{one['line']}" for one in found[0]["frames"]]
    assert tab.text(".shot details[open] pre") == "\n".join(calls)


def _cluster(home: Home, lab: Lab, tab: Tab) -> None:
    """Look at a host whose device is held, and at one whose sshd is stopped."""
    held, silent = lab.hosts[0], lab.hosts[1]
    held.script("setsid sleep 4996 <dev/chip0 >/dev/null 2>&1 &")
    try:
        assert eventually(lambda: any(command.startswith("sleep 4996") for _, command in held.processes()))
        with without_sshd(silent):
            again = "[...document.querySelectorAll('button')].find(one => one.innerText == 'Check again')"
            # The answer to a click may be that of two seconds before.
            is_shown = "document.querySelector('#check').innerText.includes('refused')"
            tab.wait(f"{again} && !{again}.disabled && ({is_shown} || {again}.click())")
            tab.wait(f"document.querySelector('#check td[data-host=\"{silent.address}\"]')?.classList.contains('bad')")
            tab.wait_text("#top", "cannot connect")
            reports = {one["host"]: one["checks"] for one in json.loads(home.mesh("check", "--json", "pod").out)}
        (failed,) = [one for one in reports[silent.address] if one["verdict"] == "failed"]
        assert "refused" in failed["detail"]
        sentence = failed["detail"].partition(" (")[0]  # the rest counts seconds and tries
        assert f"✗ {sentence}" in tab.text("#check")
        assert sentence in tab.text("#top")
        (device,) = [one for one in reports[held.address] if one["name"] == "devices"]
        holder = device["detail"].partition(", for")[0]  # the rest counts seconds
        assert f"✗ {holder}" in tab.text("#check")
        assert "sleep 4996" in device["detail"]
        tab.look_everywhere("cluster")
    finally:
        for pid, command in held.processes():
            if "sleep 4996" in command:
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def without_sshd(host: TestHost) -> Iterator[None]:
    """Stop the sshd of a host for a while; its processes go on."""
    host.script("kill $(cat /run/sshd.pid); while [ -e /run/sshd.pid ]; do sleep 0.01; done")
    try:
        yield
    finally:
        host.script("/usr/sbin/sshd -f /etc/ssh/sshd_config -E /var/log/sshd.log")
        wait_for_sshd(host.address, host.port)
