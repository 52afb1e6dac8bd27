"""Programs: the goals of calls between nodes, beside other libraries, all measured in the same run."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import program_hosts
from benchmarks.figures import table
from benchmarks.program_peers import PEERS, measured
from benchmarks.programs import mesh_program
from benchmarks.rows import Chosen
from benchmarks.stage import BenchmarkError, Stage

HEAD = """\
## Calls between nodes

Two processes of this machine: the median round trip of a small call, calls with 1,000 of them in flight from one
caller, and an array of 100 MB. mesh encrypts by TLS between hosts, and uses a Unix socket within one. Medians of all
rounds; the libraries take turns in each.
"""
GOALS_HEAD = """\
### Goals

A ratio is that of the medians above, or of figures of one run. Links of 100 Mbit/s are made by tc, a round trip of
30 ms by handing packets on later.
"""
SCRIPT_TIMEOUT_S = 900.0
LINK, LINK_HOSTS, NODES, NODE_HOSTS, CALLERS, DELAY_S = "100mbit", 16, 32, 8, 256, 0.03
HOST_LINK, TLS_LINK = "mesh, one host", "mesh, two hosts, TLS"
Measures = dict[str, Sequence[float]]


def programs(chosen: Chosen) -> str:
    """Return the section of the page."""
    found: dict[str, list[Sequence[float]]] = {}
    for _ in range(chosen.rounds):
        for name, one in all_measured().items():
            found.setdefault(name, []).append(one)
    middle = {name: [statistics.median(column) for column in zip(*taken, strict=True)] for name, taken in found.items()}
    rows = [
        [name, f"{trip * 1e6:,.0f} us", f"{rate:,.0f}/s" if rate else "-", f"{bulk / 1e6:,.0f} MB/s" if bulk else "-"]
        for name, (trip, rate, bulk) in middle.items()
    ]
    absent = [peer.name for peer in PEERS if peer.name not in middle]
    text = HEAD + "\n" + table(["", "round trip", "1,000 in flight", "100 MB"], rows)
    text += f"\nNot measured, because it is not installed here: {', '.join(absent)}.\n" * bool(absent)
    goals = [*of_calls(middle), *of_hosts()]
    return f"{text}\n\n{GOALS_HEAD}\n" + table(["goal", "wanted", "found", ""], goals)


def all_measured() -> Measures:
    """Return the measures of mesh and of all libraries that are here."""
    found: Measures = {HOST_LINK: mesh_program("a,a"), TLS_LINK: mesh_program("a,b")}
    for peer in PEERS:
        one = measured(peer)
        if one:
            found[peer.name] = one
    return found


def of_calls(found: Measures) -> list[list[str]]:
    """Return the goals of calls between two processes."""
    tls, here = found[TLS_LINK], found[HOST_LINK]
    rows = [goal("round trip over TLS, us", tls[0] * 1e6, 200, most=True)]
    for name, limit in (("Ray, one host", 1 / 3), ("grpcio, mTLS", 1 / 2), ("Courier, no encryption", 1.25)):
        if name in found:
            rows.append(goal(f"round trip over TLS, {name} = 1", tls[0] / found[name][0], limit, most=True))
    rows.append(goal("1,000 calls in flight, calls/s", tls[1], 8000))
    if "Ray, one host" in found:
        rows.append(goal("1,000 calls in flight, Ray = 1", tls[1] / found["Ray, one host"][1], 1.5))
    for name, least in (("raw TCP", 0.13), ("grpcio, mTLS", 3)):
        if name in found:
            rows.append(goal(f"100 MB over TLS, {name} = 1", tls[2] / found[name][2], least))
    if "Ray, one host" in found:
        rows.append(goal("100 MB within a host, Ray = 1", here[2] / found["Ray, one host"][2], 1.5))
    return rows


def of_hosts() -> list[list[str]]:
    """Return the goals that need hosts or many processes."""
    rows: list[list[str]] = []
    with stage_of(1) as stage:
        sender, receiver = script(stage, "memory", program_hosts.ARRAY_BYTES)
        rows.append(goal("peak memory of the sender, array = 1", sender, 1.1, most=True))
        rows.append(goal("peak memory of the receiver, array = 1", receiver, 1.1, most=True))
        arrived, made, memory = script(stage, "callers", CALLERS)
        rows.append(goal(f"{CALLERS} callers: calls lost", made - arrived, 0, most=True))
        rows.append(goal(f"{CALLERS} callers: MB of memory", memory / 1e6, 100, most=True))
        with stage.slow(round_trip=DELAY_S):
            trip, _ = script(stage, "relay", 30)
        rows.append(goal("call from the client at 30 ms, ms beyond it", (trip - DELAY_S) * 1e3, 5, most=True))
    with stage_of(NODE_HOSTS) as stage:
        for keep, limit in (("600", 1.5), ("0", 3.0)):
            beyond = launch_beyond_run(stage, keep)
            kept = "kept" if keep != "0" else "not kept"
            rows.append(
                goal(f"{NODES} nodes on {NODE_HOSTS} hosts, {kept}: s beyond mesh run", beyond, limit, most=True)
            )
    with stage_of(LINK_HOSTS) as stage:
        for host in stage.lab.hosts:
            host.run(*f"tc qdisc add dev eth0 root tbf rate {LINK} burst 64k latency 50ms".split())
        one, everywhere = script(stage, "broadcast", LINK_HOSTS)
        rows.append(goal(f"100 MB to {LINK_HOSTS} hosts at 100 Mbit/s, one = 1", everywhere / one, 1.4, most=True))
    return rows


def stage_of(hosts: int) -> Stage:
    """Return hosts that have this process's Python with its packages."""
    return Stage(hosts, visible=[Path(sys.prefix), Path(sys.base_prefix)])


