"""A job without a command, which `mesh up` submits: it makes machines, holds them, and gives them back."""

from __future__ import annotations

from msgspec.structs import replace

from mesh.jobs.decide import decide
from mesh.jobs.events import (
    AnyEvent,
    Granted,
    HoldChanged,
    MachinesAbsent,
    MachinesReady,
    Made,
    RestartAsked,
    Submitted,
    Wished,
)
from mesh.jobs.orders import Delete, Make, Order
from mesh.jobs.values import Job, State, Wanted
from tests.unit.test_audit import SPEC, STORE

HELD = replace(SPEC, name="up-pod", holds="pod", command=replace(SPEC.command, words=()))


class History:
    """A job, and all orders that its events led to."""

    def __init__(self) -> None:
        self.job: Job
        self.orders: list[type[Order]] = []
        self.job, _ = decide(None, Submitted(time=0.0, job=7, store=STORE, spec=HELD))

    def add(self, *events: AnyEvent) -> State:
        for event in events:
            self.job, orders = decide(self.job, event)
            self.orders += [type(one.order) for one in orders]
        return self.job.state

    def up(self, generation: int = 1, time: float = 10.0) -> State:
        self.add(Granted(time=time))
        make = self.job.open[-1].op
        self.add(Made(time=time + 1, op=make, generation=generation))
        return self.add(MachinesReady(time=time + 2, generation=generation, hosts=("a", "b"), keys=("1/0", "2/0")))


def test_machines_are_held_and_nothing_is_started() -> None:
    history = History()
    assert history.up() is State.RUNNING
    assert (history.job.reason, history.job.attempts, history.orders) == ("holds 2 hosts", (), [Make])
    # Stopped: they are deleted, and only their absence ends the job.
    assert history.add(Wished(time=20.0, wanted=Wanted.STOP)) is State.ENDING
    assert history.orders == [Make, Delete]
    assert history.add(MachinesAbsent(time=30.0, generation=1, evidence="gone")) is State.STOPPED


def test_lost_machines_are_made_anew() -> None:
    history = History()
    history.up()
    assert history.add(MachinesAbsent(time=20.0, generation=1, evidence="PREEMPTED")) is State.QUEUED
    assert history.job.preemptions == 1
    assert history.up(2, time=100.0) is State.RUNNING
    assert (history.orders, history.job.attempts) == ([Make, Make], ())


def test_no_way_back_from_a_hold_or_a_restart_starts_a_command() -> None:
    history = History()
    history.up()
    history.add(HoldChanged(time=20.0, is_on_hold=True), HoldChanged(time=21.0, is_on_hold=False))
    assert history.job.state is State.RUNNING
    history.add(RestartAsked(time=30.0))
    assert history.job.state in (State.RUNNING, State.RECOVERING)
    assert history.job.attempts == ()
    assert set(history.orders) <= {Make, Delete}
