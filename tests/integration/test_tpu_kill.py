"""Stewards and hands are killed at random points over whole lives of jobs, on machines of two emulated zones.

The emulator is a process of its own, and its journal is the oracle: no machine was made twice, none was deleted that
was not condemned, none is left once every job has ended, and nothing of others was touched. By the notes of the ranks
no job had two live attempts. By hand, with 200 deaths: ``python -m tests.integration.test_tpu_kill 200 SEED [FAULTS]``
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError

import pytest

from mesh.core.tpu import Provision, Recreate
from mesh.jobs.events import Intended
from mesh.jobs.orders import Delete
from mesh.jobs.values import Job, State
from tests.integration.test_steward_kill import Life
from tests.lab import eventually
from tests.tpu_world import job_spec
from tests.tpuemulator.client import ZONES, Emulator, double, emulator

JOBS = [
    (job_spec("succeeds", ["0.3:ok"], Provision.QUEUED_RESOURCES, slices=2), State.SUCCEEDED, 0),
    (job_spec("fails-once", ["0.2:3", "0.2:ok"], Provision.TPU_VM), State.SUCCEEDED, 0),
    (
        job_spec("is-long", ["4.0:ok", "1.0:ok", "0.2:ok"], Provision.QUEUED_RESOURCES, recreate=Recreate.EAGER),
        State.SUCCEEDED,
        0,
    ),
    (job_spec("fails", ["0.1:5"], Provision.TPU_VM), State.FAILED, 5),
    (job_spec("is-kept", ["0.2:ok"], Provision.QUEUED_RESOURCES, keep=2.0), State.SUCCEEDED, 0),
]
# Submitted once the machines of another job are kept, which it may get or not; they stay after it too.
NEXT = job_spec("next", ["0.2:ok"], Provision.QUEUED_RESOURCES, keep=1.0), State.SUCCEEDED, 0
WAYS = ("PREEMPTED", "TERMINATED", "vanished", "suspended")
PREEMPTIONS_MAX = 3  # in each life
STRIKE_SHARE = 0.5  # of the moments at which a job begins to keep machines, or to delete them
ORPHAN_LIMIT_S = 120.0
# Machines of others: of nobody, of another store, with a name as ours, and with our label for another job.
FOREIGN = {
    "theirs": {},
    "other-store": {"mesh-store": "zzzzzz", "mesh-job": "1", "mesh-generation": "1"},
    "succeeds-zzzzzz-1-g1": {},
}


class TpuLife(Life):
    """The jobs of one store, on the emulator."""

    module = "tests.tpu_world"
    expected = JOBS

    def __init__(self, root: Path, seed: int, faults: float, tpus: Emulator) -> None:
        super().__init__(root, seed, 0.0)
        self.tpus, self.environ = tpus, tpus.environ
        self.preemptions = 0
        self.expected = list(JOBS)
        self.struck: set[tuple[int, State]] = set()
        self.kept = (0, 0)
        for name, labels in FOREIGN.items():
            fields = {"accelerator_type": "v4-8", "runtime_version": "x", "labels": labels}
            tpus.control("create_node", zone=ZONES[0], name=name, fields=fields, request_id="")
        tpus.set(repeats_conflict=bool(seed % 2), active_early=bool(seed % 3), quota={ZONES[0]: 8 * 3 + 12})
        if faults:
            tpus.faults({"verb": "*", "status": "random", "share": faults, "seed": seed})

    def live(self) -> None:
        super().live()
        deaths = 0
        while not self.is_over() and len(self.deaths) > deaths:  # the last one was killed while machines were kept
            deaths = len(self.deaths)
            self._steward(None)

    def happen(self) -> None:
        jobs = self.store.jobs(active_only=True)
        self._submit_next(jobs)
        self._strike(jobs)
        if self.preemptions >= PREEMPTIONS_MAX or self.random.random() > 0.02:
            return
        ready = [name for name, one in self.tpus.nodes.items() if one["state"] == "READY"]
        ours = [name for name in ready if name.partition("/")[2] not in FOREIGN]
        if not ours:
            return
        zone, _, name = self.random.choice(ours).partition("/")
        try:
            self.tpus.control("preempt", zone=zone, name=name, how=self.random.choice(WAYS))
            self.preemptions += 1
        except HTTPError:  # it has no queued resource, or is gone
            pass

    def _submit_next(self, active: Sequence[Job]) -> None:
        keeps = any(job.kept_until and job.state is State.RUNNING for job in active)
        if keeps and len(self.jobs) == len(JOBS):
            self.jobs += [job.id for job in self.store.submit([NEXT[0]], time.time())]
            self.expected.append(NEXT)

    def _strike(self, active: Sequence[Job]) -> None:
        """Kill the steward once in a while as machines begin to be kept, or are deleted after their time."""
        states = {(job.id, job.state) for job in active if job.kept_until}
        for moment in sorted(states - self.struck, key=str):
            self.struck.add(moment)
            if self.process is not None and self.random.random() < STRIKE_SHARE:
                self.process.kill()

    def count_kept(self) -> None:
        """Count how often machines were kept, and how often the next job got them."""
        keepers = [job for job in self.store.jobs() if job.kept_until]
        self.kept = len(keepers), sum(one.is_handed for job in keepers for one in job.generations)

    def check(self) -> list[str]:
        wrong = self.wrong_ends()
        left = self._left()
        if left:
            is_gone = eventually(lambda: not self._left(), ORPHAN_LIMIT_S)
            wrong += [f"{name}: there when its job had ended; {'gone later' if is_gone else 'orphan'}" for name in left]
        journal = self.tpus.journal()
        wrong += [f"{name}: made twice" for kind in ("node", "request") for name in double(self._made(kind))]
        wrong += [f"job {number}: its row is not the fold of its events" for number in self.store.audit()]
        condemned = self._condemned()
        for entry in journal:
            name = entry["name"]
            if entry["what"] in ("delete-node", "delete-request"):
                owner = next((one for one in condemned if name == one or name.startswith(f"{one}-")), "")
                if not owner or entry["time"] < condemned[owner]:
                    wrong.append(f"{name}: deleted, and not condemned")
        wrong += [f"{name}: of others, and gone" for name in FOREIGN if f"{ZONES[0]}/{name}" not in self.tpus.nodes]
        return [*wrong, *self._left_early(), *self._double_starts(), *self._unlike()]

    def _left_early(self) -> list[str]:
        """Return keepers that have deleted machines before their time, without a loss."""
        wrong = []
        for job in self.store.jobs():
            condemned = [one.condemned for one in job.generations if one.condemned]
            if job.kept_until and "gone" not in job.reason and condemned and condemned[0] < job.kept_until:
                wrong.append(f"job {job.id}: its machines went {job.kept_until - condemned[0]:.2f} s early")
        return wrong

    def _left(self) -> list[str]:
        state = self.tpus.state
        there = [name.partition("/")[2] for name in (*state["nodes"], *state["requests"])]
        return [name for name in there if name not in FOREIGN]

    def _made(self, kind: str) -> list[str]:
        return self.tpus.effects(f"create-{kind}")

    def _condemned(self) -> dict[str, float]:
        """Return when each generation was condemned, by its name."""
        found: dict[str, float] = {}
        for job in self.store.jobs():
            for event in self.store.events(job.id):
                if isinstance(event, Intended) and isinstance(event.order, Delete):
                    found.setdefault(event.order.name, event.time)
        return found

    def _double_starts(self) -> list[str]:
        """Return attempts of one job that were alive at the same time, on whatever machines."""
        wrong = []
        notes: list[dict[str, object]] = []
        for path in (self.root / "hosts").iterdir():
            lines = (path / "ranks").read_text().splitlines() if (path / "ranks").exists() else []
            notes += [json.loads(line) for line in lines]
        for job in map(str, self.jobs):
            alive: dict[object, object] = {}
            for note in sorted((one for one in notes if one["job"] == job), key=lambda one: float(str(one["time"]))):
                if note["what"] == "end":
                    alive.pop(note["pid"], None)
                    continue
                others = {run for run in alive.values() if run != note["run"]}
                if others:
                    wrong.append(f"job {job}: {note['run']} began while {others} lived")
                alive[note["pid"]] = note["run"]
            if alive:
                wrong.append(f"job {job}: {alive} still runs")
        return wrong

    def _unlike(self) -> list[str]:
        """Return output that was fetched and is not what the ranks wrote."""
        wrong = []
        for job in self.found():
            for attempt in job.attempts:
                fetched = self.root / "jobs" / str(job.id) / f"{attempt.run}.out"
                if not attempt.is_fetched or not fetched.exists():
                    continue
                there = [self.root / "hosts" / name / "runs" / f"{attempt.run}.out" for name in attempt.hosts]
                if fetched.read_text() != "".join(path.read_text() for path in there if path.exists()):
                    wrong.append(f"job {job.id}: output of {attempt.run} is not whole")
        return wrong


def live(root: Path, seed: int, faults: float = 0.0) -> tuple[list[str], TpuLife]:
    """Live one life; return what went wrong, and the life."""
    (root / "hosts").mkdir()
    with emulator(root / "emulator", "--hosts", str(root)) as tpus:
        life = TpuLife(root, seed, faults, tpus)
        try:
            life.live()
            tpus.faults()
            life.count_kept()
            return life.check(), life
        finally:
            life.store.close()


@pytest.mark.parametrize(("seed", "faults"), [(301, 0.0), (302, 0.3)])
def test_no_machine_is_made_twice_forgotten_or_deleted_for_nothing(tmp_path: Path, seed: int, faults: float) -> None:
    wrong, life = live(tmp_path, seed, faults)
    print(f"seed {seed}: {life.deaths}, {life.preemptions} preemptions, kept and handed on {life.kept}")
    assert not wrong


def main(points: int, seed: int, faults: float) -> int:
    """Live lives until so many processes have died, and print what went wrong in each."""
    bad = deaths = lives = preemptions = made = 0
    while deaths < points:
        with tempfile.TemporaryDirectory() as directory:
            begun = time.monotonic()
            wrong, life = live(Path(directory), seed, faults)
            lives, deaths, bad = lives + 1, deaths + len(life.deaths), bad + bool(wrong)
            preemptions += life.preemptions
            made += len([entry for entry in life.tpus.journal() if entry["what"] in ("create-node", "create-request")])
            print(
                f"seed {seed}: {len(life.deaths)} deaths, {life.preemptions} preemptions, "
                f"{life.kept[0]} kept, {life.kept[1]} handed on, "
                f"{time.monotonic() - begun:.1f} s: {wrong or 'as it should'}",
                flush=True,
            )
            if wrong:
                print((Path(directory) / "serve.log").read_text()[-4000:], flush=True)
        seed += 1
    print(f"{lives} lives, {deaths} deaths, {preemptions} preemptions, {made} resources made, {bad} lives with errors")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0))
