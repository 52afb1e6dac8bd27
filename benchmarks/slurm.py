"""Nodes of an allocation of Slurm, reached by mesh and by ``srun``."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.rows import Chosen, told
from benchmarks.stage import REPOSITORY, BenchmarkError
from tests.slurmcluster import NODES, SlurmCluster

LINES, LINE = 200_000, "x" * 78  # a rank; with a number and a newline 88 bytes
RANKS_PER_NODE = 2
OUTPUT = "/root/output"  # on the login node
HEAD = """\
## Nodes of Slurm

A real Slurm 22.05 on this machine, with four nodes. mesh and `srun` run on the login node, and the allocation is held.
`srun --label` breaks some lines in two.
"""
CLUSTER = f"big: {{slurm: {{nodes: {NODES}, exclusive: true, hold: 10m}}}}\n"


def timed(cluster: SlurmCluster, argv: Sequence[str]) -> Sample:
    """Run a command on the login node, with its output in a file there. Raises BenchmarkError."""
    began = time.monotonic()
    process = cluster.popen("sh", "-c", f'exec "$@" >{OUTPUT}', "sh", *argv, PYTHONPATH=str(REPOSITORY))
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        words = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"{shlex.join(argv)[:200]}: {words.decode()[-1000:]}")
    return Sample(seconds=time.monotonic() - began, cpu=usage.ru_utime + usage.ru_stime)


def race(
    cluster: SlurmCluster, contestants: Mapping[str, Sequence[str]], rounds: int, lines: int
) -> dict[str, list[Sample]]:
    """Let commands take turns. lines: that each must print. Raises BenchmarkError if mesh does not print just these."""
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    output = cluster.login.path(OUTPUT)
    for _ in range(rounds):
        for name, argv in contestants.items():
            samples[name].append(timed(cluster, argv))
            with output.open("rb") as file:
                found = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
            if found < lines or (found > lines and name.startswith("mesh")):  # srun --label breaks some lines in two
                raise BenchmarkError(f"{name}: {found} lines of {lines}")
    return samples


def slurm(chosen: Chosen) -> str:
    """Compare mesh and srun on the nodes of an allocation."""
    with SlurmCluster(visible=(Path(sys.prefix), Path(sys.base_prefix), REPOSITORY)) as cluster:
        return "\n".join([HEAD, *_compared(chosen, cluster)])


def _compared(chosen: Chosen, cluster: SlurmCluster) -> list[str]:
    def mesh(*words: str) -> list[str]:
        return [sys.executable, "-m", "mesh", *words]

    file = cluster.login.path("/root/.config/mesh/cluster.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(CLUSTER)
    timed(cluster, mesh("up", "big"))
    (job,) = cluster.jobs()
    srun = ["srun", f"--jobid={job}", "--overlap", f"--nodes={NODES}"]
    names = {"mesh exec": mesh("exec", "big", "hostname"), "srun": [*srun, f"--ntasks={NODES}", "hostname"]}
    samples = race(cluster, names, chosen.rounds, NODES)
    parts = [told(chosen, f"`hostname` on {NODES} nodes", "to the end", samples, _seconds, ["client CPU, s"])]
    text, ranks = f"seq -f '%08.0f {LINE}' {LINES}", NODES * RANKS_PER_NODE
    tasks = [f"--ntasks={ranks}", f"--ntasks-per-node={RANKS_PER_NODE}", "--label"]
    lines = {
        "mesh exec": mesh("exec", "--nproc", str(RANKS_PER_NODE), "big", "sh", "-c", text),
        "srun --label": [*srun, *tasks, "sh", "-c", text],
    }
    samples = race(cluster, lines, chosen.rounds, LINES * ranks)
    title = f"{LINES * ranks * 88 / 1e6:.0f} MB of lines from {ranks} ranks"
    parts.append(told(chosen, title, "to the end", samples, _seconds, ["client CPU, s"]))
    timed(cluster, mesh("down", "--force", "big"))
    return parts


def _seconds(sample: Sample) -> float:
    return sample.seconds
