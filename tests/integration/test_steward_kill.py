"""Stewards and their hands are killed at random points, over whole lives of four jobs on a scripted world.

Afterwards no rank of a job had two live processes, no machine was made twice or is left, no line of output is missing,
and every job is in the state that its schedule implies. Each life prints its seed. By hand, with more lives:
``python -m tests.integration.test_steward_kill 40 [FIRST_SEED]``
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mesh.core.job import JobSpec
from mesh.jobs.place import StorePlace
from mesh.jobs.store import Store, open_store
from mesh.jobs.values import Job, Stage, State
from tests.full import times
from tests.jobs_world import PLAN, ROOT, Host, job_spec, overlaps

KILLS = 5  # in each life
LIFE_LIMIT_S = 600.0  # with calls that often fail, back-offs add up
POINTS = 30  # a process dies at one of its first points, or at a random time
REPOSITORY = Path(__file__).parents[2]
# Of each job: its spec, the state that its schedule implies, and its exit status.
JOBS: list[tuple[JobSpec, State, int]] = [
    (job_spec("succeeds", ["0.3:ok"]), State.SUCCEEDED, 0),
    (job_spec("fails-once", ["0.2:3", "0.2:ok"]), State.SUCCEEDED, 0),
    (job_spec("is-preempted", ["0.3:lost", "0.2:ok"], made=True), State.SUCCEEDED, 0),
    (job_spec("fails", ["0.1:5"], hosts=1, made=True), State.FAILED, 5),
]


class Life:
    """One world, from the submit of its jobs to their ends."""

    module = "tests.jobs_world"  # the program of stewards and hands
    expected = JOBS
    kills = KILLS
    longest_s = 2.0  # of a steward that dies at a random time
    patience_s = 6.0  # for a steward or hand to reach its point

    def __init__(self, root: Path, seed: int, faults: float) -> None:
        self.root, self.seed, self.faults = root, seed, faults
        self.random = random.Random(seed)
        self.deaths: list[str] = []
        for index in range(4):
            Host(root, f"h{index}").make()
        self.store: Store = open_store(StorePlace(directory=root / "jobs"))
        self.jobs = [job.id for job in self.store.submit([spec for spec, _, _ in self.expected], time.time())]
        self.environ: dict[str, str] = {}  # more variables of stewards
        self.process: subprocess.Popen[bytes] | None = None  # the present steward

    def live(self) -> None:
        """Run stewards that die, and one that does not."""
        for number in range(self.kills):
            self._steward(number)
        self._steward(None)

    def _steward(self, number: int | None) -> None:
        plan: dict[str, object] = {"seed": self.seed, "life": number, "faults": self.faults}
        after = 0.0
        if number is not None:
            kind = self.random.choice(["steward", "hand", "hand+steward", "time", "stop"])
            point = str(self.random.randint(1, POINTS))
            match kind:
                case "steward":
                    plan["steward"] = {point: "self"}
                case "hand":
                    plan["hand"] = {str(self.random.randint(1, 6)): "self"}
                case "hand+steward":
                    plan["hand"] = {str(self.random.randint(1, 6)): self.random.choice(["both", "steward"])}
                case "stop":
                    plan["steward"] = {point: "stop"}
                case "time":
                    after = self.random.uniform(0.1, self.longest_s)
        environ = {
            **os.environ,
            **self.environ,
            ROOT: str(self.root),
            PLAN: json.dumps(plan),
            "PYTHONPATH": str(REPOSITORY),
        }
        argv = [sys.executable, "-m", self.module, "steward", str(self.root)]
        with (self.root / "serve.log").open("ab") as log:
            self.process = process = subprocess.Popen(argv, env=environ, cwd=REPOSITORY, stderr=log)
        try:
            self._watch(process, number, after)
        finally:
            process.kill()
            process.wait()

    def _watch(self, process: subprocess.Popen[bytes], number: int | None, after: float) -> None:
        begun = time.monotonic()
        limit = LIFE_LIMIT_S if number is None else after or self.patience_s
        while time.monotonic() < begun + limit:
            if process.poll() is not None:
                self.deaths.append(f"point {number}")
                return
            if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                self.deaths.append(f"stop {number}")
                time.sleep(1.5)
                process.send_signal(signal.SIGCONT)
                limit = min(limit, time.monotonic() - begun + 1.0)
            if self.is_over():
                return
            self.happen()
            time.sleep(0.05)
        if number is not None:
            self.deaths.append(f"time {number}")

    def happen(self) -> None:
        """Have something happen to the world while it is watched."""

    def is_over(self) -> bool:
        """Return True once every job has ended."""
        return not self.store.jobs(active_only=True)

    def found(self) -> list[Job]:
        """Return the jobs as the store has them."""
        return [job for job in self.store.jobs() if job.id in self.jobs]

    def check(self) -> list[str]:
        """Return all that is wrong at the end."""
        wrong = list(overlaps(self.root))
        wrong += self.wrong_ends()
        for job in self.found():
            wrong += self._missing_output(job)
        wrong += [f"job {number}: its row is not the fold of its events" for number in self.store.audit()]
        journal = self.root / "journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        wrong += [f"{line}: twice" for line in sorted(set(lines)) if lines.count(line) > 1]
        wrong += [f"{left.name}: left" for left in (self.root / "cloud").iterdir()]
        return wrong

    def wrong_ends(self) -> list[str]:
        """Return the jobs that did not end as their schedules imply."""
        wrong = []
        for job, (_, state, status) in zip(self.found(), self.expected, strict=True):
            if (job.state, job.exit_code) != (state, status):
                wrong.append(
                    f"job {job.id}: {job.state.value} {job.exit_code}, not {state.value} {status}: {job.reason}"
                )
        return wrong

    def _missing_output(self, job: Job) -> list[str]:
        wrong = []
        for attempt in job.attempts:
            if attempt.stage is not Stage.ENDED:
                continue
            fetched = self.root / "jobs" / str(job.id) / f"{attempt.run}.out"
            there = [self.root / "hosts" / name / "runs" / f"{attempt.run}.out" for name in attempt.hosts]
            expected = "".join(path.read_text() for path in there if path.exists())
            if not fetched.exists() or fetched.read_text() != expected or "last" not in expected:
                wrong.append(f"job {job.id}: output of {attempt.run} is missing")
        return wrong


def live(root: Path, seed: int, faults: float = 0.0) -> tuple[list[str], list[str]]:
    """Live one life; return what went wrong, and the deaths."""
    life = Life(root, seed, faults)
    try:
        life.live()
        return life.check(), life.deaths
    finally:
        life.store.close()


@pytest.mark.parametrize("seed", [101, 102, 103, 104][: times(1, full=4)])
def test_killed_stewards_and_hands_start_nothing_twice_and_lose_nothing(tmp_path: Path, seed: int) -> None:
    wrong, deaths = live(tmp_path, seed)
    print(f"seed {seed}: {deaths}")
    assert not wrong


def test_hosts_and_makers_that_often_do_not_answer_change_no_outcome(tmp_path: Path) -> None:
    wrong, deaths = live(tmp_path, 201, faults=0.3)
    print(f"seed 201: {deaths}")
    assert not wrong


def main(lives: int, first: int) -> int:
    """Live many lives, and print what went wrong in each."""
    bad = kills = 0
    for seed in range(first, first + lives):
        with tempfile.TemporaryDirectory() as directory:
            begun = time.monotonic()
            faults = 0.3 if seed % 4 == 0 else 0.0
            wrong, deaths = live(Path(directory), seed, faults)
            kills += len(deaths)
            bad += bool(wrong)
            print(
                f"seed {seed}: {len(deaths)} deaths, {time.monotonic() - begun:.1f} s: {wrong or 'as it should'}",
                flush=True,
            )
            if wrong:
                print((Path(directory) / "serve.log").read_text()[-3000:])
    print(f"{lives} lives, {kills} deaths, {bad} lives with something wrong")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
