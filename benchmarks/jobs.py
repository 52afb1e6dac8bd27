"""Times of jobs: the queue with 10,000 waiting jobs, the store with 10,000 rows, one committed event.

``python -m benchmarks.jobs`` prints a line for each.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mesh.core.job import Candidate, CommandSpec, JobSpec, MachinesSpec
from mesh.jobs.events import PriorityChanged
from mesh.jobs.place import StorePlace
from mesh.jobs.queue import Ask, Hold, Pools, demand_of, next_jobs
from mesh.jobs.store import open_store

JOBS = 10_000
ROUNDS = 5
HOSTS = tuple(Candidate(name=f"h{index}", key=f"me@h{index}:22") for index in range(64))


def median(call: Callable[[], object]) -> float:
    """Return the median of some calls in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


def queue_times() -> None:
    """Decide who is next of 10,000 jobs of 3 users and 8 sizes, while 60 of 64 hosts are busy."""
    demands = [demand_of(MachinesSpec(cluster="pod", candidates=HOSTS, hosts=count)) for count in range(1, 9)]
    asks = [
        Ask(
            job=number,
            user=f"u{number % 3}",
            priority=number % 5,
            submitted=float(number),
            ready_at=0.0,
            limit=math.inf if number % 2 else 3600.0,
            demand=demands[number % 8],
        )
        for number in range(JOBS)
    ]
    holds = [Hold(job=-index, keys=(HOSTS[index].key,), until=1e6) for index in range(60)]
    pools = Pools(usage={"u0": 5.0, "u1": 3.0})
    print(f"queue: {JOBS} jobs decided in {median(lambda: next_jobs(20000.0, asks, holds, pools)):.1f} ms")


def store_times() -> None:
    """Submit 10,000 jobs, load them, and list them from a process of its own."""
    spec = JobSpec(
        name="train",
        user="me",
        machines=MachinesSpec(cluster="pod", candidates=HOSTS[:8]),
        command=CommandSpec(words=("python", "train.py")),
    )
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(StorePlace(directory=Path(directory)))
        begun = time.perf_counter()
        first = store.submit([spec] * JOBS, 1.0)[0].id
        print(f"store: {JOBS} jobs submitted in {time.perf_counter() - begun:.2f} s")
        print(f"store: {JOBS} jobs loaded in {median(store.jobs):.0f} ms")
        events = iter(range(10_000))
        one = median(lambda: store.record(first, PriorityChanged(time=2.0, priority=next(events) % 100)))
        print(f"store: one event committed in {one:.1f} ms")
        code = "import sys, pathlib, mesh.jobs.reading as r; print(len(r.json_rows(pathlib.Path(sys.argv[1]))))"
        argv = [sys.executable, "-c", code, str(store.place.file)]
        took = median(lambda: subprocess.run(argv, check=True, stdout=subprocess.DEVNULL))
        print(f"reader: {JOBS} rows listed in {took:.0f} ms, with the start of Python")
        store.close()


if __name__ == "__main__":
    queue_times()
    store_times()
