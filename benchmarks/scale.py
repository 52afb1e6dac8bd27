"""Thousands of ranks: what a client costs with agents that are played, and what relays would gain."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.figures import table
from benchmarks.relays import Costs, start
from benchmarks.rows import Chosen
from benchmarks.stage import REPOSITORY, BenchmarkError

CASES = {
    "nothing printed": [],
    "20 lines a rank, all": ["--lines", "20"],
    "20 equal lines a rank, folded": ["--lines", "20", "--mode", "fold", "--equal"],
}
# As measured with real hosts: client CPU between 32 and 128 of them; logins at a round trip of 30 ms.
COSTS = Costs(opening=0.010, login=0.35, agent=0.15, begin=0.3)
TREES = (128, 256, 1024, 4096, 16384)
FAN_OUTS = {0: "one client", 16: "relays, 16 each", 32: "relays, 32 each", 64: "relays, 64 each"}
HEAD = """\
## Measured

A run of `true`, or of a program that prints. The agents are played in the client's process, without connections.
The figures are the client's own part and that of the played agents, which decode what they are sent.
"""
RELAYS = """\
## Simulated

Seconds until all agents run (`benchmarks/relays.py`). Each connection costs its opener {opening:.0f} ms of CPU. A login
takes {login:.0f} ms, and an agent's start {agent:.0f} ms.
"""


def played_run(hosts: int, options: list[str]) -> tuple[dict[str, float], str]:
    """Run a command on hosts that are played; return its figures and its output. Raises BenchmarkError."""
    argv = [sys.executable, "-m", "benchmarks.played", str(hosts), *options]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{argv}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stderr.splitlines()[-1])
    return figures, done.stdout


def run(hosts: int, options: list[str]) -> list[str]:
    found, output = played_run(hosts, options)
    return [
        f"{found['seconds']:.1f}",
        f"{1000 * found['cpu'] / hosts:.1f}",
        f"{found['memory']:.0f}",
        f"{found['sent'] / hosts / 1000:.0f}",
        f"{found['threads']:.0f}",
        f"{found['descriptors']:.0f}",
        f"{len(output) / 1000:.0f}",
    ]


def scale(chosen: Chosen) -> str:
    rows = [[f"{hosts:,}", case, *run(hosts, options)] for case, options in CASES.items() for hosts in chosen.hosts]
    head = ["hosts", "", "s", "CPU, ms a host", "MB", "KB sent a host", "threads", "descriptors", "KB shown"]
    trees = [[f"{hosts:,}", *(f"{start(hosts, fan_out, COSTS):.1f}" for fan_out in FAN_OUTS)] for hosts in TREES]
    costs = {name: 1000 * getattr(COSTS, name) for name in ("opening", "login", "agent")}
    relays = f"{RELAYS.format(**costs)}\n{table(['hosts', *FAN_OUTS.values()], trees)}"
    return f"{HEAD}\n{table(head, rows)}\n\n{relays}\n"