def launch_beyond_run(stage: Stage, keep: str) -> float:
    """Return the seconds until 32 nodes are ready, beyond those of a whole run that does nothing."""
    run = stage.user.mesh("run", "pod", "python3", "-c", "pass")
    both: list[list[float]] = [[], []]
    for turn in range(4):
        begun = time.monotonic()
        called(stage, run, keep)
        plain = time.monotonic() - begun
        begun = time.monotonic()
        ready = script(stage, "launch", NODES, keep)
        if turn:  # the first one brings what hosts keep
            both[0].append(plain)
            both[1].append(ready - begun)
    stage.user.stop_keeper()
    return statistics.median(both[1]) - statistics.median(both[0])


def script(stage: Stage, kind: str, argument: int, keep: str = "0") -> Any:
    """Run the file of programs as a user of the stage; return its value. Raises BenchmarkError if it fails."""
    shutil.copy(str(program_hosts.__file__), stage.user.project)
    words = [sys.executable, Path(str(program_hosts.__file__)).name, kind, str(argument)]
    out = called(stage, words, keep)
    line = next((line for line in out.splitlines() if line.startswith("FOUND ")), "")
    if not line:
        raise BenchmarkError(f"{kind}: {out[-2000:]}")
    return json.loads(line.removeprefix("FOUND "))


def called(stage: Stage, words: Sequence[str], keep: str) -> str:
    """Run a command of the stage's user and return its output. Raises BenchmarkError if it fails."""
    done = subprocess.run(
        words,
        cwd=stage.user.project,
        env={**stage.user.environ, "MESH_KEEP": keep},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"{words}: exit {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def goal(name: str, found: float, limit: float, *, most: bool = False) -> list[str]:
    """Return the row of a goal. most: the limit is the most, else the least

    >>> goal("calls", 9000, 8000), goal("round trip", 250.4, 200, most=True)
    (['calls', '>= 8,000', '9,000', 'reached'], ['round trip', '<= 200', '250', 'missed'])
    """
    reached = found <= limit if most else found >= limit
    return [name, f"{'<=' if most else '>='} {_shown(limit)}", _shown(found), "reached" if reached else "missed"]


def _shown(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")
