"""The goals of programs that need hosts or many processes: memory, callers, starts, ends, and slow links."""

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

from benchmarks import program_hosts, program_lives
from benchmarks.figures import goal
from benchmarks.stage import BenchmarkError, Stage

SCRIPT_TIMEOUT_S = 900.0
LINK, LINK_HOSTS, NODES, NODE_HOSTS, CALLERS, DELAY_S = "100mbit", 16, 32, 8, 256, 0.03
FEW_HOSTS, LIVES = 4, 5


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
            trip, rate = script(stage, "relay", 30)
            channel = ssh_rate(stage)
        rows.append(goal("call from the client at 30 ms, ms beyond it", (trip - DELAY_S) * 1e3, 5, most=True))
        rows.append(goal("array from the client at 30 ms, an SSH channel = 1", rate / channel, 0.8))
    rows += of_lives()
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


def of_lives() -> list[list[str]]:
    """Return the goals of whole programs on few hosts: how long they take, and how fast ``stop`` ends their nodes.

    Runs that do nothing take turns with the programs. The first round brings what hosts keep, and does not count.
    """
    beyond, ends = [], []
    with Stage(FEW_HOSTS) as stage:
        shutil.copy(str(program_lives.__file__), stage.user.project)
        hosts = json.dumps([host.address for host in stage.lab.hosts])
        words = [sys.executable, Path(str(program_lives.__file__)).name]
        for turn in range(LIVES + 1):
            begun = time.monotonic()
            called(stage, stage.user.mesh("run", "pod", "python3", "-c", "pass"), "0")
            plain = time.monotonic() - begun
            begun = time.monotonic()
            called(stage, [*words, "whole", hosts], "0")
            whole = time.monotonic() - begun
            end = found(called(stage, [*words, "ended", hosts], "0"))
            if turn:
                beyond.append(whole - plain)
                ends.append(end)
    nodes = 2 * (FEW_HOSTS - 1) + 1
    name = f"a whole program of {nodes} nodes on {FEW_HOSTS} hosts: s beyond mesh run"
    stops = f"stop() of {2 * FEW_HOSTS} nodes on {FEW_HOSTS} hosts: s to the last end"
    return [
        goal(name, statistics.median(beyond), 1.5, most=True),
        goal(stops, statistics.median(ends), 1.0, most=True),
    ]


def ssh_rate(stage: Stage) -> float:
    """Return the bytes a second that one channel of OpenSSH sends to the first host."""
    size = program_hosts.ARRAY_BYTES // 5
    script = f"for turn in 1 2; do echo ready; head -c {size} >/dev/null; done; echo done"
    argv = ["ssh", *stage.ssh_options, f"root@{stage.addresses[0]}", script]
    rates = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        for _ in range(2):
            begun = time.monotonic()
            process.stdin.write(bytes(size))
            process.stdin.flush()
            process.stdout.readline()
            rates.append(size / (time.monotonic() - begun))
    return max(rates)


def script(stage: Stage, kind: str, argument: int, keep: str = "0") -> Any:
    """Run the file of programs as a user of the stage; return its value. Raises BenchmarkError if it fails."""
    shutil.copy(str(program_hosts.__file__), stage.user.project)
    words = [sys.executable, Path(str(program_hosts.__file__)).name, kind, str(argument)]
    return found(called(stage, words, keep))


def found(out: str) -> Any:
    """Return the value that a program has printed. Raises BenchmarkError without one."""
    line = next((line for line in out.splitlines() if line.startswith("FOUND ")), "")
    if not line:
        raise BenchmarkError(out[-2000:])
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
