"""Lives of jobs whose hosts a real scheduler gives, while stewards and hands are killed at random points.

Afterwards no host is left, no name was made twice, and no rank of a job had two live processes: each rank writes the
time into a file of its own ten times a second.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mesh.core.job import CommandSpec, JobSpec, Keep, MachinesSpec, RestartOn, RestartSpec, WorkspaceSpec
from mesh.jobs.events import Wished
from mesh.jobs.place import StorePlace
from mesh.jobs.store import open_store
from mesh.jobs.values import State, Wanted
from tests.integration.test_steward_kill import Life
from tests.lab import eventually

KILLS, SAMPLE_KILLS = 5, 1  # in a life by hand, and in the sample of the suite
LEFT_LIMIT_S = 60.0  # after the last restart, until every host is given back
BEATS = "for i in $(seq {count}); do date +%s.%N >>{place}/$MESH_JOB_ID.$RANK.$MESH_ATTEMPT.$$; sleep 0.1; done; "
ENDS = {  # by the name of a job: the text of its ranks behind the beats, and the state and status to be
    "succeeds": ("exit 0", State.SUCCEEDED, 0),
    "fails-once": ("[ $MESH_ATTEMPT != 1 ] || exit 3", State.SUCCEEDED, 0),
    "is-lost": ("[ $MESH_ATTEMPT != 1 ] || exec sleep 4577", State.SUCCEEDED, 0),
    "is-stopped": ("exec sleep 4577", State.STOPPED, 143),
}


class Scheduler(Protocol):
    """The scheduler of a test."""

    environ: Mapping[str, str]  # of the user, for stewards
    beats: str  # the directory of the ranks' files, as they see it

    def hosts(self) -> Mapping[str, str]:
        """Return what is there and has not ended: by identities, the names that mesh gave."""

    def ever(self) -> Mapping[str, str]:
        """Return the same with all that was there a moment ago."""

    def take_away(self, identity: str) -> None:
        """End something that is there, as a preemption does."""

    def beat_files(self) -> Mapping[str, list[float]]:
        """Return the times that each rank has written, by the names of the files."""


def job_spec(name: str, machines: MachinesSpec, beats: str) -> JobSpec:
    """Return a job of the lives."""
    text = BEATS.format(count=5, place=beats) + ENDS[name][0]
    return JobSpec(
        name=name,
        user="me",
        machines=machines,
        command=CommandSpec(words=("sh", "-c", text), grace=1.0),
        workspace=WorkspaceSpec(keep=Keep.NONE),
        restart=RestartSpec(on=RestartOn.FAILURE, failures=2, backoff=(0.2, 0.5)),
    )


class CarriedLife(Life):
    """The jobs of one store, on a real scheduler."""

    module = "tests.carried_world"
    longest_s, patience_s = 10.0, 15.0

    def __init__(self, root: Path, seed: int, scheduler: Scheduler, machines: MachinesSpec, names: Sequence[str] = ()):
        """names: of the jobs; (): all of ENDS"""
        self.root, self.seed, self.faults = root, seed, 0.0
        self.random = random.Random(seed)
        self.deaths: list[str] = []
        self.scheduler, self.environ = scheduler, dict(scheduler.environ)
        self.process: subprocess.Popen[bytes] | None = None
        self.store = open_store(StorePlace(directory=Path(scheduler.environ["HOME"], ".local/state/mesh/jobs")))
        self.expected = [(job_spec(name, machines, scheduler.beats), *ENDS[name][1:]) for name in names or ENDS]
        self.jobs = [job.id for job in self.store.submit([spec for spec, _, _ in self.expected], time.time())]
        self.made: dict[str, set[str]] = defaultdict(set)  # identities by names
        self._asked_at = 0.0

    def happen(self) -> None:
        if time.monotonic() < self._asked_at + 0.5:
            return
        self._asked_at = time.monotonic()
        self.note()
        by_name = {job.spec.name: job for job in self.found()}
        lost, stopped = by_name.get("is-lost"), by_name.get("is-stopped")
        if lost is not None and lost.attempt == 1 and lost.state is State.RUNNING and self.random.random() < 0.3:
            mine = [one for one, name in self.scheduler.hosts().items() if name.startswith("mesh-is-lost-")]
            if mine:
                self.scheduler.take_away(self.random.choice(mine))
        if stopped is not None and stopped.wanted is Wanted.RUN and self.random.random() < 0.1:
            self.store.record(stopped.id, Wished(time=time.time(), wanted=Wanted.STOP))

    def note(self) -> None:
        """Note what was made so far."""
        for identity, name in self.scheduler.ever().items():
            self.made[name].add(identity)

    def check(self) -> list[str]:
        self.note()
        wrong = self.wrong_ends()
        if left := self.scheduler.hosts():
            is_gone = eventually(lambda: not self.scheduler.hosts(), LEFT_LIMIT_S)
            wrong.append(f"{left}: there when its job had ended; {'gone later' if is_gone else 'left'}")
        wrong += [f"{name}: made {len(found)} times" for name, found in self.made.items() if len(found) > 1]
        wrong += [f"job {number}: its row is not the fold of its events" for number in self.store.audit()]
        return [*wrong, *double_starts(self.scheduler.beat_files())]


def live_many(points: int, seed: int, live: Callable[[Path, int], tuple[list[str], CarriedLife]]) -> int:
    """Live lives until so many processes have died, and print what went wrong in each; return 1 if anything did.

    live: lives one, in a directory of its own, by a seed
    """
    bad = deaths = made = 0
    while deaths < points:
        with tempfile.TemporaryDirectory(prefix="mesh-life-") as directory:
            begun = time.monotonic()
            wrong, life = live(Path(directory), seed)
            deaths, bad, made = deaths + len(life.deaths), bad + bool(wrong), made + len(life.made)
            took = f"{len(life.made)} names, {time.monotonic() - begun:.0f} s"
            print(f"seed {seed}: {life.deaths}, {took}: {wrong or 'as it should'}", flush=True)
            if wrong:
                print((Path(directory) / "serve.log").read_text()[-6000:], flush=True)
        seed += 1
    print(f"{deaths} deaths, {made} names, {bad} lives with errors")
    return int(bool(bad))


def double_starts(beats: Mapping[str, list[float]]) -> list[str]:
    """Return ranks of one job that were alive at the same time. beats: times, by JOB.RANK.ATTEMPT.PID

    >>> double_starts({"1.0.1.7": [1.0, 2.0], "1.0.2.9": [2.5, 3.0], "1.1.1.7": [1.0, 2.2]})
    []
    >>> len(double_starts({"1.0.1.7": [1.0, 2.0], "1.0.1.9": [1.5, 3.0]}))
    1
    """
    lives = [(min(times), max(times), *name.split(".")) for name, times in beats.items() if times]
    wrong = []
    for one, two in itertools.combinations(sorted(lives), 2):
        is_double = one[2] == two[2] and (one[4] != two[4] or one[3] == two[3])  # another attempt, or the same rank
        if is_double and two[0] < one[1]:
            wrong.append(f"{'.'.join(one[2:])} lived while {'.'.join(two[2:])} began")
    return wrong
