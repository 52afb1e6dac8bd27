"""A scripted world for jobs: hosts that are directories, runs that are real processes, and a maker of machines.

Each host has a lock, records of runs, the output of their ranks, and a file to which every rank appends when it begins
and ends. A run whose client dies before it has left ends by itself, as with mesh. Stewards and hands are real
processes that kill themselves, or each other, at the points that a plan names.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mesh.core.job import Candidate, CommandSpec, JobSpec, MachinesSpec, RestartOn, RestartSpec
from mesh.jobs import events
from mesh.jobs.child import serve
from mesh.jobs.events import Refusal
from mesh.jobs.interfaces import NoAnswer, Request
from mesh.jobs.orders import Delete, Fetch, LookAtMachines, LookAtRun, Make, Start, Stop
from mesh.jobs.place import StorePlace
from tests.jobs_host import Host

ROOT = "JOBS_WORLD"  # the variable with the world's directory
PLAN = "JOBS_PLAN"  # JSON: who dies at which of its points, and the share of calls that fail
LOOK_S = "JOBS_LOOK_S"  # seconds between two looks at a run
RANK_END_LIMIT_S = 60.0  # of a hand that stops a run


class Plan:
    """The deaths of one process, by the number of points that it has passed."""

    def __init__(self, role: str) -> None:
        plan = json.loads(os.environ.get(PLAN, "{}"))
        self._deaths = {int(count): action for count, action in plan.get(role, {}).items()}
        self._passed = 0
        self.random = random.Random(f"{plan.get('seed', 0)}/{role}/{os.getpid()}")
        self.faults = float(plan.get("faults", 0.0))
        self._once = Path(os.environ[ROOT], f"died-{role}-{plan.get('life', 0)}")

    def point(self, name: str) -> None:
        """Pass a point, perhaps not alive."""
        self._passed += 1
        action = self._deaths.get(self._passed)
        if action is None or self._once.exists():
            return
        self._once.write_text(f"{name} {action}\n")
        if action in ("steward", "both") and "hand" in str(self._once):
            os.kill(os.getppid(), signal.SIGKILL)
        if action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return
        if action in ("self", "both"):
            os.kill(os.getpid(), signal.SIGKILL)

    def fail(self) -> None:
        """Raise NoAnswer for some calls."""
        if self.random.random() < self.faults:
            raise NoAnswer("no route to host")


# ---- hands


class ScriptedHands:
    """Hands for scripted hosts."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._plan = Plan("hand")

    def prepare(self, request: Request) -> events.Prepared:
        return events.Prepared()

    def start(self, request: Request) -> events.RunStarted | events.RunEnded | events.Refused:
        order, point = request.order, self._plan.point
        assert isinstance(order, Start)
        point("before the call")
        self._plan.fail()
        words = request.job.spec.command.words
        schedule = words[min(order.attempt, len(words)) - 1]
        argv = [sys.executable, "-m", "tests.jobs_host", str(self._root)]
        agents = [
            subprocess.Popen(
                [*argv, host, order.run, str(request.job.id), schedule],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for host in order.hosts
        ]
        for number, one in enumerate(agents):
            assert one.stdout is not None
            answer = one.stdout.readline().split()
            if answer[:1] != ["locked"]:
                for other in agents:  # as mesh does: what was prepared is released
                    assert other.stdin is not None
                    other.stdin.close()
                    other.wait()
                by = answer[1] if len(answer) > 1 else ""
                host = order.hosts[number]
                return events.Refused(kind=Refusal.BUSY, why=f"{host} is busy", by_run=by, hosts=(host,))
        for word in ("go", "leave"):
            point(f"before {word}")
            for one in agents:
                assert one.stdin is not None
                assert one.stdout is not None
                one.stdin.write(f"{word}\n")
                one.stdin.flush()
                point(f"in {word}")
                one.stdout.readline()
        point("after the call")
        self._plan.fail()
        return events.RunStarted(run=order.run)

    def look(self, requests: Sequence[Request]) -> list[events.RunSeen | events.RunEnded | events.RunUnknown | None]:
        self._plan.point("look")
        found: list[events.RunSeen | events.RunEnded | events.RunUnknown | None] = []
        for request in requests:
            assert isinstance(request.order, LookAtRun)
            try:
                self._plan.fail()
                found.append(self._look(request.order.run, request.order.hosts))
            except NoAnswer:
                found.append(None)
        return found

    def _look(self, run: str, names: Sequence[str]) -> events.RunSeen | events.RunEnded | events.RunUnknown:
        records = [Host(self._root, name).record(run) for name in names]
        there = [record for record in records if record]
        if not there:
            return events.RunUnknown(run=run)
        if any(record["state"] == "attached" for record in there):
            return events.RunSeen(run=run, is_detached=False)
        ended = [record for record in there if record["state"] == "ended"]
        if len(there) < len(records):  # a host lost its client before the others were left alone
            self._end(run, names)
            return events.RunUnknown(run=run)
        if len(ended) == len(records):
            first = next((one for one in ended if one["exit_code"]), ended[0])
            cause = str(first["cause"])
            return events.RunEnded(run=run, exit_code=int(str(first["exit_code"])), cause=cause)
        return events.RunSeen(run=run)

    def stop(self, request: Request) -> events.RunEnded | events.RunUnknown:
        order = request.order
        assert isinstance(order, Stop)
        self._plan.point("before the stop")
        self._plan.fail()
        was_there = self._end(order.run, order.hosts)
        self._plan.point("after the stop")
        self._plan.fail()
        if not was_there:
            return events.RunUnknown(run=order.run)
        return events.RunEnded(run=order.run, exit_code=143, cause="signal")

    def _end(self, run: str, names: Sequence[str]) -> bool:
        """End the ranks of a run, and wait until each is gone."""
        was_there = False
        for name in names:
            host = Host(self._root, name)
            (host.path / "runs" / f"{run}.stop").touch()
            deadline = time.monotonic() + RANK_END_LIMIT_S
            while (record := host.record(run)) and record["state"] != "ended":
                was_there = True
                if time.monotonic() > deadline:
                    raise NoAnswer(f"{name}: its rank does not end")
                time.sleep(0.02)
            was_there = was_there or record is not None
        return was_there

    def fetch(self, request: Request) -> events.Fetched:
        order = request.order
        assert isinstance(order, Fetch)
        self._plan.point("before the fetch")
        self._plan.fail()
        request.directory.mkdir(parents=True, exist_ok=True)
        texts = [Host(self._root, name).path / "runs" / f"{order.run}.out" for name in order.hosts]
        beside = request.directory / f"{order.run}.part"
        beside.write_text("".join(path.read_text() for path in texts if path.exists()))
        self._plan.point("in the fetch")
        beside.rename(request.directory / f"{order.run}.out")
        self._plan.fail()
        return events.Fetched(run=order.run)


class ScriptedMaker:
    """A maker of machines whose cloud is a directory, with a journal of what was really made and deleted."""

    def __init__(self, root: Path) -> None:
        self._root, self._cloud = root, root / "cloud"
        self._plan = Plan("hand")

    def make(self, request: Request) -> events.Made | events.Refused:
        order = request.order
        assert isinstance(order, Make)
        self._plan.point("before the make")
        self._plan.fail()
        try:
            (self._cloud / order.name).mkdir(parents=True)
            self._note(f"make {order.name}")
        except FileExistsError:
            pass
        self._plan.point("after the make")
        self._plan.fail()
        return events.Made(generation=order.generation)

    def look(
        self, requests: Sequence[Request]
    ) -> list[events.MachinesReady | events.MachinesPending | events.MachinesAbsent | None]:
        self._plan.point("look at machines")
        found: list[events.MachinesReady | events.MachinesPending | events.MachinesAbsent | None] = []
        for request in requests:
            order = request.order
            assert isinstance(order, LookAtMachines)
            path = self._cloud / order.name
            if self._plan.random.random() < self._plan.faults:
                found.append(None)
            elif not path.exists():
                found.append(events.MachinesAbsent(generation=order.generation, evidence="NOT_FOUND twice"))
            elif time.time() - path.stat().st_ctime < 0.2:
                found.append(events.MachinesPending(generation=order.generation, state="CREATING"))
            else:
                names = tuple(f"{order.name}-{index}" for index in range(request.job.spec.machines.units))
                for name in names:
                    Host(self._root, name).make()
                found.append(events.MachinesReady(generation=order.generation, hosts=names, keys=names))
        return found

    def delete(self, request: Request) -> events.MachinesAbsent:
        order = request.order
        assert isinstance(order, Delete)
        self._plan.point("before the delete")
        self._plan.fail()
        try:
            (self._cloud / order.name).rmdir()
            self._note(f"delete {order.name}")
        except FileNotFoundError:
            pass
        self._plan.point("after the delete")
        self._plan.fail()
        return events.MachinesAbsent(generation=order.generation, evidence="deleted")

    def _note(self, text: str) -> None:
        with open(self._root / "journal", "a") as file:
            file.write(text + "\n")


# ---- the steward


def serve_world(root: Path, path: str = "", directory: str = "", url: str = "") -> None:
    """Be a steward of the world's store until a signal ends it."""
    from mesh.jobs.locking import take_lock
    from mesh.jobs.steward import Steward, StewardOptions
    from tests.jobs_steward import open_pointed

    place = StorePlace(directory=Path(directory or root / "jobs"), url=url)
    lock = take_lock(place)
    store = open_pointed(place)
    options = StewardOptions(
        user="me",
        hand=(sys.executable, "-m", "tests.jobs_world", "hand", str(root)),
        path=path or str(root / "socket"),
        look_s=float(os.environ.get(LOOK_S, "0.2")),
        urgent_look_s=0.1,
        lease_s=3.0,
        deadlines={"start": 120.0, "stop": 120.0, "look": 60.0, "fetch": 60.0},
    )
    try:
        Steward(store, options, os.environ, keep=[lock]).run()
    finally:
        store.close()


def job_spec(name: str, schedule: Sequence[str], hosts: int = 2, *, made: bool = False) -> JobSpec:
    """Return a job on two of the four hosts, or on machines that are made. schedule: of each attempt"""
    candidates = tuple(Candidate(name=f"h{index}", key=f"h{index}") for index in range(4))
    machines = MachinesSpec(cluster="pod", candidates=candidates, hosts=hosts)
    if made:
        machines = MachinesSpec(cluster="pod", maker="cloud", pool="zone", units=hosts)
    rules = RestartSpec(on=RestartOn.FAILURE, failures=2, backoff=(0.1, 0.4), again=(29,))
    return JobSpec(name=name, user="me", machines=machines, command=CommandSpec(words=tuple(schedule)), restart=rules)


def overlaps(root: Path) -> Iterator[str]:
    """Yield each pair of ranks of one job that lived at the same time on one host, and ranks that never ended."""
    for path in sorted((root / "hosts").iterdir()):
        alive: dict[str, dict[str, object]] = {}
        for note in Host(root, path.name).notes():
            job = str(note["job"])
            if note["what"] == "begin":
                if job in alive:
                    yield f"{path.name}: job {job}: {alive[job]['run']} and {note['run']}"
                alive[job] = note
            else:
                alive.pop(job, None)
        yield from (f"{path.name}: job {job} still runs" for job in alive)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault(ROOT, str(where))
    if what == "hand":
        serve(ScriptedHands(where), ScriptedMaker(where))
    else:
        serve_world(where, *sys.argv[3:6])
