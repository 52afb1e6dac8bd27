"""The cost of a job as its events count it, and its limit: warned, held, allowed again by a person."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from mesh.config.prices import PricesFile
from mesh.core.job import CommandSpec, JobSpec, MachinesSpec, NotifySpec
from mesh.core.module import Ssh
from mesh.core.notify import Moment
from mesh.core.tpu import Pricing, TpuSpec
from mesh.jobs import events, orders
from mesh.jobs.costs import spent
from mesh.jobs.decide import decide, ends_starts, wake_at
from mesh.jobs.fold import fold_all
from mesh.jobs.generations import place_of
from mesh.jobs.notices import notices
from mesh.jobs.overdue import report_at
from mesh.jobs.spending import cost_event
from mesh.jobs.values import HOUR_S, Phase, State, row_of
from tests.job_histories import History, job_spec, op

SPOT = TpuSpec(accelerator="v6e-8", runtime="r", zones=("us-east1-d",), project="lab", pricing=Pricing.SPOT)
SPEC = JobSpec(
    name="train",
    user="me",
    machines=MachinesSpec(maker="tpu", pool="v6e/us-east1-d/spot", units=8, tpu=SPOT),
    command=CommandSpec(words=("true",)),
    results=("out",),
    cost_limit=100.0,
)


def one(kind: str, zone: str, pricing: str) -> float | None:
    """A price of 1 for an hour of a chip: 8 an hour for the machines of these tests."""
    return 1.0


def running(spec: JobSpec = SPEC) -> History:
    """A job whose machines are ready at 1000 and whose ranks run."""
    history = History(spec).play("granted")
    history.happen(events.Made(time=900.0, op=op(history.job, orders.Make), generation=1))
    history.happen(events.MachinesReady(time=1000.0, generation=1, hosts=("a",), keys=("1/0",)))
    return history.play("@1001 started")


def at_cost(history: History, now: float) -> events.CostSeen | None:
    """Have the steward check the cost; return the event that followed."""
    event = cost_event(history.job, now, one)
    if event is not None:
        history.happen(event)
    return event


def test_the_limit_is_warned_of_and_then_holds_the_job_without_machines() -> None:
    history = running()
    assert at_cost(history, 1000.0 + 9.9 * HOUR_S) is None
    warned = at_cost(history, 1000.0 + 10 * HOUR_S)
    assert warned is not None
    assert (warned.amount, warned.is_reached, history.job.state) == (80.0, False, State.RUNNING)
    assert at_cost(history, 1000.0 + 11 * HOUR_S) is None  # once
    reached = at_cost(history, 1000.0 + 12.5 * HOUR_S)
    assert reached is not None
    assert reached.is_reached
    assert (history.job.state, history.orders[-1]) == (State.HELD, "stop")
    assert "100.00 of 100 spent" in history.job.reason
    history.play("ended:143")
    fetch = history.job.open[-1].order
    assert isinstance(fetch, orders.Fetch)
    assert fetch.results  # its machines are deleted now
    history.play("fetched")
    assert history.orders[-1] == "delete"  # and not after the time that other held jobs have
    history.play("absent")
    assert (history.job.state, history.job.generation) == (State.HELD, None)
    assert at_cost(history, 1e9) is None
    assert fold_all(history.events) == history.job


def test_a_person_who_lets_it_go_on_allows_as_much_again() -> None:
    history = running()
    history.now = 1000.0 + 12.5 * HOUR_S
    at_cost(history, history.now)
    history.play("ended:143 fetched absent")
    history.happen(events.HoldChanged(time=history.now, is_on_hold=False))
    assert (history.job.state, history.job.allowances) == (State.QUEUED, 2)
    assert row_of(history.job).cost_limit == 200.0
    history.play("granted")
    history.happen(events.Made(time=history.now, op=op(history.job, orders.Make), generation=2))
    history.happen(events.MachinesReady(time=history.now, generation=2, hosts=("b",), keys=("2/0",)))
    begin = history.now
    assert at_cost(history, begin + 9 * HOUR_S) is None
    warned = at_cost(history, begin + 10 * HOUR_S)
    assert warned is not None
    assert not warned.is_reached
    reached = at_cost(history, begin + 12.5 * HOUR_S)
    assert reached is not None
    assert reached.is_reached


@pytest.mark.parametrize("words", ["", "ended:76"])
def test_what_waits_for_machines_again_is_held_as_well(words: str) -> None:
    history = running().play(words)
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    assert history.job.state is State.HELD
    history.play("ended:143 fetched absent" if not words else "absent")
    assert (history.job.state, history.job.generation) == (State.HELD, None)


def test_an_end_that_is_decided_stays_as_it_is() -> None:
    history = running().play("ended:0")
    assert history.job.state is State.ENDING
    assert at_cost(history, 1e9) is None
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    history.play("fetched absent")
    assert history.job.state is State.SUCCEEDED


@pytest.mark.parametrize("restart", ["", "restart"])
def test_a_resume_while_the_ranks_are_being_ended_starts_them_again(restart: str) -> None:
    history = running().play(restart)
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    history.play("@9000 resume ended:143 fetched")
    assert (history.job.state, history.orders[-1], history.job.allowances) == (State.PREPARING, "start", 2)
    history.play("started ended fetched absent")
    assert history.told == "succeeded 0"  # once: a restart from before the limit is no part of it
    assert fold_all(history.events) == history.job


def test_a_job_that_was_done_before_the_order_to_end_it_has_succeeded() -> None:
    history = running()
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    history.play("@9000 ended fetched absent")
    assert history.told == "succeeded 0"


def test_the_limit_ends_the_hands_that_start_the_job() -> None:
    history = History(SPEC).play("granted made ready")
    assert not ends_starts(None, history.job)
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    assert ends_starts(None, history.job)
    history.play("@9000 not-asked:start @9100 timer unknown")
    assert history.orders[-2:] == ["stop", "delete"]


def test_hosts_that_stay_silent_do_not_keep_their_machines_beyond_the_limit() -> None:
    history = running()
    history.happen(events.CostSeen(time=9000.0, amount=100.0, is_reached=True))
    history.play("@9000 not-asked:stop @9100 timer not-asked:stop @10900 timer")
    assert (history.job.state, history.orders[-1]) == (State.HELD, "delete")
    assert history.job.current is not None  # its ranks end with the machines
    history.play("absent")
    assert (history.job.state, history.job.generation, history.job.current) == (State.HELD, None, None)
    assert fold_all(history.events) == history.job


def test_nothing_follows_without_a_price() -> None:
    history = running()
    assert cost_event(history.job, 1e9, lambda *_: None) is None
    assert spent(row_of(history.job).uses, 1000.0 + HOUR_S, lambda *_: None) == (0.0, 8.0)


def test_every_generation_counts_from_its_first_machine_to_its_end() -> None:
    history = History(SPEC).play("granted")
    history.happen(events.Made(time=900.0, op=op(history.job, orders.Make), generation=1))
    history.happen(events.MachinesPending(time=950.0, generation=1, state="WAITING_FOR_RESOURCES", is_waiting=True))
    history.happen(events.MachinesPending(time=1000.0, generation=1, state="train-0 is CREATING"))
    history.happen(events.MachinesReady(time=2000.0, generation=1, hosts=("a",), keys=("1/0",)))
    history.happen(events.MachinesLost(time=1000.0 + HOUR_S, generation=1, evidence="PREEMPTED"))
    history.happen(events.MachinesAbsent(time=2000.0 + HOUR_S, generation=1, evidence="not listed"))
    first = history.job.generations[0]
    assert (first.phase, first.billed, first.unbilled) == (Phase.RELEASED, 1000.0, 1000.0 + HOUR_S)
    history.play("@9000 granted")
    history.happen(events.Made(time=9100.0, op=op(history.job, orders.Make), generation=2))
    history.happen(events.MachinesReady(time=9500.0, generation=2, hosts=("a",), keys=("2/0",)))
    assert spent(row_of(history.job).uses, 9500.0 + HOUR_S / 2, one) == (8.0 + 4.0, 0.0)
    # Hosts that are silent cost until they are deleted.
    history = running()
    history.happen(events.MachinesLost(time=2000.0, generation=1, evidence="no host has answered for 20 min"))
    assert spent(row_of(history.job).uses, 1000.0 + HOUR_S, one) == (8.0, 0.0)
    # A request that was refused has never cost anything.
    refused = History(SPEC).play("granted refused:capacity")
    assert row_of(refused.job).uses == ()


def test_notices_about_costs_and_strays() -> None:
    entry = NotifySpec(on=(Moment.COST, Moment.LEFT), command=("true",))
    history = running(replace(SPEC, notify=(entry,)))
    before = history.job
    warned = events.CostSeen(time=9000.0, amount=80.0)
    after, _ = decide(before, warned)
    (notice,) = notices(before, after, warned)
    assert (notice.news.reason, notice.news.cost) == ("80.00 of its cost limit 100 is spent", 80.0)
    assert notices(after, decide(after, warned)[0], warned) == []
    seen = events.StraysSeen(time=9000.0, names=("train-abc123-7-g1",))
    left, _ = decide(before, seen)
    (notice,) = notices(before, left, seen)
    assert "train-abc123-7-g1 has no owner" in notice.news.reason
    assert left.state is before.state
    assert decide(left, events.StraysSeen(time=9900.0))[0].strays == ()


def test_prices_are_read_again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    prices = PricesFile(path)
    assert prices.of("v6e", "us-east1-d", "spot") is None
    path.write_text("chip_hour: {v6e/us-east1/spot: 2}\n")
    assert prices.of("v6e", "us-east1-d", "spot") == 2.0
    path.write_text("chip_hour: {v6e/us-east1/spot: two}\n")
    assert prices.of("v6e", "us-east1-d", "spot") is None


def test_machines_that_are_not_gone_are_reported_after_ten_minutes_and_each_hour() -> None:
    entry = NotifySpec(on=(Moment.STUCK,), command=("true",))
    history = running(replace(SPEC, notify=(entry,), cost_limit=0.0)).play("@2000 ended:0 fetched deleting")
    begin = history.job.generations[0].condemned
    assert (history.job.state, begin) == (State.ENDING, 2002.0)
    found = []
    for _ in range(3):
        due = report_at(history.job)
        before, timer = history.job, events.Timer(time=due)
        assert wake_at(replace(before, retry_at=0.0)) == due
        history.happen(timer)
        found += [(due - begin, one.news.reason) for one in notices(before, history.job, timer)]
    assert [seconds for seconds, _ in found] == [600.0, 4200.0, 7800.0]
    assert (
        found[0][1] == "train-abc123-7-g1 is not gone 10 min after its deletion began; mesh serve repeats the deletion"
    )
    assert row_of(history.job).overdue_since == begin
    assert fold_all(history.events) == history.job
    # After a day without a steward one report is made, and not one for each hour.
    late = events.Timer(time=begin + 86400.0)
    history.happen(late)
    assert report_at(history.job) > late.time
    history.play("absent")
    assert (history.job.state, row_of(history.job).overdue_since) == (State.SUCCEEDED, None)
    assert report_at(history.job) == math.inf


def test_a_report_has_its_text_whatever_event_it_comes_with() -> None:
    entry = NotifySpec(on=(Moment.STUCK,), command=("true",))
    before = running(replace(SPEC, notify=(entry,))).play("@2000 ended:0 fetched deleting").job
    seen = events.MachinesPending(time=report_at(before), generation=1, state="DELETING")
    (notice,) = notices(before, decide(before, seen)[0], seen)
    assert "is not gone 10 min after its deletion" in notice.news.reason


def test_hosts_that_stay_are_not_reported_as_machines_that_are_not_gone() -> None:
    keyed = job_spec(modules=(("ssh", Ssh()),))
    history = History(keyed).play("granted prepared started ended fetched")
    assert history.orders[-1] == "undo"
    assert (report_at(history.job), history.job.generations[0].condemned) == (math.inf, 0.0)
    assert row_of(history.play("@9999 timer").job).overdue_since is None


def test_a_quota_of_another_version_leads_to_the_first_zone() -> None:
    job = History(SPEC).job
    assert place_of(job, "v6e/us-east1-d/spot") == ("us-east1-d", "v6e/us-east1-d/spot")
    assert place_of(job, "of old") == ("us-east1-d", "v6e/us-east1-d/spot")
