"""Times of jobs: the queue with 10,000 waiting jobs, the store with 10,000 rows, one committed event, the steward.

``python -m benchmarks.jobs [queue|store|lists|steward ...]`` prints a line for each.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mesh.app.owner import user_name
from mesh.core.job import Candidate, CommandSpec, JobSpec, MachinesSpec
from mesh.jobs.events import PriorityChanged, Wished
from mesh.jobs.place import StorePlace
from mesh.jobs.queue import Ask, Hold, Pools, demand_of, next_jobs
from mesh.jobs.store import open_store
from mesh.jobs.values import Wanted
from tests.jobs_world import LOOK_S, ROOT, Host

JOBS = 10_000
ROUNDS = 5
RUNNING = 100
STEWARD_LOOK_S = 3.0  # as `mesh serve` has it
PAUSE_S = 5.0  # for hands that have started jobs to leave
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


def list_times() -> None:
    """List 10,000 waiting jobs by the command line, through the steward and without it."""
    candidates = tuple(Candidate(name=f"local-{index}", key=f"local:{index}") for index in range(4))
    spec = JobSpec(
        name="train",
        user=user_name(),
        machines=MachinesSpec(cluster="local:4", candidates=candidates, hosts=1),
        command=CommandSpec(words=("true",)),
        after=time.time() + 1e8,
    )
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(prefix="mesh-") as runtime:
        store = open_store(StorePlace(directory=Path(directory)))
        store.submit([spec] * JOBS, time.time())
        store.close()
        environ = {**os.environ, "MESH_STORE": directory, "XDG_RUNTIME_DIR": runtime, "MESH_SERVE": "0"}
        argv = [sys.executable, "-m", "mesh"]

        def list_all() -> None:
            subprocess.run([*argv, "job", "list", "--json"], env=environ, check=True, stdout=subprocess.DEVNULL)

        list_all()
        print(f"list: {JOBS} jobs without a steward in {median(list_all):.0f} ms, the whole process")
        steward = subprocess.Popen([*argv, "serve"], env=environ)
        try:
            while subprocess.run([*argv, "serve", "status"], env=environ, capture_output=True, check=False).returncode:
                time.sleep(0.1)
            list_all()
            print(f"list: {JOBS} jobs through the steward in {median(list_all):.0f} ms, the whole process")
            print(f"steward: {share_of_core([steward.pid]):.1f} % of a core with {JOBS} jobs that wait")
        finally:
            steward.terminate()
            steward.wait()


def steward_load() -> None:
    """Have a steward look after 100 jobs that run on scripted hosts."""
    names = tuple(f"h{index}" for index in range(RUNNING))
    candidates = tuple(Candidate(name=name, key=name) for name in names)
    spec = JobSpec(
        name="train",
        user="me",
        machines=MachinesSpec(cluster="pod", candidates=candidates, hosts=1),
        command=CommandSpec(words=("600:ok",)),
    )
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name in names:
            Host(root, name).make()
        store = open_store(StorePlace(directory=root / "jobs"))
        jobs = [job.id for job in store.submit([spec] * RUNNING, time.time())]
        environ = {**os.environ, ROOT: directory, LOOK_S: str(STEWARD_LOOK_S)}
        begun = time.monotonic()
        steward = subprocess.Popen([sys.executable, "-m", "tests.jobs_world", "steward", directory], env=environ)
        try:
            while set(store.states(jobs).values()) != {"running"}:
                time.sleep(0.5)
            print(f"steward: {RUNNING} jobs started in {time.monotonic() - begun:.0f} s")
            time.sleep(PAUSE_S)
            tree = [steward.pid, *children_of(steward.pid)]
            print(
                f"steward: {share_of_core([steward.pid]):.1f} % of a core with {RUNNING} jobs that run; "
                f"{sum(map(memory_of, tree)) / 1e6:.0f} MB with {len(tree) - 1} hands at rest"
            )
            for job in jobs:
                store.record(job, Wished(time=time.time(), wanted=Wanted.STOP))
            while set(store.states(jobs).values()) != {"stopped"}:
                time.sleep(0.5)
        finally:
            steward.terminate()
            steward.wait()
            store.close()


def share_of_core(pids: Sequence[int], seconds: float = 20.0) -> float:
    """Return the share of one core that processes use, in percent."""

    def used() -> float:
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return (used() - before) / seconds * 100


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_of(pid: int) -> int:
    """Return the bytes of memory that a process alone has, and its share of what it has in common with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


PARTS = {"queue": queue_times, "store": store_times, "lists": list_times, "steward": steward_load}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
