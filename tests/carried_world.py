"""Stewards and hands of jobs whose hosts a real scheduler gives, with points at which each may die.

    python -m tests.carried_world steward|hand ROOT

All is mesh's own but the pace: a look that proves something is repeated sooner.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mesh.api.hands import JobHands
from mesh.app.evidence import Pace
from mesh.app.jobhosts import Makers
from mesh.core.paths import jobs_directory
from mesh.jobs import events
from mesh.jobs.child import serve
from mesh.jobs.interfaces import MachineFacts, Request
from mesh.jobs.place import StorePlace
from tests.jobs_world import ROOT, Plan

PACE = Pace(absent_again=1.0, lost_again=0.3, list_interval=0.5, queue_interval=0.5, hurried_interval=0.5)


class PointedMakers:
    """Mesh's makers of machines, with points."""

    def __init__(self) -> None:
        self._makers, self._plan = Makers(PACE), Plan("hand")

    def make(self, request: Request) -> events.Made | events.Refused:
        self._plan.point("before the make")
        answer = self._makers.make(request)
        self._plan.point("after the make")
        return answer

    def look(self, requests: Sequence[Request]) -> Sequence[MachineFacts | None]:
        self._plan.point("look at machines")
        return self._makers.look(requests)

    def delete(self, request: Request) -> events.MachinesPending | events.MachinesAbsent:
        self._plan.point("before the delete")
        answer = self._makers.delete(request)
        self._plan.point("after the delete")
        return answer


class PointedHands(JobHands):
    """Mesh's hands, with points."""

    def __init__(self) -> None:
        super().__init__()
        self._plan = Plan("hand")

    def start(self, request: Request) -> events.RunStarted | events.RunEnded | events.Refused:
        self._plan.point("before the start")
        answer = super().start(request)
        self._plan.point("after the start")
        return answer

    def stop(self, request: Request) -> events.RunEnded | events.RunUnknown:
        self._plan.point("before the stop")
        return super().stop(request)

    def fetch(self, request: Request) -> events.Fetched:
        self._plan.point("before the fetch")
        return super().fetch(request)


def serve_world(root: Path) -> None:
    """Be a steward of the user's store until a signal ends it."""
    from mesh.jobs.locking import take_lock
    from mesh.jobs.steward import Steward, StewardOptions
    from tests.jobs_steward import open_pointed

    place = StorePlace(directory=jobs_directory(os.environ))
    lock = take_lock(place)
    store = open_pointed(place)
    options = StewardOptions(
        user="me",
        hand=(sys.executable, "-m", "tests.carried_world", "hand", str(root)),
        path=str(root / "socket"),
        look_s=1.0,
        urgent_look_s=0.5,
        lease_s=3.0,
    )
    try:
        Steward(store, options, os.environ, keep=[lock]).run()
    finally:
        store.close()


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault(ROOT, str(where))
    if what == "hand":
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        serve(PointedHands(), PointedMakers())
    else:
        serve_world(where)
