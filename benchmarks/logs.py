"""How fast the output of many hosts comes through, beside pdsh, clush and parallel-ssh, all in one run.

    .venv/bin/python benchmarks/logs.py [--hosts 8 32] [--rounds 3] [--megabytes 20] [--parallel-ssh PYTHON] [--write]

Needs root (test hosts made of namespaces), pdsh and clush (Debian: pdsh, clustershell), and for parallel-ssh an
interpreter that has it. Every tool shows what ``cat`` prints on all hosts, lines of 100 bytes, each led by its host.
Its output goes to a file in memory, where every line is looked for afterwards: lost, or torn, which is any line that
no host has written, and one that is doubled or out of order. The tools take turns, so that a slow moment of the
machine meets all of them. Told are medians of the seconds from start to end, of bytes shown in a second, of CPU
seconds of the client and of what it started here, and of the memory of its largest process. ``--write`` writes
docs/logs-performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from mesh.config.hosts import numbers
from tests.lab import Lab

REPOSITORY = Path(__file__).parent.parent
TEXT = b"the quick brown fox jumps over the lazy dog; the five boxing wizards jump too"
WIDTH = 100  # bytes of a line
OWN, SAME = "/tmp/own", "/tmp/same"  # files on each host: lines that no other has, lines that all have
PARALLEL_SSH = """
import sys
import gevent
from pssh.clients import ParallelSSHClient

key, path, *hosts = sys.argv[1:]
client = ParallelSSHClient(hosts, user="root", pkey=key, pool_size=len(hosts))

def show(output):
    write = sys.stdout.write
    for line in output.stdout:
        write(output.host + ": " + line + "\\n")

