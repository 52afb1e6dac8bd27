"""The store of a scripted world, with points at which its steward may die. Hands do not import it: it takes long."""

from __future__ import annotations

from mesh.jobs.events import AnyEvent
from mesh.jobs.place import StorePlace
from mesh.jobs.store import Decided, Store, open_store
from tests.jobs_world import Plan


class PointedStore(Store):
    """A store with a point before and after each transaction."""

    plan: Plan

    def record(self, job: int, fact: AnyEvent, lease: object = None) -> Decided:
        self.plan.point("before the commit")
        decided = super().record(job, fact, lease)  # type: ignore[arg-type]
        self.plan.point("after the commit")
        return decided

    def hand_over(self, keeper: int, job: int, time: float, lease: object = None) -> list[Decided]:
        self.plan.point("before the hand-over")
        found = super().hand_over(keeper, job, time, lease)  # type: ignore[arg-type]
        self.plan.point("after the hand-over")
        return found


def open_pointed(place: StorePlace) -> PointedStore:
    """Open a store with the points that the plan of a steward names."""
    store = PointedStore(open_store(place)._database)
    store.plan = Plan("steward")
    return store
