"""Times of jobs whose machines are made, at the steward's own pace, on the stand-in for the TPU API.

``python -m benchmarks.machines preemption [ROUNDS]``: from a preemption to the ranks of the next attempt.
``python -m benchmarks.machines lives``: from the submit to the end of a job, for each way to make machines.

The machines are four hosts with sshd. It needs root. Times that the stand-in takes for its own states are subtracted,
and printed beside.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mesh.jobs.events import AnyEvent, MachinesLost, MachinesReady, RunSeen, RunStarted
from mesh.jobs.reading import read_events
from tests.conftest import new_home
from tests.desk import Desk, desk_of
from tests.tpuemulator.client import ZONES, Emulator, emulator

HOSTS = 4
ACCELERATOR = {1: "v4-32", 2: "v4-16"}  # by the number of slices: four hosts in all
ROUNDS = 5
WITHIN_S = 180.0
LOOK_PERIOD_S = 6.0  # a preemption comes at any moment of it
FILE = """\
tpu: {{accelerator: {accelerator}, version: tpu-ubuntu2204-base, zone: {zone}, allocation_mode: {mode},
  pricing: {pricing}, slices: {slices}}}
command: {{run: '{run}', grace: 1}}
restart: {{on: preemption, backoff: [0.5, 1]}}
"""
LIVES = [
    *(("tpu-vm", 1, pricing) for pricing in ("spot", "ondemand", "reserved")),
    *(("queued-resources", slices, pricing) for slices in (1, 2) for pricing in ("spot", "ondemand", "reserved")),
    *(("queued-resources", slices, "best-effort") for slices in (1, 2)),
]


@contextlib.contextmanager
def stage() -> Iterator[tuple[Desk, Emulator]]:
    """Yield a user with jobs, and the stand-in with four hosts."""
    with tempfile.TemporaryDirectory() as directory:
        home = new_home(Path(directory))
        with emulator(Path(directory) / "tpu", "--lab", str(HOSTS)) as tpus:
            (home.path / ".ssh").mkdir(mode=0o700, exist_ok=True)
            shutil.copy(tpus.identity, home.path / ".ssh/google_compute_engine")
            home.environ |= {**tpus.environ, "LOGNAME": "root", "USER": "root"}
            with desk_of(home) as desk:
                yield desk, tpus


def submit(desk: Desk, run: str, mode: str = "queued-resources", slices: int = 1, pricing: str = "spot") -> int:
    """Submit a job on four hosts; return its id."""
    text = FILE.format(
        accelerator=ACCELERATOR[slices], zone=ZONES[0], mode=mode, slices=slices, pricing=pricing, run=run
    )
    return desk.submit(text)


def first(events: list[AnyEvent], *kinds: type[AnyEvent]) -> float:  # type: ignore[valid-type]
    """Return the time of the first event of some kinds."""
    return next(one.time for one in events if isinstance(one, kinds))


def moment(tpus: Emulator, what: str, begin: str) -> float:
    """Return the time of the last entry of a kind in the journal whose name begins so."""
    return float(next(one["time"] for one in reversed(tpus.journal()) if one["what"] == what and begin in one["name"]))


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def preemption(rounds: int) -> None:
    """Preempt the machines of a job that runs, and measure until the next attempt's ranks run."""
    choice = random.Random(1)
    totals = []
    with stage() as (desk, tpus):
        for number in range(rounds):
            job = submit(desk, "[ $MESH_ATTEMPT = 2 ] || sleep 600; sleep 5")
            desk.until(job, "running", within=WITHIN_S)
            time.sleep(2.0 + choice.random() * LOOK_PERIOD_S)
            (ready,) = [name for name, one in tpus.nodes.items() if one["state"] == "READY"]
            zone, _, name = ready.partition("/")
            before = len(read_events(desk.store, job))
            begun = time.time()
            tpus.control("preempt", zone=zone, name=name, how="PREEMPTED")
            desk.until_row(job, lambda row: (row["state"], row["attempt"]) == ("running", 2), WITHIN_S)
            events = read_events(desk.store, job, before)
            lost, ready_at = first(events, MachinesLost), first(events, MachinesReady)
            ranks = first([one for one in events if one.time > ready_at], RunStarted, RunSeen)
            asked, up = moment(tpus, "create-request", f"-{job}-g2"), moment(tpus, "ready-node", f"-{job}-g2")
            gone, boot = moment(tpus, "gone-request", f"-{job}-g1"), up - asked
            totals.append(ranks - begun - boot)
            print(
                f"preemption {number + 1}: noticed {lost - begun:.1f} s, deleted {gone - begun:.1f}, "
                f"others asked for {asked - begun:.1f}, READY {up - begun:.1f}, seen {ready_at - begun:.1f}, "
                f"ranks {ranks - begun:.1f}; less {boot:.1f} s of boot {totals[-1]:.1f} s; {load()}",
                flush=True,
            )
            desk.until(job, "succeeded", within=WITHIN_S)
    print(
        f"preemption: median {statistics.median(totals):.1f} s, {min(totals):.1f} to {max(totals):.1f}, {rounds} rounds"
    )


def lives() -> None:
    """Measure whole lives."""
    with stage() as (desk, tpus):
        for mode, slices, pricing in LIVES:
            begun = time.time()
            job = submit(desk, "true", mode, slices, pricing)
            shown = desk.until(job, "succeeded", "failed", "held", within=WITHIN_S)
            took = float(str(shown["ended"])) - begun
            entries = [one for one in tpus.journal() if f"-{job}-g1" in one["name"]]
            times = {one["what"].partition("-")[0]: one["time"] for one in entries}
            first_delete = next(one["time"] for one in entries if one["what"].startswith("delete"))
            own = times["ready"] - entries[0]["time"] + times["gone"] - first_delete
            print(
                f"{mode}, {slices} slices, {pricing}: {shown['state']} after {took:.1f} s, {own:.1f} s of it the "
                f"stand-in's own; asked for {entries[0]['time'] - begun:.1f}, READY {times['ready'] - begun:.1f}, "
                f"deletion {first_delete - begun:.1f}, gone {times['gone'] - begun:.1f}; {load()}",
                flush=True,
            )


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.argv[1] == "preemption":
        preemption(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    else:
        lives()
