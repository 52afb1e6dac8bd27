"""Hours in a minute: does anything grow while a run goes on, and what does a quiet one cost?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import table
from benchmarks.kill import SLEEP, START
from benchmarks.rows import Chosen
from benchmarks.stage import TICKS, BenchmarkError, Contestant, Stage
from tests.lab import eventually, is_agent

QUIET = 30.0  # seconds
BEATS = 10_000
LINES = 1_000_000  # of all hosts
LOOKS = 4
FEW = 4  # hosts
HEAD = """\
## Hours of a run
"""


@dataclass(frozen=True)
class Look:
    """What a process has."""

    cpu: float  # seconds
    memory: float  # MB
    threads: int
    descriptors: int

    @classmethod
    def at(cls, pid: int) -> Look:
        place = Path(f"/proc/{pid}")
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        return cls(
            cpu=(int(fields[11]) + int(fields[12])) / TICKS,
            memory=int(status["VmRSS"].split()[0]) / 1000,
            threads=int(status["Threads"]),
            descriptors=len(list((place / "fd").iterdir())),
        )

    def told(self) -> str:
        return f"{self.memory:.0f} MB, {self.threads} threads, {self.descriptors} descriptors"


def agents(stage: Stage) -> list[Look]:
    """Of all hosts; a guardian counts as well."""
    found = []
    for host in stage.lab.hosts:
        for pid, command in host.processes():
            if is_agent(command):
                with contextlib.suppress(OSError):
                    found.append(Look.at(pid))
    return found


def largest(looks: Iterable[Look]) -> str:
    """The most of each that one of them has."""
    listed = list(looks)
    most = Look(
        cpu=max(look.cpu for look in listed),
        memory=max(look.memory for look in listed),
        threads=max(look.threads for look in listed),
        descriptors=max(look.descriptors for look in listed),
    )
    return most.told()


def quiet(hosts: int) -> list[str]:
    """What a client takes while nothing happens."""
    with Stage(hosts) as stage:
        one = Contestant(name="mesh", argv=stage.user.mesh("run", "pod", *SLEEP.split()), user=stage.user)
        with stage.started(one) as process:
            if not eventually(lambda: stage.ranks(SLEEP) == hosts, START):
                raise BenchmarkError("not all ranks started")
            time.sleep(2.0)
            here, there = Look.at(process.pid), agents(stage)
            time.sleep(QUIET)
            cpu = Look.at(process.pid).cpu - here.cpu
            spent = sum(look.cpu for look in agents(stage)) - sum(look.cpu for look in there)
            return [f"{hosts}", f"{100 * cpu / QUIET:.2f}", f"{100 * spent / QUIET / hosts:.2f}", here.told()]


def grown(what: str, argv: list[str], stage: Stage, seconds: float) -> list[list[str]]:
    """Looks at a run, the first of them once it has had a tenth of its time."""
    rows = []
    one = Contestant(name=what, argv=argv, user=stage.user)
    with stage.started(one, out=Path("/dev/null")) as process:
        time.sleep(0.1 * seconds)
        for number in range(LOOKS):
            if process.poll() is not None:
                break
            rows.append([what, f"{0.1 + 0.25 * number:.0%}", Look.at(process.pid).told(), largest(agents(stage))])
            time.sleep(0.25 * seconds)
    return rows


def steady(chosen: Chosen) -> str:
    parts = [HEAD, "A rank sleeps on every host; nothing is printed.\n"]
    head = ["hosts", "client CPU, % of a core", "an agent's, with its guardian's", "the client"]
    parts.append(table(head, [quiet(hosts) for hosts in chosen.hosts]) + "\n")
    with Stage(FEW) as stage:
        beats = [stage.user.mesh()[0], "-m", "benchmarks.hurried", "run", "pod", *SLEEP.split()]
        rows = grown(f"{BEATS:,} beats", beats, stage, BEATS * 0.0055)
        # A million lines take a minute.
        loop = f"for n in $(seq {LINES // FEW // 1000}); do seq $((n * 1000)) $((n * 1000 + 999)); sleep 0.2; done"
        rows += grown(f"{LINES:,} lines", stage.user.mesh("run", "pod", loop), stage, LINES // FEW // 1000 * 0.22)
    parts.append(f"{FEW} hosts; of the agents the most that one of them has.\n")
    parts.append(table(["", "of the run", "the client", "an agent or guardian"], rows))
    return "\n".join(parts)