gevent.joinall([gevent.spawn(show, output) for output in client.run_command("cat " + path)], raise_error=True)
"""


@dataclass(frozen=True)
class Sample:
    """One run of one tool."""

    seconds: float
    cpu: float  # seconds, of the client and what it started here
    memory: float  # MB, of the largest process
    lost: int  # lines
    torn: int  # lines, with those that are doubled or out of order


def name_of(host: int) -> bytes:
    """In letters, as no tool is to take it for a number.

    >>> name_of(0), name_of(27)
    (b'haa', b'hbb')
    """
    return bytes((ord("h"), ord("a") + host // 26, ord("a") + host % 26))


def line(name: bytes, number: int) -> bytes:
    return (b"%s %07d %s" % (name, number, TEXT)).ljust(WIDTH - 1, b".") + b"\n"


def measure(argv: list[str], environ: dict[str, str], project: Path, shown: Path) -> tuple[float, float, float]:
    """Seconds, CPU seconds and MB of a command whose output goes to a file."""
    with shown.open("wb") as out:
        begin = time.monotonic()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=environ, cwd=project
        )
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[:3]}: exit {process.returncode}: {said.decode(errors='replace')[-2000:]}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000


def look(shown: Path, labels: dict[bytes, int], path: str, hosts: int, lines: int) -> tuple[int, int]:
    """How many lines are lost, and how many are not as they should be."""
    following = [0] * hosts
    torn = 0
    known: dict[bytes, list[int]] = {label: [host] for label, host in labels.items()}
    with shown.open("rb") as file:
        for one in file:
            label, _, text = one.partition(b" ")
            ranks = known.get(label)
            if ranks is None:
                ranks = known[label] = list(ranks_of(label))
            for rank in ranks:
                name = name_of(rank) if path == OWN else b"all"
                if text[4:11] == b"%07d" % following[rank] and text == line(name, following[rank]):
                    following[rank] += 1
                else:
                    torn += 1
            torn += not ranks
    return hosts * lines - sum(following), torn


def ranks_of(label: bytes) -> Iterator[int]:
    """The ranks of ``[0-3,5]``; none if it is no such thing."""
    match = re.fullmatch(rb"\[([0-9,-]+)\]", label)
    if match:
        yield from map(int, numbers(match[1].decode()))


def tools(lab: Lab, home: Path, environ: dict[str, str], parallel_ssh: str) -> dict[str, tuple[list[str], str]]:
    """The command of each tool that is here, and the file that it shows."""
    addresses = [host.address for host in lab.hosts]
    ssh = f"-i {lab.identity} -o UserKnownHostsFile={lab.known_hosts} -o BatchMode=yes -o LogLevel=ERROR"
    environ["PDSH_SSH_ARGS_APPEND"] = ssh
    wide, listed = str(len(addresses)), ",".join(addresses)
    mesh = [sys.executable, "-m", "mesh", "exec", "--output"]
    found = {
        "mesh exec --output all": ([*mesh, "all", "pod", "cat", OWN], OWN),
        "mesh exec --output fold": ([*mesh, "fold", "pod", "cat", OWN], OWN),
        "mesh exec --output fold --fold exact, equal lines": (
            [*mesh, "fold", "--fold", "exact", "pod", "cat", SAME],
            SAME,
        ),
    }
    if shutil.which("pdsh"):
        found["pdsh"] = (["pdsh", "-R", "ssh", "-l", "root", "-f", wide, "-w", listed, "cat", OWN], OWN)
    if shutil.which("clush"):
        found["clush"] = (["clush", "-l", "root", "-f", wide, "-o", ssh, "-w", listed, "cat", OWN], OWN)
    if shutil.which(parallel_ssh) and not subprocess.call(
        [parallel_ssh, "-c", "import pssh"], stderr=subprocess.DEVNULL
    ):
        program = home / "parallel_ssh.py"
        program.write_text(PARALLEL_SSH)
        found["parallel-ssh"] = ([parallel_ssh, str(program), str(lab.identity), OWN, *addresses], OWN)
    return found


def labels_of(lab: Lab) -> dict[bytes, int]:
    """What the tools lead a line with."""
    width = len(str(len(lab.hosts) - 1))
    found = {}
    for number, host in enumerate(lab.hosts):
        found[f"{host.address}:".encode()] = number
        found[f"[{number:0{width}d}]".encode()] = number
        found[f"[{number}]".encode()] = number
    return found


def run(hosts: int, rounds: int, megabytes: int, parallel_ssh: str) -> dict[str, list[Sample]]:
    count = megabytes * 1_000_000 // WIDTH
    with tempfile.TemporaryDirectory() as scratch, Lab(hosts, sshd=["MaxStartups 100"]) as lab:
        home, project = Path(scratch) / "home", Path(scratch) / "project"
        shown = Path("/dev/shm") / f"mesh-logs-{os.getpid()}"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        project.mkdir()
        (home / ".ssh/known_hosts").write_text(lab.known_hosts.read_text())
        (home / ".config/mesh").mkdir(parents=True)
        (home / ".config/mesh/cluster.yaml").write_text(lab.cluster_yaml())
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
        same = b"".join(line(b"all", number) for number in range(count))
        for number, host in enumerate(lab.hosts):
            host.path(OWN).write_bytes(same.replace(b"all ", name_of(number) + b" "))
            host.path(SAME).write_bytes(same)
        commands = tools(lab, home, environ, parallel_ssh)
        samples: dict[str, list[Sample]] = {name: [] for name in commands}
        try:
            for turn in range(rounds):
                for name, (argv, path) in commands.items():
                    seconds, cpu, memory = measure(argv, environ, project, shown)
                    lost, torn = look(shown, labels_of(lab), path, hosts, count)
                    samples[name].append(Sample(seconds, cpu, memory, lost, torn))
                    print(
                        f"{hosts} hosts, round {turn + 1}: {name}: {seconds:.2f} s, {lost} lost, {torn} torn",
                        flush=True,
                    )
                    shutil.rmtree(home / ".local/state/mesh/runs", ignore_errors=True)
        finally:
            shown.unlink(missing_ok=True)
    return samples


def table(samples: dict[str, list[Sample]], hosts: int, megabytes: int) -> list[str]:
    def median(name: str, field: str) -> float:
        return statistics.median(getattr(sample, field) for sample in samples[name])

    rows = [
        f"| {hosts} hosts | s (min-max) | MB/s | rate, pdsh = 1 | client CPU, s | MB | lost | torn |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, taken in samples.items():
        seconds = [sample.seconds for sample in taken]
        ratio = f"{median('pdsh', 'seconds') / median(name, 'seconds'):.1f}" if "pdsh" in samples else "-"
        rows.append(
            f"| {name} | {median(name, 'seconds'):.1f} ({min(seconds):.1f}-{max(seconds):.1f}) "
            f"| {hosts * megabytes / median(name, 'seconds'):.0f} | {ratio} | {median(name, 'cpu'):.1f} "
            f"| {median(name, 'memory'):.0f} | {max(one.lost for one in taken)} | {max(one.torn for one in taken)} |"
        )
    return rows


PAGE = """\
# How fast output comes through

Written by `python benchmarks/logs.py --write`: `cat` of {megabytes} MB in lines of {width} bytes on each of the test
hosts of one machine, each with its own sshd, shown with labels into a file in memory. Medians of {rounds} rounds in
which the tools took turns. All hosts share the machine's few cores with the client: what their sshd takes is in every
row. mesh also keeps every byte in the log files of the run, has each agent spool what the client has not taken, and
sees that nothing is left; the others do none of this. CPU is that of the client and what it started here, memory that
of its largest process (pdsh and clush start an ssh for each host besides).

Machine: {machine}.

{rows}

`fold` compares lines as long as not too many come; of a flood like this one it shows a chunk at a time, as `all` does.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--parallel-ssh", default=sys.executable)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    tables = []
    for hosts in chosen.hosts:
        samples = run(hosts, chosen.rounds, chosen.megabytes, chosen.parallel_ssh)
        tables.append("\n".join(table(samples, hosts, chosen.megabytes)))
        print(tables[-1], flush=True)
    if chosen.write:
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
        text = PAGE.format(
            megabytes=chosen.megabytes, width=WIDTH, rounds=chosen.rounds, machine=machine, rows="\n\n".join(tables)
        )
        (REPOSITORY / "docs/logs-performance.md").write_text(text)


if __name__ == "__main__":
    main()
