"""How long until every host has the workspace, beside parallel rsync, tar over ssh and clush --copy, all in one run.

    .venv/bin/python benchmarks/sync.py [--hosts 8 32] [--rounds 3] [--write]

Needs root (test hosts made of namespaces), rsync and clush (Debian: rsync, clustershell). The tools take turns, so that
a slow moment of the machine meets all of them; told are medians of whole commands in seconds, with ratios to mesh, and
the bytes that left this side as the network interface counted them. ``--write`` writes docs/sync-performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.lab import Lab

REPOSITORY = Path(__file__).parent.parent
UPLINK = "100mbit"


@dataclass(frozen=True)
class Sample:
    """One command."""

    seconds: float
    sent: int  # bytes that left this machine's end of the network


class Bench:
    """A project, some hosts, and the tools that bring the one to the others."""

    def __init__(self, lab: Lab, scratch: Path) -> None:
        self.lab, self.project, home = lab, scratch / "project", scratch / "home"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        self.project.mkdir()
        (home / ".ssh/known_hosts").write_text(lab.known_hosts.read_text())
        (home / ".config/mesh").mkdir(parents=True)
        (home / ".config/mesh/cluster.yaml").write_text(lab.cluster_yaml())
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        ssh = f"-i {lab.identity} -o UserKnownHostsFile={lab.known_hosts} -o BatchMode=yes -o LogLevel=ERROR"
        addresses = [host.address for host in lab.hosts]
        there = "mkdir -p copy; tar -C copy -xf -"
        each = f"printf '%s\\n' {' '.join(addresses)} | xargs -P {len(addresses)} -I%"
        here = self.project
        self.tools = {
            "mesh": f"{sys.executable} -m mesh push pod",
            "rsync -a": f"{each} rsync -a --delete -e 'ssh {ssh}' {here}/ root@%:copy/",
            "tar over ssh": f"{each} sh -c 'tar -C {here} -cf - . | ssh {ssh} root@% \"{there}\"'",
        }
        if shutil.which("clush"):
            width = f"-l root -f {len(addresses)} -w {','.join(addresses)}"
            self.tools["clush --copy"] = f"clush {width} -o '{ssh}' --copy {here} --dest /root/clush"
            for host in lab.hosts:
                host.script("mkdir clush")

    def fill(self, files: int, size: int) -> None:
        """Make so many files of random bytes, which no compressor makes smaller."""
        shutil.rmtree(self.project)
        self.project.mkdir()
        generator = random.Random(7)
        for number in range(files):
            directory = self.project / f"d{number % 50}"
            directory.mkdir(exist_ok=True)
            (directory / f"f{number}").write_bytes(generator.randbytes(size))

    def forget(self) -> None:
        """As if nothing had ever been sent."""
        for host in self.lab.hosts:
            host.script("rm -rf copy clush/* .mesh")

    def measure(self, command: str) -> Sample:
        counter = Path(f"/sys/class/net/{self.lab.link}/statistics/tx_bytes")
        before, begin = int(counter.read_text()), time.monotonic()
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.project, env=self.environ, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begin
        if done.returncode:
            raise SystemExit(f"{command[:60]}: exit {done.returncode}: {done.stderr[-2000:]}")
        return Sample(seconds, int(counter.read_text()) - before)

    def compare(self, rounds: int, before: Callable[[], None], tools: list[str] | None = None) -> list[str]:
        """Run every tool, in turns; rows of a table."""
        taken: dict[str, list[Sample]] = {name: [] for name in tools or self.tools}
        for _ in range(rounds):
            for name, samples in taken.items():
                before()
                samples.append(self.measure(self.tools[name]))
        ours = statistics.median(sample.seconds for sample in taken["mesh"])
        rows = []
        for name, samples in taken.items():
            seconds = [sample.seconds for sample in samples]
            sent = statistics.median(sample.sent for sample in samples)
            median = statistics.median(seconds)
            spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
            rows.append(f"| {name} | {median:.2f} ({spread}) | {median / ours:.1f} | {sent / 1e6:.1f} |")
        return rows


HEAD = ["| | seconds (min-max) | x mesh | MB sent |", "| --- | --- | --- | --- |"]


def edit(bench: Bench) -> None:
    path = bench.project / "d7/f7"
    path.write_bytes(os.urandom(1024))


def cases(hosts: int, rounds: int, scratch: Path) -> list[str]:
    """Every case with so many hosts."""
    lines: list[str] = []
    with Lab(hosts, sshd=["MaxStartups 200"]) as lab:
        bench = Bench(lab, scratch)
        bench.fill(2000, 10_000)
        lines += [f"\n## {hosts} hosts: cold, 2,000 files, 20 MB\n", *HEAD, *bench.compare(rounds, bench.forget)]
        bench.forget()
        for command in bench.tools.values():
            bench.measure(command)
        (bench.project / "d7/f7").write_bytes(os.urandom(1024))
        warm = [name for name in bench.tools if name != "tar over ssh"]
        lines += [f"\n## {hosts} hosts: warm, one 1 KB file of 2,000\n", *HEAD]
        lines += bench.compare(rounds, lambda: edit(bench), warm)
        if hosts <= 8:
            bench.fill(20_000, 100)
            for _ in range(2):  # a file that was changed just now is hashed again
                bench.measure(bench.tools["mesh"])
                time.sleep(2.5)
            lines += [f"\n## {hosts} hosts: 20,000 unchanged files\n", *HEAD]
            lines += bench.compare(rounds, lambda: None, ["mesh", "rsync -a"])
            bench.fill(20, 1_000_000)
            subprocess.run(
                [
                    "tc",
                    "qdisc",
                    "add",
                    "dev",
                    lab.link,
                    "root",
                    "tbf",
                    "rate",
                    UPLINK,
                    "burst",
                    "64k",
                    "latency",
                    "50ms",
                ],
                check=True,
            )
            lines += [f"\n## {hosts} hosts: cold, 20 MB over an uplink of 100 Mbit/s (one copy takes 1.6 s)\n", *HEAD]
            lines += bench.compare(rounds, bench.forget)
    return lines


PAGE = """\
# How fast the workspace travels

Written by `python benchmarks/sync.py --write`: whole commands, medians of {rounds} rounds in which the tools took
turns, on test hosts of one machine, each with its own sshd. "MB sent" is what left the client's network interface,
everything included. mesh (`mesh push`) also takes every host's lock and checks on every host that each path is as it
should be.

Machine: {machine}.
{tables}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    lines: list[str] = []
    for hosts in chosen.hosts:
        with tempfile.TemporaryDirectory() as scratch:
            found = cases(hosts, chosen.rounds, Path(scratch))
        print("\n".join(found), flush=True)
        lines += found
    if chosen.write:
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
        text = PAGE.format(rounds=chosen.rounds, machine=machine, tables="\n".join(lines))
        (REPOSITORY / "docs/sync-performance.md").write_text(text)


if __name__ == "__main__":
    main()
