"""The supervisor's decisions about modules: first the steps of each host, then those that need all reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mesh.core.cluster import Host, place_ranks
from mesh.core.events import Event, Gone, Locked, PrepareFailed, Ready, Tick
from mesh.core.module import Applied, ModuleError, ModuleStep, Preparation, Step
from mesh.core.outcome import Cause
from mesh.core.run import Kind, PrerunEntry
from mesh.engine.orders import Apply, Finish, Order, Prepare, Say, Start, Tell
from mesh.engine.supervisor import Supervisor
from tests.specs import spec_of
from tests.unit.test_supervisor import connected, synced


class Demo:
    """A module with one step, whose reports must be equal on all hosts."""

    name = "demo"

    def __init__(self, second: bool = False) -> None:
        """second: each host gets a step that names the reports of all"""
        self._second = second

    def steps(self, hosts: Sequence[Host], node: int) -> Sequence[Step]:
        return [Step(module="demo", apply=f"first {node}", undo="undo")]

    def join(self, hosts: Sequence[Host], facts: Sequence[Sequence[str]]) -> Sequence[Sequence[Step]]:
        if len({fact for (fact,) in facts}) > 1:
            raise ModuleError("h1 differs", hint="mesh setup --force")
        if not self._second:
            return ()
        return [[Step(module="demo", apply=f"second {facts}")] for _ in hosts]


class Replay:
    """A supervisor of two hosts with modules."""

    def __init__(self, *modules: Demo, undo: bool = False, **changes: object) -> None:
        spec = spec_of(run="r", project="p", workspace=Path("/w"), **{"command": ("true",), **changes})
        placement = place_ranks((Host(name="h0", address="h0"), Host(name="h1", address="h1")))
        self.supervisor = Supervisor(spec, placement, Preparation(modules=modules, undo=undo))

    def handle(self, *events: Event) -> list[Order]:
        orders = [order for event in events for order in self.supervisor.handle(event)]
        return [order for order in orders if not isinstance(order, Say)]

    def synced(self) -> list[Order]:
        orders = []
        for node in range(2):
            orders = self.handle(connected(node), Locked(time=1, node=node), synced(node))
        return orders


def applied(node: int, fact: str = "same") -> Applied:
    return Applied(time=1, node=node, facts=(fact,), applied=())


def test_modules_come_after_the_sync_of_a_host_and_before_prerun_of_any() -> None:
    replay = Replay(Demo(), prerun=(PrerunEntry(run="true"),))
    replay.handle(connected(0), Locked(time=1, node=0), synced(0))
    orders = replay.handle(connected(1), Locked(time=1, node=1))
    assert [order for order in orders if isinstance(order, Apply)] == [
        Apply(node=0, steps=(Step(module="demo", apply="first 0", undo="undo"),))
    ]
    (second,) = replay.handle(synced(1))
    assert isinstance(second, Apply)
    assert replay.handle(ModuleStep(time=1, node=0, module="demo", step=0, state="check"), applied(0)) == []
    assert replay.handle(applied(1)) == [Prepare(node=0), Prepare(node=1)]
    assert replay.handle(Ready(time=1, node=0), Ready(time=1, node=1)) == [Start(node=0), Start(node=1)]


def test_the_second_round_knows_the_reports_of_all_hosts_and_comes_once() -> None:
    replay = Replay(Demo(second=True))
    replay.synced()
    orders = replay.handle(applied(0), applied(1))
    told = (Step(module="demo", apply="second [['same'], ['same']]"),)
    assert orders == [Apply(node=0, steps=told), Apply(node=1, steps=told)]
    assert replay.handle(applied(1)) == []
    assert replay.handle(applied(0)) == [Prepare(node=0), Prepare(node=1)]


def test_hosts_that_do_not_fit_together_end_the_run_before_any_rank() -> None:
    replay = Replay(Demo())
    replay.synced()
    tell, *others = replay.handle(applied(0), applied(1, "other"))
    assert isinstance(tell, Tell)
    assert isinstance(tell.event, PrepareFailed)
    assert (tell.event.message, tell.event.hint) == ("demo: h1 differs", "mesh setup --force")
    assert [type(order) for order in others] == [Finish, Finish]
    replay.handle(Gone(time=2, node=0), Gone(time=2, node=1))
    outcome = replay.supervisor.outcome(3.0)
    assert (outcome.exit_code, outcome.cause) == (125, Cause.PREPARE)


def test_a_step_that_fails_ends_the_run_before_any_rank() -> None:
    replay = Replay(Demo())
    replay.synced()
    replay.handle(PrepareFailed(time=1, node=1, step="module", message="demo: no disk"))
    assert [type(order) for order in replay.handle(applied(0))] in ([], [Finish])
    assert replay.supervisor.outcome(3.0).exit_code == 125


def test_modules_alone_end_once_they_are_in_place() -> None:
    replay = Replay(Demo(), kind=Kind.MODULES, command=())
    replay.synced()
    assert [type(order) for order in replay.handle(applied(0), applied(1))] == [Finish, Finish]
    replay.handle(Gone(time=2, node=0), Gone(time=2, node=1))
    assert replay.supervisor.outcome(3.0).exit_code == 0


def test_modules_alone_end_when_their_time_is_over() -> None:
    replay = Replay(Demo(), kind=Kind.MODULES, command=(), timeout=5.0)
    replay.synced()
    replay.handle(applied(0))
    assert replay.handle(Tick(time=4, monotonic=4)) == []
    assert replay.handle(Tick(time=6, monotonic=6)) != []
    replay.handle(Gone(time=7, node=0), Gone(time=7, node=1))
    outcome = replay.supervisor.outcome(8.0)
    assert (outcome.exit_code, outcome.cause) == (124, Cause.TIMEOUT)


def test_undo_takes_the_steps_in_reverse_and_joins_nothing() -> None:
    replay = Replay(Demo(), Demo(second=True), undo=True, kind=Kind.MODULES, command=(), sync=False)
    orders = replay.handle(*(event for node in range(2) for event in (connected(node), Locked(time=1, node=node))))
    applies = [order for order in orders if isinstance(order, Apply)]
    assert [(order.node, order.undo, len(order.steps)) for order in applies] == [(0, True, 2), (1, True, 2)]
    assert [type(order) for order in replay.handle(applied(0), applied(1))] == [Finish, Finish]
