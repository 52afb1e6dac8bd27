"""Many hosts: what grows no faster than they do, and what is said where this machine ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Sample, ratios
from benchmarks.relays import Costs, start
from benchmarks.rows import Chosen, told
from benchmarks.stage import Variant
from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Connected, Event, Exited, Gone, Locked, PrepareFailed, Ready, Tick
from mesh.engine.supervisor import Supervisor
from tests.conftest import REPOSITORY, Home
from tests.full import times
from tests.specs import spec_of


def calls_of(hosts: int, *, fail: bool) -> int:
    """How many functions a Supervisor's run takes, from the first event to the last."""
    placement = place_ranks(tuple(Host(name=f"h{node}", address="x") for node in range(hosts)))
    spec = spec_of(run="r", project="p", workspace=Path("/"), command=("true",), sync=False)
    supervisor = Supervisor(spec, placement)
    nodes = range(hosts)
    history: list[Event] = [Connected(time=1.0, node=node, address="", machine="") for node in nodes]
    if fail:
        history += [PrepareFailed(time=2.0, node=node, step="lock", message="no") for node in nodes]
        history += [Tick(time=9.0, monotonic=9.0)]
    else:
        history += [Locked(time=2.0, node=node) for node in nodes]
        history += [Ready(time=3.0, node=node) for node in nodes]
        history += [Exited(time=4.0, node=node, rank=node, code=1) for node in nodes]
        history += [Tick(time=9.0, monotonic=9.0)]
    history += [Gone(time=10.0, node=node) for node in nodes]
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(note)
    try:
        for event in history:
            supervisor.handle(event)
    finally:
        sys.setprofile(None)
    assert supervisor.done
    assert len(supervisor.outcome(11.0).failures if fail else supervisor.outcome(11.0).exits) == hosts
    return count


@pytest.mark.parametrize("fail", [False, True], ids=["all ranks fail", "no host can take part"])
def test_no_event_walks_over_all_hosts(fail: bool) -> None:
    assert calls_of(800, fail=fail) < 5 * calls_of(200, fail=fail)


RANKS = times(400, full=1000)


def test_many_ranks_take_a_thread_each_and_little_else(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.played", str(RANKS), "--lines", "3"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stderr.splitlines()[-1])
    assert len(done.stdout.splitlines()) == 3 * RANKS
    assert found["threads"] < RANKS + 12
    assert found["descriptors"] < 100
    assert found["memory"] < 150  # MB; 63 here


def test_too_few_descriptors_are_told_before_anything_is_tried(home: Home) -> None:
    home.clusters('big:\n  hosts: ["h[000-999].invalid"]\n')
    words = ["sh", "-c", 'ulimit -S -n 200; ulimit -H -n 500; exec "$@"', "sh", *home.argv("exec", "big", "true")]
    done = subprocess.run(words, cwd=home.project, env=home.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "1000 hosts need 1128 open files, and this process may have 500" in done.stderr
    assert "ulimit -n 1128" in done.stderr


def test_ratios_are_of_one_round() -> None:
    def of(*seconds: float) -> list[Sample]:
        return [Sample(seconds=one) for one in seconds]

    slow_moment = {"mesh": of(1.0, 10.0, 1.0), "other": of(2.0, 20.0, 2.0)}
    assert ratios(slow_moment, "mesh", lambda sample: sample.seconds) == {"mesh": 1.0, "other": 2.0}


def test_relays_grow_with_the_depth_of_their_tree() -> None:
    costs = Costs(opening=0.01, login=0.3, agent=0.1, begin=0.0)
    assert start(1024, 0, costs) > 1024 * costs.opening
    assert start(1 + 32 + 32**2, 32, costs) < 3 * (32 * costs.opening + costs.login + costs.agent)


def test_revisions_are_compared_in_pairs() -> None:
    before, now = Variant(name="mesh at x", source=REPOSITORY), Variant(name="mesh", source=REPOSITORY)
    samples = {"old exec": 2.0, "exec": 1.0, "old run": 8.0, "run": 6.0}
    taken = {name: [Sample(seconds=seconds)] for name, seconds in samples.items()}
    chosen = Chosen(variants=(before, now))
    text = told(chosen, "8 hosts", "until its end", taken, lambda sample: sample.seconds, [])
    assert "x mesh at x |" in text
    assert re.findall(r"([0-9.]+) \|$", text, re.M) == ["1.00", "0.50", "1.00", "0.75"]
