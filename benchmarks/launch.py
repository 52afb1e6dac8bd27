"""How long from Enter to the first line of every rank, beside pdsh, clush and bare Fabric, all in one run.

    .venv/bin/python benchmarks/launch.py [--hosts 32] [--rounds 7] [--write]

Needs root (test hosts made of namespaces), pdsh and clush (Debian: pdsh, clustershell). Every tool runs ``hostname``
on all hosts; they take turns, so that a slow moment of the machine meets all of them. Told are medians of the seconds
until the last host's line has come, until the command has ended, and of the client's CPU time, with ratios to mesh.
``--write`` writes docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.lab import Lab

REPOSITORY = Path(__file__).parent.parent
FABRIC = """
import sys
from concurrent.futures import ThreadPoolExecutor
import fabric

def show(host):
    connection = fabric.Connection(host, user="root", connect_kwargs={"key_filename": sys.argv[1]})
    print(host, connection.run("hostname", hide=True).stdout.strip(), flush=True)

with ThreadPoolExecutor(len(sys.argv) - 2) as pool:
    list(pool.map(show, sys.argv[2:]))
"""


@dataclass(frozen=True)
class Sample:
    """One run of one tool, in seconds."""

    lines: float  # until every host's line had come
    end: float
    cpu: float  # of the client and what it started here


def measure(argv: list[str], environ: dict[str, str], hosts: int, project: Path) -> Sample:
    begin = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, cwd=project
    )
    assert process.stdout is not None
    seen = 0
    lines = 0.0
    for line in process.stdout:
        if any(b"h%02d" % number in line for number in range(hosts)):
            seen += 1
            lines = time.monotonic() - begin
    _, status, usage = os.wait4(process.pid, 0)
    end = time.monotonic() - begin
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if seen != hosts or process.returncode:
        raise SystemExit(f"{argv[:3]}: {seen} of {hosts} lines, exit {process.returncode}")
    return Sample(lines, end, usage.ru_utime + usage.ru_stime)


def tools(lab: Lab, home: Path, environ: dict[str, str]) -> dict[str, list[str]]:
    """The command of each tool that is here."""
    addresses = [host.address for host in lab.hosts]
    ssh = f"-i {lab.identity} -o UserKnownHostsFile={lab.known_hosts} -o BatchMode=yes -o LogLevel=ERROR"
    environ["PDSH_SSH_ARGS_APPEND"] = ssh
    program = home / "fabric_hostname.py"
    program.write_text(FABRIC)
    wide = str(len(addresses))
    listed = ",".join(addresses)
    found = {
        "mesh run": [sys.executable, "-m", "mesh", "run", "pod", "hostname"],
        "bare Fabric": [sys.executable, str(program), str(lab.identity), *addresses],
    }
    if shutil.which("pdsh"):
        found["pdsh"] = ["pdsh", "-R", "ssh", "-l", "root", "-f", wide, "-w", listed, "hostname"]
    if shutil.which("clush"):
        found["clush"] = ["clush", "-l", "root", "-f", wide, "-o", ssh, "-w", listed, "hostname"]
    return found


def table(samples: dict[str, list[Sample]]) -> list[str]:
    def median(name: str, field: str) -> float:
        return statistics.median(getattr(sample, field) for sample in samples[name])

    rows = ["| | every line, s (min-max) | x mesh | end, s | client CPU, s |", "| --- | --- | --- | --- | --- |"]
    for name, taken in samples.items():
        lines = [sample.lines for sample in taken]
        ratio = median(name, "lines") / median("mesh run", "lines")
        rows.append(
            f"| {name} | {median(name, 'lines'):.2f} ({min(lines):.2f}-{max(lines):.2f}) | {ratio:.1f} "
            f"| {median(name, 'end'):.2f} | {median(name, 'cpu'):.2f} |"
        )
    return rows


PAGE = """\
# How fast mesh starts

Written by `python benchmarks/launch.py --write`: `hostname` on {hosts} test hosts of one machine, each with its own
sshd, from Enter to the last host's line. Medians of {rounds} rounds in which the tools took turns. `mesh run` also
locks every host, sends the workspace ({files} small files), waits until all hosts are ready, and sees that nothing is
left; the others do none of this. All hosts share the machine, so that the start of python3 on each of them is paid
{hosts} times on its few cores.

Machine: {machine}.

{rows}

The reasons: paramiko's key exchange takes far less CPU time than OpenSSH's default (sntrup761), TCP_NODELAY and
TCP_QUICKACK take the waiting out of the round trips, and the agent, its first request and the lock travel in one flight
after the login.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Lab(chosen.hosts, sshd=["MaxStartups 100"]) as lab:
        home, project = Path(scratch) / "home", Path(scratch) / "project"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        project.mkdir()
        for number in range(chosen.files):
            (project / f"file{number}.py").write_text(f"print({number})\n" * 20)
        (home / ".ssh/known_hosts").write_text(lab.known_hosts.read_text())
        (home / ".config/mesh").mkdir(parents=True)
        (home / ".config/mesh/cluster.yaml").write_text(lab.cluster_yaml())
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        commands = tools(lab, home, environ)
        samples: dict[str, list[Sample]] = {name: [] for name in commands}
        for turn in range(chosen.rounds + 1):
            for name, argv in commands.items():
                sample = measure(argv, environ, chosen.hosts, project)
                if turn:  # the first round warms up
                    samples[name].append(sample)
    rows = "\n".join(table(samples))
    print(rows)
    if chosen.write:
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
        text = PAGE.format(hosts=chosen.hosts, rounds=chosen.rounds, files=chosen.files, machine=machine, rows=rows)
        (REPOSITORY / "docs/performance.md").write_text(text)


if __name__ == "__main__":
    main()
