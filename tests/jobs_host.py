"""A host of the scripted world of jobs: a directory, and an agent with one rank.

    python -m tests.jobs_host ROOT HOST RUN JOB SCHEDULE

A schedule is how long the rank lives, and how it ends: ``0.3:ok``, ``0.1:lost``, ``2:5``. With ``enough:ok`` it lives
until the world has a file ``enough``.
A process of it starts for each rank of each run. So it imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import sys
import time
from pathlib import Path

CLIENT_DEATH_S = 0.3  # until a run ends by itself whose client was killed
STEP_S = 0.05  # between two lines of a rank


class Host:
    """A host, which is a directory."""

    def __init__(self, root: Path, name: str) -> None:
        self.path = root / "hosts" / name
        self.name = name

    def make(self) -> None:
        (self.path / "runs").mkdir(parents=True, exist_ok=True)

    def record(self, run: str) -> dict[str, object] | None:
        try:
            return dict(json.loads((self.path / "runs" / f"{run}.json").read_text()))
        except FileNotFoundError:
            return None

    def write(self, run: str, **facts: object) -> None:
        path = self.path / "runs" / f"{run}.json"
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(facts))
        beside.rename(path)

    def forget(self, run: str) -> None:
        (self.path / "runs" / f"{run}.json").unlink(missing_ok=True)

    def note(self, **facts: object) -> None:
        """Append what a rank does to the host's own file."""
        with open(self.path / "ranks", "a") as file:
            file.write(json.dumps({**facts, "time": time.monotonic()}) + "\n")

    def notes(self) -> list[dict[str, object]]:
        path = self.path / "ranks"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def agent(root: Path, name: str, run: str, job: str, schedule: str) -> None:
    """Be the agent and the rank of a run on one host. Standard input is the client, standard output its answers."""
    host = Host(root, name)
    with open(host.path / "lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            print("busy", lock.read().strip(), flush=True)
            return
        lock.truncate(0)
        lock.write(run)
        lock.flush()
        host.write(run, state="attached")
        if not says("locked", "go"):
            time.sleep(CLIENT_DEATH_S)
            host.forget(run)
            return
        host.note(what="begin", run=run, job=job, pid=os.getpid())
        ended: dict[str, object] = {}
        try:
            ended = work(host, run, job, schedule)
        finally:  # before the record: a test looks at the notes once the steward has seen the end
            host.note(what="end", run=run, job=job, pid=os.getpid())
        if ended:
            host.write(run, state="ended", **ended)
        else:
            host.forget(run)


def says(word: str, answer: str) -> bool:
    """Send a word to the client, and return True if the answer is the expected one."""
    try:
        print(word, flush=True)
    except BrokenPipeError:  # it was killed
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - else Python complains at the end
        return False
    return not answer or sys.stdin.readline().strip() == answer


def work(host: Host, run: str, job: str, schedule: str) -> dict[str, object]:
    """Print lines until the schedule, the client's death, another host or a stop ends the rank; return its end.

    It is empty after the death of the client: the run is forgotten.
    """
    seconds, _, rest = schedule.partition(":")
    enough = host.path.parents[1] / "enough"
    steps = range(max(1, int(float(seconds) / STEP_S))) if seconds != enough.name else itertools.count()
    if not says("started", "leave"):
        time.sleep(CLIENT_DEATH_S)
        return {}
    host.write(run, state="detached")
    says("left", "")
    with open(host.path / "runs" / f"{run}.out", "a") as output:
        for step in steps:
            output.write(f"{job} {host.name} {run} line {step}\n")
            output.flush()
            time.sleep(STEP_S)
            if (host.path / "runs" / f"{run}.stop").exists():
                return {"exit_code": 143, "cause": "signal"}
            if seconds == enough.name and enough.exists():
                break
        output.write(f"{job} {host.name} {run} last\n")
    code = {"ok": 0, "lost": 76}.get(rest, int(rest) if rest.isdigit() else 1)
    return {"exit_code": code, "cause": {0: "completed", 76: "lost"}.get(code, "rank")}


if __name__ == "__main__":
    agent(Path(sys.argv[1]), *sys.argv[2:6])
