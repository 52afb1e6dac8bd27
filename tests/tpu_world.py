"""The scripted world of jobs on the stand-in for the TPU API: hosts are directories, machines are the emulator's.

    python -m tests.tpu_world steward|hand ROOT

The maker of machines is mesh's own, with points at which a hand may die before and after each call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from mesh.core.job import CommandSpec, JobSpec, MachinesSpec, RestartOn, RestartSpec
from mesh.core.tpu import Pricing, Provision, Recreate, TpuSpec
from mesh.jobs import events
from mesh.jobs.child import serve
from mesh.jobs.interfaces import MachineFacts, Maker, NoAnswer, Request
from mesh.jobs.orders import Start
from mesh.jobs.place import StorePlace
from tests.jobs_world import ROOT, Host, Plan, ScriptedHands
from tests.tpuemulator.client import PROJECT, ZONES


class TpuHands(ScriptedHands):
    """Hands that reach no machine which is gone."""

    def start(self, request: Request) -> events.RunStarted | events.RunEnded | events.Refused:
        order = request.order
        assert isinstance(order, Start)
        if any((Host(self._root, name).path / "down").exists() for name in order.hosts):
            return events.Refused(kind=events.Refusal.UNREACHABLE, why="no route to host", hosts=order.hosts[:1])
        return super().start(request)

    def fetch(self, request: Request) -> events.Fetched:
        names = request.order.hosts  # type: ignore[union-attr]
        if any((Host(self._root, name).path / "down").exists() for name in names):
            raise NoAnswer("no route to host")
        return super().fetch(request)


class PointedMaker:
    """Mesh's maker of machines, with points."""

    def __init__(self, root: Path) -> None:
        self._root, self._plan = root, Plan("hand")

    @cached_property
    def _maker(self) -> Maker:
        """Mesh's own, in hands that need it."""
        from mesh.app.machines import JobMaker, Pace

        pace = Pace(absent_again=1.0, lost_again=0.2, list_interval=0.2, queue_interval=0.2, hurried_interval=0.2)
        return JobMaker(pace)

    def make(self, request: Request) -> events.Made | events.Refused:
        self._plan.point("before the make")
        answer = self._maker.make(request)
        self._plan.point("after the make")
        return answer

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        self._plan.point("look at machines")
        found = self._maker.look(requests)
        for fact in found:
            if isinstance(fact, events.MachinesReady):
                for name in fact.hosts:
                    Host(self._root, name).make()
        return found

    def delete(self, request: Request) -> events.MachinesPending | events.MachinesAbsent:
        self._plan.point("before the delete")
        answer = self._maker.delete(request)
        self._plan.point("after the delete")
        return answer


def serve_world(root: Path) -> None:
    """Be a steward of the world's store until a signal ends it."""
    from mesh.jobs.locking import take_lock
    from mesh.jobs.steward import Steward, StewardOptions
    from tests.jobs_steward import open_pointed

    place = StorePlace(directory=root / "jobs")
    lock = take_lock(place)
    store = open_pointed(place)
    options = StewardOptions(
        user="me",
        hand=(sys.executable, "-m", "tests.tpu_world", "hand", str(root)),
        path=str(root / "socket"),
        look_s=0.3,
        urgent_look_s=0.2,
        lease_s=3.0,
        deadlines={"start": 120.0, "stop": 120.0, "look": 60.0, "fetch": 60.0},
    )
    try:
        Steward(store, options, os.environ, keep=[lock]).run()
    finally:
        store.close()


def job_spec(
    name: str,
    schedule: Sequence[str],
    provision: Provision,
    slices: int = 1,
    recreate: Recreate = Recreate.WAIT,
    keep: float = 0.0,
) -> JobSpec:
    """Return a job on machines of two zones. schedule: of each attempt; keep: seconds"""
    tpu = TpuSpec(
        accelerator="v4-8",
        runtime="tpu-ubuntu2204-base",
        zones=ZONES,
        project=PROJECT,
        provision=provision,
        pricing=Pricing.SPOT,
        slices=slices,
        recreate=recreate,
        keep=keep,
        make_for=30.0,  # a request that is ACTIVE, and whose node vanished before it was seen, is given back then
    )
    machines = MachinesSpec(maker="tpu", pool="v4", units=tpu.chips, tpu=tpu)
    rules = RestartSpec(on=RestartOn.FAILURE, failures=2, backoff=(0.1, 0.4), again=(29,))
    return JobSpec(name=name, user="me", machines=machines, command=CommandSpec(words=tuple(schedule)), restart=rules)


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault(ROOT, str(where))
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if what == "hand":
        serve(TpuHands(where), PointedMaker(where))
    else:
        serve_world(where)
