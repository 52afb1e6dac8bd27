"""The switchboard: a thousand nodes that are played, and real agents beside those behind SSH."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Sample, Spread, table
from benchmarks.rows import Chosen
from benchmarks.scale import played_run
from benchmarks.stage import BenchmarkError
from tests.conftest import Home, new_home
from tests.lab import PlainLab
from tests.switched import Switchboard, SwitchedHome

REAL = (8, 64)  # hosts with real agents
CASES = {"nothing printed": [], "20 lines a rank": ["--lines", "20"]}
HEAD = """\
## Through a switchboard

A run of `true`, or of a program that prints, through a real switchboard. The nodes are played in a process of their
own, and have connected before. The client has all of TLS, but no key exchange for each host.
"""
BESIDE = """\
Real agents on this machine, each behind an sshd of its own, or each a node of a switchboard. The command is
`mesh exec true`, from its start to its end. The last column is what each host adds to the client's CPU time,
from {least} to {most} hosts.
"""


def played(hosts: int, options: list[str]) -> list[str]:
    found, _ = played_run(hosts, ["--switchboard", *options])
    return [
        f"{found['seconds']:.1f}",
        f"{1000 * found['cpu'] / hosts:.1f}",
        f"{found['memory']:.0f}",
        f"{1000 * found['board cpu'] / hosts:.1f}",
        f"{found['board memory']:.0f}",
        f"{found['threads']:.0f}",
        f"{found['descriptors']:.0f}",
    ]


def timed(home: Home) -> Sample:
    """Run one command on all hosts. Raises BenchmarkError."""
    began = time.monotonic()
    process = home.popen("exec", "pod", "true", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchmarkError(f"mesh exec: status {process.returncode}")
    return Sample(seconds=time.monotonic() - began, cpu=usage.ru_utime + usage.ru_stime, memory=usage.ru_maxrss / 1000)


def real(hosts: int, rounds: int) -> dict[str, list[Sample]]:
    """The same command behind SSH and through a switchboard, in turns."""
    samples: dict[str, list[Sample]] = {"SSH": [], "switchboard": []}
    names = [f"n{number}" for number in range(hosts)]
    with tempfile.TemporaryDirectory() as scratch, PlainLab(hosts) as lab:
        for way in samples:
            Path(scratch, way).mkdir()
        with Switchboard(Path(scratch, "board"), names) as board:
            ssh, plain = new_home(Path(scratch, "SSH")), new_home(Path(scratch, "switchboard"))
            ssh.clusters(lab.cluster_yaml("pod", "host_keys: accept-new"))
            plain.clusters(board.cluster_yaml())
            homes = {"SSH": ssh, "switchboard": SwitchedHome(plain.path, plain.project, plain.environ, board=board)}
            for home in homes.values():
                timed(home)  # agents are unpacked, and host keys known, from then on
            for _ in range(rounds):
                for way, home in homes.items():
                    samples[way].append(timed(home))
    return samples


def switchboard(chosen: Chosen) -> str:
    rows = [[f"{hosts:,}", case, *played(hosts, options)] for case, options in CASES.items() for hosts in chosen.hosts]
    head = ["hosts", "", "s", "client CPU, ms a host", "client MB", "switchboard CPU, ms a host", "switchboard MB"]
    parts = [HEAD, table([*head, "client threads", "descriptors"], rows), ""]
    found = {hosts: real(hosts, chosen.rounds) for hosts in REAL}
    least, most = REAL
    cpu = {
        (way, hosts): Spread.of([sample.cpu for sample in samples]).median
        for hosts, ways in found.items()
        for way, samples in ways.items()
    }
    lines = []
    for way in ("SSH", "switchboard"):
        added = 1000 * (cpu[way, most] - cpu[way, least]) / (most - least)
        cells = [
            f"{Spread.of([sample.seconds for sample in found[hosts][way]]).told()}; {cpu[way, hosts]:.2f}"
            for hosts in REAL
        ]
        lines.append([way, *cells, f"{added:.1f}"])
    columns = ["", *(f"{hosts} hosts: s; client CPU, s" for hosts in REAL), "client CPU, ms a host"]
    return "\n".join([*parts, BESIDE.format(least=least, most=most), table(columns, lines)])
