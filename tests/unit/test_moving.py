"""Ranks that move to a spare host, replayed: on request, after the loss of a host, and as the run ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.core.cluster import Host, NodeSockets
from mesh.core.events import Event, Exited, Gone, Interrupted, Locked, Lost, PrepareFailed, Ready, Tick
from mesh.core.nodes import Adopted, Kept, MoveAsked, Moving, RankReady, Released, Restarted
from mesh.core.outcome import Cause
from mesh.core.run import Group, Rules, RunSpec
from mesh.engine.orders import Adopt, Finish, HostOrder, Moved, Release, Start, Take, Tell
from mesh.engine.supervisor import Supervisor
from tests.unit.test_supervisor import connected

HOSTS = tuple(Host(name=name, address=name) for name in ("a", "b", "spare-0", "spare-1"))
WAIT_S = 2 * 60.0 + 10.0 + 10.0  # twice the lease, the grace and a margin


class Run:
    """A run of one rank on each of two hosts, with two spare ones. Its clock is moved by hand."""

    def __init__(self, group: Group = Group()) -> None:  # noqa: B008
        group = replace(group, command=("true",))
        spec = RunSpec(
            run="r",
            project="p",
            workspace=Path("/w"),
            groups=(group,),
            rules=Rules(lease=60.0, grace=10.0),
            sync=False,
            lock=False,
            spares=2,
        )
        self.supervisor = Supervisor(spec, spec.placed(HOSTS))
        self.told: list[Event] = []
        self.at = 0.0
        self.tick(1.0)
        nodes = range(len(HOSTS))
        self.handle(*(replace(connected(node), is_locking=True) for node in nodes))
        self.handle(*(Locked(time=1, node=node) for node in nodes))
        assert self.handle(*(Ready(time=1, node=node) for node in nodes)) == [Start(node=node) for node in nodes]

    def handle(self, *events: Event) -> list[HostOrder]:
        orders = [order for event in events for order in self.supervisor.handle(event)]
        self.told += [order.event for order in orders if isinstance(order, Tell)]
        return [order for order in orders if isinstance(order, HostOrder)]

    def tick(self, at: float) -> list[HostOrder]:
        self.at = at
        return self.handle(Tick(time=at, monotonic=at))

    def ask(self, rank: int, to: int, node: int = -1) -> list[HostOrder]:
        node = rank if node < 0 else node
        return self.handle(MoveAsked(time=self.at, node=node, rank=rank, to=to, grace=5.0))

    def release(self, rank: int, node: int) -> list[HostOrder]:
        return self.handle(Released(time=self.at, node=node, rank=rank, attempt=1, signal=15))

    def restarted(self, rank: int, node: int, attempt: int = 1) -> list[HostOrder]:
        return self.handle(Restarted(time=self.at, node=node, rank=rank, attempt=attempt, pid=77))

    def end(self, *where: tuple[int, int], code: int = 0) -> list[HostOrder]:
        return self.handle(*(Exited(time=self.at, node=node, rank=rank, code=code) for rank, node in where))

    def lose(self, node: int, *, is_clear: bool = False) -> list[HostOrder]:
        return self.handle(Lost(time=self.at, node=node, reason="silent", is_clear=is_clear, is_cut=not is_clear))


def finish(node: int) -> Finish:
    return Finish(node=node, number=15, grace=10.0)


def take(rank: int, node: int, attempt: int = 1, after: str = "signal 15") -> Take:
    return Take(node=node, rank=rank, attempt=attempt, after=after)


def test_a_rank_starts_on_the_other_host_only_after_its_old_host_has_released_it() -> None:
    run = Run()
    assert run.ask(1, to=2) == [Release(node=1, rank=1, grace=5.0)]
    assert [one for one in run.told if isinstance(one, Moving)] == [
        Moving(time=1.0, node=1, rank=1, to="spare-0", seconds=0.0, why="")
    ]
    assert run.tick(100.0) == []
    assert run.release(1, 1) == [take(1, 2)]
    assert run.restarted(1, 2) == [Moved(node=1, rank=1, pid=77)]
    assert run.end((0, 0)) == []
    assert run.end((1, 2)) == [finish(node) for node in range(4)]
    run.handle(*(Gone(time=101, node=node) for node in range(4)))
    outcome = run.supervisor.outcome(102.0)
    assert (outcome.exit_code, outcome.cause, outcome.moved, outcome.unclean) == (0, Cause.COMPLETED, ((1, 2),), ())


REFUSED = {
    "a host with ranks of its own": (1, 0, "a is no spare host: it has ranks of its own"),
    "its own host": (1, 1, "there is no such other host"),
    "no host": (1, 9, "there is no such other host"),
}


@pytest.mark.parametrize(("rank", "to", "why"), REFUSED.values(), ids=REFUSED)
def test_a_move_that_does_not_fit_is_refused(rank: int, to: int, why: str) -> None:
    run = Run()
    assert run.ask(rank, to) == [Moved(node=rank, rank=rank, why=why)]


def test_a_spare_host_takes_the_ranks_of_one_host_only_and_a_rank_may_come_back() -> None:
    run = Run()
    run.ask(1, to=2)
    assert run.ask(0, to=2) == [Moved(node=0, rank=0, why="spare-0 has ranks of b already")]
    assert run.ask(1, to=3) == [Moved(node=1, rank=1, why="it is moving already")]
    run.release(1, 1)
    run.restarted(1, 2)
    assert run.ask(1, to=1, node=2) == [Release(node=2, rank=1, grace=5.0)]
    assert run.release(1, 2) == [take(1, 1)]
    run.restarted(1, 1)
    assert run.ask(0, to=2) == [Release(node=0, rank=0, grace=5.0)]


def test_a_rank_that_its_host_keeps_goes_on_there() -> None:
    run = Run()
    run.ask(1, to=2)
    kept = run.handle(Kept(time=2.0, node=1, rank=1, why="pid 7 does not end"))
    assert kept == [Moved(node=1, rank=1, why="pid 7 does not end")]
    assert run.end((0, 0), (1, 1)) == [finish(node) for node in range(4)]


def test_a_rank_whose_new_host_is_lost_meanwhile_starts_again_on_its_old_one() -> None:
    run = Run()
    run.ask(1, to=2)
    assert run.lose(2) == []
    assert run.release(1, 1) == [Moved(node=1, rank=1, why="spare-0 is lost"), take(1, 1)]
    assert run.restarted(1, 1) == []  # the request was answered


def test_a_rank_moves_though_its_host_has_started_it_again_before_the_order_to_release_it_came() -> None:
    run = Run()
    assert run.ask(1, to=2) == [Release(node=1, rank=1, grace=5.0)]
    assert run.restarted(1, 1) == []
    assert run.release(1, 1) == [take(1, 2)]
    assert run.restarted(1, 2, attempt=2) == [Moved(node=1, rank=1, pid=77)]


def test_no_rank_moves_to_a_host_whose_agent_is_ending_the_run() -> None:
    run = Run()
    run.ask(1, to=2)
    ended = (PrepareFailed(time=1.0, node=node, step="agent", message="received SIGTERM") for node in (2, 3))
    assert run.handle(*ended) == []
    assert run.ask(0, to=3) == [Moved(node=0, rank=0, why="spare-1 is not connected")]
    assert run.release(1, 1) == [Moved(node=1, rank=1, why="spare-0 is lost"), take(1, 1)]


def test_a_rank_between_two_hosts_ends_with_the_run() -> None:
    run = Run()
    run.ask(1, to=2)
    run.handle(Interrupted(time=2.0, signal=15))
    assert run.release(1, 1) == [Moved(node=1, rank=1, why="the run is ending")]
    assert [one.rank for one in run.told if isinstance(one, Exited)] == [1]
    run.end((0, 0))
    run.handle(*(Gone(time=3, node=node) for node in range(4)))
    outcome = run.supervisor.outcome(4.0)
    assert (outcome.exit_code, outcome.stopped) == (143, (0, 1))


NODE = Group(label="server", sockets=1, ready=True, restarts=1, elsewhere=True, counts=(1, 1), hosts=("a", "b"))


def adopted(rank: int, node: int) -> Adopted:
    return Adopted(time=2.0, node=node, rank=rank, sockets=NodeSockets(rank, "/there"))


def test_the_node_of_a_lost_host_starts_elsewhere_once_the_lease_there_is_over_and_as_often_as_it_may() -> None:
    run = Run(NODE)
    run.tick(50.0)
    assert run.lose(1) == []
    assert run.tick(50.0 + WAIT_S - 0.1) != [Adopt(node=2, rank=1)]
    assert Adopt(node=2, rank=1) in run.tick(50.0 + WAIT_S)
    assert run.handle(adopted(1, 2)) == [take(1, 2, after="the loss of its host")]
    assert run.restarted(1, 2) == []
    run.handle(RankReady(time=3.0, node=2, rank=1, attempt=1))
    assert run.supervisor._state.cause is None
    run.lose(2, is_clear=True)  # its one restart is used up
    assert run.supervisor._state.cause is Cause.LOST


def test_a_host_that_is_known_to_be_clear_is_not_waited_for() -> None:
    run = Run(NODE)
    run.lose(1, is_clear=True)
    assert Adopt(node=2, rank=1) in run.tick(1.1)


def test_the_loss_of_a_host_without_a_wish_for_another_one_ends_the_run() -> None:
    run = Run(replace(NODE, elsewhere=False))
    run.lose(1)
    assert run.supervisor._state.cause is Cause.LOST


def test_a_rank_that_waits_for_its_new_host_ends_with_the_run() -> None:
    run = Run(NODE)
    run.tick(2.0)
    run.lose(1)
    run.handle(Interrupted(time=3.0, signal=2))
    run.tick(4.0)
    run.end((0, 0))
    orders = run.tick(5.0)
    assert {order.node for order in orders if isinstance(order, Finish)} <= {0, 2, 3}
    run.handle(*(Gone(time=6, node=node) for node in (0, 2, 3)))
    assert run.supervisor.done
    assert run.supervisor.outcome(7.0).stopped == (0, 1)


def test_the_loss_of_a_spare_host_ends_nothing() -> None:
    run = Run()
    assert run.lose(2) == []
    assert run.end((0, 0), (1, 1)) == [finish(node) for node in (0, 1, 3)]
    run.handle(*(Gone(time=6, node=node) for node in (0, 1, 3)))
    outcome = run.supervisor.outcome(7.0)
    assert (outcome.exit_code, outcome.unclean) == (0, (2,))
