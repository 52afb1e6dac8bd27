"""Facts become acts: the executor between the parts of the agent and its decisions."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mesh.agent.run.decide import Decisions
from mesh.agent.run.executor import Executor
from mesh.agent.run.facts import AllGone, FinishAsked, PeersReady, RankEnded, RanksStarting, Relayed
from mesh.agent.run.lease import Lease
from mesh.agent.run.orders import Leave, Order
from mesh.agent.run.rules import Rules


class Acts:
    """An executor whose actions only note their orders; some post facts."""

    def __init__(self, **posts: Callable[[Executor], None]) -> None:
        self.done: list[str] = []
        rules = Rules(grace=1.0, drain=1.0, timeout=0.0, keep_going=False, device_patience=1.0)
        actions = dict.fromkeys(Order.__subclasses__(), self.act)
        self._posts = posts
        self.executor = Executor(Decisions(rules, Lease(60.0, 5.0, time.monotonic())), actions)

    def act(self, order: Order) -> None:
        name = type(order).__name__
        self.done.append(name)
        if name in self._posts:
            self._posts[name](self.executor)
            self.done.append(f"{name} done")


def test_orders_are_carried_out_before_a_posted_fact_returns() -> None:
    acts = Acts()
    acts.executor.post(FinishAsked(15, 1.0))
    assert acts.done == ["ReleaseOutput", "ClearRequests", "StopSync", "BeginEnd", "ReleasePrerun"]


def test_facts_that_an_action_posts_wait_for_the_orders_under_way() -> None:
    def relay(executor: Executor) -> None:
        executor.post(RankEnded(True))
        executor.post(Relayed())

    acts = Acts(RelayRest=relay)
    for fact in (RanksStarting(1), PeersReady(1), FinishAsked(15, 1.0)):
        acts.executor.post(fact)
    acts.done.clear()
    acts.executor.post(AllGone())
    assert acts.done == [
        *("RemoveScripts", "CollectChildren", "DropSync", "RelayRest", "RelayRest done"),
        *("SendNews", "ReportDone", "ReportDone", "Leave"),
    ]


def test_an_action_that_fails_does_not_stop_later_facts() -> None:
    def fail(executor: Executor) -> None:
        raise ZeroDivisionError

    acts = Acts(ReleasePrerun=fail)
    with pytest.raises(ZeroDivisionError):
        acts.executor.post(FinishAsked(15, 1.0))
    acts.executor.post(AllGone())
    assert "RelayRest" in acts.done


def test_an_order_without_an_action_is_an_error_at_the_start() -> None:
    rules = Rules(grace=1.0, drain=1.0, timeout=0.0, keep_going=False, device_patience=1.0)
    actions = dict.fromkeys(set(Order.__subclasses__()) - {Leave}, lambda order: None)
    with pytest.raises(KeyError, match="Leave"):
        Executor(Decisions(rules, Lease(60.0, 5.0, 0.0)), actions)


def test_a_tick_decides_by_the_clock() -> None:
    acts = Acts()
    acts.executor.tick()
    assert acts.done == []
