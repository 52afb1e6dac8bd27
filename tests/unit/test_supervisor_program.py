"""The supervisor of a program, replayed: nodes that are ready, stop their program, may fail, restart or serve."""

from __future__ import annotations

import signal
from pathlib import Path

from msgspec.structs import replace

from mesh.core.cluster import Host
from mesh.core.events import EndOrdered, Event, Exited, Gone, Locked, PrepareFailed, Ready, Tick
from mesh.core.nodes import AllReady, ProgramStopped, RankReady, Restarting
from mesh.core.outcome import Cause
from mesh.core.run import Group, RunSpec
from mesh.engine.orders import Change, Finish, Order, Prepare, Say, Signal, Start, Tell
from mesh.engine.supervisor import Supervisor
from tests.unit.test_supervisor import connected

HOSTS = tuple(Host(name=f"h{node}", address=f"h{node}") for node in range(2))
GRACE = 10.0


class Program:
    """A program of a learner on the first host, and an actor on each of both."""

    def __init__(self, learner: Group, actor: Group) -> None:
        learner = replace(learner, label="learner", hosts=("h0",), command=("true",), ready=True)
        actor = replace(actor, label="actor", hosts=("h0", "h1"), command=("true",), ready=True)
        spec = RunSpec(run="r", project="p", workspace=Path("/w"), groups=(learner, actor), sync=False, lock=False)
        self.supervisor = Supervisor(spec, spec.placed(HOSTS))
        self.said: list[str] = []

    def handle(self, *events: Event) -> list[Order]:
        orders = [order for event in events for order in self.supervisor.handle(event)]
        self.said += [order.text for order in orders if isinstance(order, Say)]
        return [order for order in orders if not isinstance(order, Say)]

    def tick(self, at: float) -> list[Order]:
        return self.handle(Tick(time=at, monotonic=at))

    def start(self) -> None:
        self.tick(1.0)
        at_once = [replace(connected(node), is_locking=True) for node in (0, 1)]
        prepared = self.handle(*at_once, *(Locked(time=1, node=node) for node in (0, 1)))
        assert prepared == [Prepare(node=0), Prepare(node=1)]
        started = self.handle(Ready(time=1, node=0), Ready(time=1, node=1))
        assert started == [Start(node=0), Start(node=1)]


# Ranks: 0 is learner/0 on h0, 1 is actor/0 on h0, 2 is actor/1 on h1.
def of(rank: int) -> int:
    return rank // 2


def ready(rank: int, attempt: int = 0) -> RankReady:
    return RankReady(time=2, node=of(rank), rank=rank, attempt=attempt)


def ended(rank: int, code: int = 0, at: float = 3.0) -> Exited:
    return Exited(time=at, node=of(rank), rank=rank, code=code)


def stop(node: int, cause: str, code: int = 0) -> Signal:
    why = EndOrdered(time=2.0, node=0, cause=cause, signal=signal.SIGTERM, code=code)
    return Signal(node=node, number=signal.SIGTERM, grace=GRACE, why=why)


def finish(node: int) -> Finish:
    return Finish(node=node, number=signal.SIGTERM, grace=GRACE)


def test_groups_may_share_a_host() -> None:
    program = Program(Group(), Group())
    assert program.supervisor._state.placement.groups(0) == [0, 1]


def test_the_last_ready_node_makes_the_program_ready_and_others_receive_the_change() -> None:
    program = Program(Group(), Group())
    program.start()
    program.tick(2.0)
    assert program.handle(ready(0), ready(2)) == []
    assert program.tick(2.1) == [
        Change(node=0, states=(("actor/1", "ready", 0, ""),)),
        Change(node=1, states=(("learner/0", "ready", 0, ""),)),
    ]
    assert program.handle(ready(1)) == [Tell(event=AllReady(time=2.1))]
    again = Restarting(time=2, node=1, rank=2, attempt=1, seconds=1.0, code=3)
    assert program.handle(again, ready(2, 1)) == []
    assert program.tick(400.0)[:1] == [
        Change(node=0, states=(("actor/1", "restarting", 1, "exit 3"), ("actor/1", "ready", 1, "")))
    ]


def test_a_node_that_is_not_ready_in_time_ends_the_program_and_is_named() -> None:
    program = Program(Group(), Group())
    program.start()
    program.handle(ready(0), ready(1))
    program.tick(2.0)
    program.tick(301.0)
    orders = program.tick(302.5)
    (told,) = [order.event for order in orders if isinstance(order, Tell)]
    assert isinstance(told, PrepareFailed)
    assert (told.node, told.step, told.message) == (1, "ready", "actor/1: not ready after 300 s")
    program.tick(305.0)
    program.handle(*(ended(rank, 143, at=306.0) for rank in range(3)), *(Gone(time=307, node=node) for node in (0, 1)))
    outcome = program.supervisor.outcome(308.0)
    assert (outcome.exit_code, outcome.cause, outcome.failures) == (125, Cause.PREPARE, (told,))


def test_the_stop_of_a_node_is_the_end_of_all_with_its_status() -> None:
    program = Program(Group(), Group())
    program.start()
    program.tick(2.0)
    stopped = ProgramStopped(time=2, node=1, rank=2, code=7, why="enough")
    assert program.handle(stopped) == [stop(0, "program", 7), stop(1, "program", 7)]
    assert program.handle(replace(stopped, code=9), ended(2), ended(1, 3), ended(0, 4)) == [finish(0), finish(1)]
    program.handle(*(Gone(time=4, node=node) for node in (0, 1)))
    outcome = program.supervisor.outcome(5.0)
    assert (outcome.exit_code, outcome.cause, outcome.first, outcome.stopped) == (7, Cause.PROGRAM, None, (0, 1, 2))


def test_a_failure_before_the_stop_of_another_node_decides() -> None:
    program = Program(Group(), Group())
    program.start()
    program.tick(2.0)
    program.handle(ended(0, 3, at=2.0), ProgramStopped(time=2.5, node=1, rank=2, code=0))
    program.handle(ended(1, at=2.6), ended(2, at=2.6), *(Gone(time=4, node=node) for node in (0, 1)))
    outcome = program.supervisor.outcome(5.0)
    assert (outcome.exit_code, outcome.cause) == (3, Cause.RANK)


def test_nodes_that_serve_are_stopped_once_all_others_have_ended_though_one_of_these_may_fail() -> None:
    program = Program(Group(serves=True), Group(may_fail=True))
    program.start()
    program.tick(2.0)
    assert program.handle(ended(1, 3, at=2.0)) == []
    assert program.handle(ended(2, at=2.0)) == [stop(0, "completed")]
    assert program.handle(ended(0, 143)) == [finish(0), finish(1)]
    program.handle(*(Gone(time=4, node=node) for node in (0, 1)))
    outcome = program.supervisor.outcome(5.0)
    assert (outcome.exit_code, outcome.cause, outcome.first) == (0, Cause.COMPLETED, None)


def test_a_program_whose_nodes_all_serve_ends_by_its_client_alone() -> None:
    program = Program(Group(serves=True), Group(serves=True))
    program.start()
    program.tick(2.0)
    assert program.handle(ended(0, at=2.0)) == []
