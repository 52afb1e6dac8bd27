"""Programs on four hosts: how much longer one takes than a run that does nothing, and how fast ``stop`` ends its nodes.

``python -m benchmarks.program_ends [ROUNDS]`` prints a table with the load of the machine. Needs root, for test hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import program_lives
from benchmarks.figures import table
from benchmarks.stage import BenchmarkError, Stage

HOSTS, ROUNDS = 4, 5
BEYOND_RUN_GOAL_S, STOP_GOAL_S = 1.5, 1.0
COMMAND_TIMEOUT_S = 300.0


def called(stage: Stage, words: Sequence[str]) -> tuple[float, str]:
    """Run a command of the stage's user; return its seconds and output. Raises BenchmarkError if it fails."""
    begun = time.monotonic()
    done = subprocess.run(
        words,
        cwd=stage.user.project,
        env={**stage.user.environ, "MESH_KEEP": "0"},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"{words}: exit {done.returncode}: {done.stderr[-2000:]}")
    return time.monotonic() - begun, done.stdout


def measured(rounds: int) -> list[list[str]]:
    """Return the rows of both goals: medians of interleaved rounds, after one that brings what hosts keep."""
    plain: list[float] = []
    programs: list[float] = []
    stops: list[float] = []
    with Stage(HOSTS) as stage:
        script = Path(str(program_lives.__file__))
        shutil.copy(script, stage.user.project)
        hosts = json.dumps([host.address for host in stage.lab.hosts])
        for turn in range(rounds + 1):
            seconds, _ = called(stage, stage.user.mesh("run", "pod", "python3", "-c", "pass"))
            longer, _ = called(stage, [sys.executable, script.name, "whole", hosts])
            _, out = called(stage, [sys.executable, script.name, "ended", hosts])
            if turn:
                plain.append(seconds)
                programs.append(longer)
                stops.append(float(next(line for line in out.splitlines() if line.startswith("FOUND ")).split()[1]))
    beyond = [longer - seconds for longer, seconds in zip(programs, plain, strict=True)]
    return [
        row(f"a program of 7 nodes on {HOSTS} hosts, s beyond mesh run", beyond, BEYOND_RUN_GOAL_S),
        row(f"stop() of {2 * HOSTS} nodes on {HOSTS} hosts, s to the last end", stops, STOP_GOAL_S),
        [f"mesh run of `python3 -c pass` on {HOSTS} hosts, s", "-", told(plain)],
    ]


def row(name: str, found: Sequence[float], goal: float) -> list[str]:
    """Return a goal, its limit and the figures."""
    return [name, f"<= {goal:g}", told(found)]


def told(figures: Sequence[float]) -> str:
    """Return the median, with the least and the most."""
    return f"{statistics.median(figures):.2f} ({min(figures):.2f}-{max(figures):.2f})"


def main() -> None:
    """Print the table."""
    load = os.getloadavg()[0]
    rows = measured(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
    print(table(["", "goal", "median (min-max)"], rows))
    print(f"Load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after.")


if __name__ == "__main__":
    main()
