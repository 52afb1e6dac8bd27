"""How long from Ctrl-C until all is gone, and known to be."""

from __future__ import annotations

import os
import signal
import time

from benchmarks.figures import Sample
from benchmarks.rows import Chosen, told
from benchmarks.stage import BenchmarkError, Contestant, Stage
from tests.lab import eventually

GRACE = 2.0  # seconds
SLEEP = "sleep 98765"
START = 60.0  # seconds for all ranks to run
HEAD = f"""\
## From Ctrl-C to "all gone"

A rank sleeps on every host. Measured from Ctrl-C until the client has ended. mesh ends once every host has proved that
nothing of the run is left. Processes are then counted from outside: there were none. `--grace {GRACE:g}`; ranks that
ignore SIGTERM and SIGINT get SIGKILL after that time, which is in the figure.
[reliability.md](reliability.md) counts what other tools leave behind.
"""
RANKS = {"ranks that obey": SLEEP.split(), "ranks that ignore SIGTERM": ["sh", "-c", f"trap '' TERM INT; exec {SLEEP}"]}


def interrupted(stage: Stage, one: Contestant) -> Sample:
    """Start it, wait for its ranks, and send Ctrl-C."""
    there = stage.cpu_there()
    with stage.started(one) as process:
        if not eventually(lambda: stage.ranks(SLEEP) == len(stage.addresses), START):
            raise BenchmarkError(f"{one.name}: {stage.ranks(SLEEP)} ranks started")
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        left = stage.ranks(SLEEP)
    if left or process.returncode != 128 + signal.SIGINT:
        raise BenchmarkError(f"{one.name}: {left} ranks left, exit {process.returncode}")
    stage.settle()
    cpu = usage.ru_utime + usage.ru_stime
    return Sample(seconds=seconds, cpu=cpu, hosts_cpu=stage.cpu_there() - there)


def kill(chosen: Chosen) -> str:
    parts = [HEAD]
    for hosts in chosen.hosts:
        with Stage(hosts, chosen.variants) as stage:
            found = [
                Contestant(
                    name=f"{user.variant.name}, {what}",
                    argv=user.mesh("run", "--grace", str(GRACE), "pod", *words),
                    user=user,
                )
                for what, words in RANKS.items()
                for user in stage.users
            ]
            samples: dict[str, list[Sample]] = {one.name: [] for one in found}
            for _ in range(chosen.rounds):
                for one in found:
                    samples[one.name].append(interrupted(stage, one))
            parts.append(
                told(chosen, f"{hosts} hosts", "Ctrl-C to the end", samples, lambda sample: sample.seconds, []) + "\n"
            )
    return "\n".join(parts)
