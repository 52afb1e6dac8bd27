"""The queue: priorities, fair share, backfill and starvation, against a scheduler that tries everything."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict

import pytest
from msgspec.structs import replace

from mesh.core.job import Candidate, MachinesSpec
from mesh.core.tpu import TpuSpec
from mesh.jobs.events import Granted, Refusal, Refused
from mesh.jobs.queue import (
    STARVATION_LIMIT_S,
    USAGE_HALF_LIFE_S,
    Ask,
    Demand,
    Grant,
    Hold,
    Pools,
    ask_of,
    demand_of,
    hold_of,
    next_jobs,
)
from mesh.jobs.values import State
from tests.full import times
from tests.job_histories import History, job_spec

NOW = 1_000_000.0
POD = tuple(f"h{index}" for index in range(4))


def demand(count: int, hosts: tuple[str, ...] = POD) -> Demand:
    candidates = tuple(Candidate(name=name, key=name) for name in hosts)
    return demand_of(MachinesSpec(cluster="pod", candidates=candidates, hosts=count))


def ask(job: int, count: int = 1, **changes: object) -> Ask:
    fields: dict[str, object] = {
        "user": "me",
        "priority": 0,
        "submitted": NOW - 100 + job,
        "ready_at": 0.0,
        "limit": math.inf,
        "demand": demand(count),
    }
    return Ask(job=job, **{**fields, **changes})  # type: ignore[arg-type]


def granted(asks: list[Ask], holds: list[Hold] | None = None, **pools: object) -> dict[int, tuple[str, ...]]:
    turns = next_jobs(NOW, asks, holds or [], Pools(**pools))  # type: ignore[arg-type]
    return {grant.job: grant.keys for grant in turns.grants}


def held(count: int, until: float = math.inf, job: int = 99) -> Hold:
    return Hold(job=job, keys=POD[:count], until=until)


def test_jobs_of_one_cluster_get_disjoint_hosts() -> None:
    assert granted([ask(1, 2), ask(2, 2), ask(3)]) == {1: ("h0", "h1"), 2: ("h2", "h3")}


def test_a_job_gets_all_its_hosts_or_none() -> None:
    assert granted([ask(1, 3)], [held(2)]) == {}


def test_a_higher_priority_comes_first() -> None:
    assert set(granted([ask(1, 4), ask(2, 4, priority=5)])) == {2}


def test_the_user_who_used_less_comes_first_and_shares_count() -> None:
    two = [ask(1, 4, user="ann"), ask(2, 4, user="bob")]
    assert set(granted(two, usage={"ann": 10.0, "bob": 5.0})) == {2}
    assert set(granted(two, usage={"ann": 10.0, "bob": 5.0}, shares={"ann": 4.0})) == {1}


def test_the_earlier_submission_comes_first_also_after_a_preemption() -> None:
    assert set(granted([ask(2, 4), ask(1, 4)])) == {1}


def test_a_job_waits_for_its_time() -> None:
    assert granted([ask(1, ready_at=NOW + 1)]) == {}


def test_a_restarted_attempt_takes_the_hosts_that_it_had() -> None:
    assert granted([ask(1, 2, last=("h1", "h3"))]) == {1: ("h1", "h3")}


def test_hosts_at_fault_are_taken_last() -> None:
    assert granted([ask(1, 2, last=("h0", "h1"), avoided=("h0",))]) == {1: ("h1", "h2")}
    assert granted([ask(1, 4, avoided=("h0",))]) == {1: POD}


def tried_until(free: set[str], *, count: int = 1, attempts: int = 20) -> tuple[list[tuple[str, ...]], list[bool]]:
    """Return the hosts that a job tries until it has only free ones, and if it paused after each refusal.

    Its other hosts are those of a person.
    """
    candidates = tuple(Candidate(name=name, key=name) for name in POD)
    history = History(job_spec(machines=MachinesSpec(cluster="pod", candidates=candidates, hosts=count)))
    tried, paused = [], []
    for _ in range(attempts):
        history.now = max(history.now, history.job.not_before)
        wanted = ask_of(history.job)
        assert wanted is not None
        (grant,) = next_jobs(history.now, [wanted], []).grants
        history.happen(Granted(time=history.now, hosts=grant.hosts, keys=grant.keys))
        tried.append(grant.keys)
        busy = [key for key in grant.keys if key not in free]
        if not busy:
            break
        number = history.job.open[0].op
        history.happen(Refused(time=history.now, op=number, kind=Refusal.BUSY, why="busy", hosts=tuple(busy[:1])))
        assert history.job.state is State.QUEUED
        paused.append(history.job.not_before > history.now)
    return tried, paused


def test_a_job_that_busy_hosts_refuse_tries_all_others_first() -> None:
    assert tried_until({"h2", "h3"}) == ([("h0",), ("h1",), ("h2",)], [False, False])
    assert tried_until({"h3"}, count=2, attempts=8)[0][:3] == [("h0", "h1"), ("h1", "h2"), ("h2", "h3")]


def test_hosts_that_are_all_busy_are_tried_in_turn_with_pauses() -> None:
    tried, paused = tried_until(set(), attempts=9)
    assert [key for (key,) in tried] == [*POD, *POD, "h0"]
    assert paused == [False, False, False, True, True, True, True, True, True]


def test_a_short_job_passes_a_blocked_one_if_it_ends_in_time() -> None:
    running = [held(2, until=NOW + 100)]
    assert set(granted([ask(1, 4), ask(2, limit=90.0)], running)) == {2}
    assert granted([ask(1, 4), ask(2, limit=110.0)], running) == {}
    assert granted([ask(1, 4), ask(2)], running) == {}


def test_nobody_passes_a_job_whose_start_nobody_can_tell() -> None:
    assert granted([ask(1, 4), ask(2, limit=1.0)], [held(2)]) == {}


def test_a_job_passes_with_hosts_that_the_blocked_one_does_not_need() -> None:
    running = [held(2, until=NOW + 100)]
    assert len(granted([ask(1, 3), ask(2), ask(3)], running)) == 1


def test_other_clusters_go_on_behind_a_blocked_job() -> None:
    assert set(granted([ask(1, 4), ask(2, demand=demand(1, ("x0",)))], [held(1)])) == {2}


def test_a_starved_job_stops_backfill() -> None:
    running = [held(2, until=NOW + 100)]
    old = ask(1, 4, submitted=NOW - STARVATION_LIMIT_S)
    assert granted([old, ask(2, limit=90.0)], running) == {}


def test_members_of_an_array_run_a_few_at_a_time() -> None:
    members = [ask(number, array=10, array_limit=2) for number in (10, 11, 12)]
    assert len(granted(members)) == 2
    assert len(granted(members, [Hold(job=9, keys=(), array=10)])) == 1


def test_units_of_a_makers_pool_are_counted() -> None:
    made = demand_of(MachinesSpec(cluster="tpu", maker="cloud", units=4), ("zone",))
    asks = [ask(number, demand=made) for number in (1, 2, 3)]
    assert set(granted(asks, limits={"zone": 8.0})) == {1, 2}
    assert set(granted(asks)) == {1, 2, 3}
    running = [Hold(job=9, pool="zone", units=4, until=NOW + 100)]
    half = demand_of(MachinesSpec(cluster="tpu", maker="cloud", units=8), ("zone",))
    behind = [ask(1, demand=half), ask(2, demand=made, limit=90.0), ask(3, demand=made)]
    assert set(granted(behind, running, limits={"zone": 8.0})) == {2}


def test_a_job_of_several_zones_uses_the_quota_of_the_first_that_has_room() -> None:
    def several(units: int, *pools: str) -> Demand:
        return demand_of(MachinesSpec(cluster="tpu", maker="cloud", units=units), pools)

    def pools_granted(asks: list[Ask], holds: list[Hold], **limits: float) -> dict[int, str]:
        turns = next_jobs(NOW, asks, holds, Pools(limits=limits))
        return {one.job: one.pool for one in turns.grants}

    asks = [ask(number, demand=several(8, "a", "b")) for number in (1, 2, 3)]
    assert pools_granted(asks, [], a=8.0, b=8.0) == {1: "a", 2: "b"}
    assert pools_granted(asks, []) == {1: "a", 2: "a", 3: "a"}  # without limits the order of the file holds
    # Chips in use in one zone do not count in another one.
    assert pools_granted(asks[:1], [Hold(job=9, pool="a", units=8)], a=8.0, b=8.0) == {1: "b"}
    # Behind a job that waits for either zone, a later one without a limit takes neither from it.
    running = [Hold(job=9, pool="a", units=4, until=NOW + 100), Hold(job=8, pool="b", units=4, until=NOW + 50)]
    behind = [
        ask(1, demand=several(8, "a", "b")),
        ask(2, demand=several(4, "b"), limit=40.0),
        ask(3, demand=several(4, "b")),
        ask(4, demand=several(4, "a")),
    ]
    assert pools_granted(behind, running, a=8.0, b=8.0) == {2: "b"}
    waits = next_jobs(NOW, behind[:1], running, Pools(limits={"a": 8.0, "b": 8.0})).waits
    assert waits[1] == "a: 4, b: 4 free of 8 that it needs; first in the queue"


def test_a_grant_of_a_quota_decides_the_zone() -> None:
    tpu = TpuSpec(accelerator="v6e-8", runtime="r", zones=("us-east1-d", "us-east5-b"), project="lab")
    spec = job_spec()
    spec = replace(spec, machines=MachinesSpec(maker="tpu", pool="v6e/us-east1-d/ondemand", units=8, tpu=tpu))
    history = History(spec)
    wanted = ask_of(history.job)
    assert wanted is not None
    assert wanted.demand.pools == ("v6e/us-east1-d/ondemand", "v6e/us-east5-b/ondemand")
    history.happen(Granted(time=2.0, pool="v6e/us-east5-b/ondemand"))
    assert history.job.generation is not None
    assert history.job.generation.zone == "us-east5-b"
    hold = hold_of(history.job)
    assert hold is not None
    assert (hold.pool, hold.units) == ("v6e/us-east5-b/ondemand", 8)
    # Without capacity there, the zone is tried last.
    wanted = ask_of(history.play("refused:capacity").job)
    assert wanted is not None
    assert wanted.demand.pools[0] == "v6e/us-east1-d/ondemand"


def test_reasons_say_what_a_job_waits_for() -> None:
    waits = next_jobs(NOW, [ask(1, 4), ask(2, 4)], [held(3)]).waits
    assert waits[1] == "pod: 3 of 4 hosts busy; first in the queue"
    assert waits[2] == "pod: 3 of 4 hosts busy; 1 before it in the queue"


def test_a_job_that_asks_for_more_than_there_is_says_so() -> None:
    assert "has 4 hosts" in next_jobs(NOW, [ask(1, 5)], []).waits[1]


def test_a_queued_job_asks_and_a_running_one_holds() -> None:
    history = History(job_spec())
    assert (ask_of(history.job) is None, hold_of(history.job)) == (False, None)
    history.play("granted started")
    assert history.job.state is State.RUNNING
    hold = hold_of(history.job)
    assert ask_of(history.job) is None
    assert hold is not None
    assert hold.keys == ("h0", "h1")
    assert ask_of(History(job_spec(depends_on=(3,))).job) is None


# ---- a scheduler that tries everything


def brute_force(asks: list[Ask], holds: list[Hold]) -> dict[int, tuple[str, ...]]:
    """Grant by the definition: in order, the best set of free hosts that delays no head."""
    free_at: dict[str, float] = {key: max(hold.until, NOW) for hold in holds for key in hold.keys}
    heads: list[Ask] = []
    found: dict[int, tuple[str, ...]] = {}
    for one in sorted(asks, key=lambda one: (-one.priority, one.submitted, one.job)):
        free = [key for key in one.demand.keys if key not in free_at]
        fitting = [
            subset
            for subset in itertools.combinations(free, one.demand.count)
            if all(not _delays(one, subset, head, free_at) for head in heads)
        ]
        if not fitting:
            if all(set(head.demand.keys).isdisjoint(one.demand.keys) for head in heads):
                heads.append(one)
            continue
        best = min(fitting, key=lambda subset: sorted(_rank(one, key) for key in subset))
        found[one.job] = best
        for key in best:
            free_at[key] = NOW + one.limit
    return found


def _rank(one: Ask, key: str) -> tuple[bool, bool, int]:
    return key in one.avoided, key not in one.last, one.demand.keys.index(key)


def _start(head: Ask, free_at: dict[str, float]) -> tuple[float, int]:
    """The earliest start of a head, and how many hosts without a known end it waits for."""
    times = sorted(free_at.get(key, NOW) for key in head.demand.keys)[: head.demand.count]
    return times[-1], times.count(math.inf)


def _delays(one: Ask, subset: tuple[str, ...], head: Ask, free_at: dict[str, float]) -> bool:
    before = _start(head, free_at)
    end = NOW + one.limit if before[0] < math.inf else math.inf
    return _start(head, {**free_at, **dict.fromkeys(subset, end)}) > before


def random_case(number: int) -> tuple[list[Ask], list[Hold]]:
    chance = random.Random(number)
    clusters = [POD, POD[:2], POD[2:], ("x0", "x1", "x2")]  # nested or disjoint, as selectors of clusters are
    busy = [key for key in (*POD, "x0", "x1", "x2") if chance.random() < 0.5]
    ends = [NOW + 10, NOW + 20, NOW + 50, math.inf]
    holds = [Hold(job=100 + index, keys=(key,), until=chance.choice(ends)) for index, key in enumerate(busy)]
    asks = []
    for job in range(1, chance.randint(2, 6)):
        hosts = chance.choice(clusters)
        last = tuple(chance.sample(hosts, chance.randint(0, 2)))
        avoided = tuple(chance.sample(hosts, chance.randint(0, 1)))
        count, limit = chance.randint(1, len(hosts)), chance.choice([5.0, 15.0, 30.0, math.inf])
        priority = chance.choice([0, 0, 3])
        asks.append(ask(job, priority=priority, limit=limit, demand=demand(count, hosts), last=last, avoided=avoided))
    return asks, holds


def test_grants_are_those_of_a_scheduler_that_tries_everything() -> None:
    for number in range(2000):
        asks, holds = random_case(number)
        assert granted(asks, holds) == brute_force(asks, holds), f"case {number}"


@pytest.mark.parametrize("seed", range(times(1, full=2)))
def test_users_get_equal_shares_over_a_thousand_jobs(seed: int) -> None:
    chance = random.Random(seed)
    users = {"ann": 700, "bob": 600, "eve": 600}  # each has more to do than its share
    waiting = [
        ask(number, chance.randint(1, 3), user=user, submitted=NOW + chance.random() * 50)
        for number, user in enumerate(itertools.chain.from_iterable([user] * many for user, many in users.items()))
    ]
    usage: dict[str, float] = defaultdict(float)
    running: list[tuple[float, Ask, Grant]] = []
    now, done = NOW + 100, 0
    while done < 1000:
        holds = [Hold(job=one.job, keys=grant.keys, until=end) for end, one, grant in running]
        for grant in next_jobs(now, waiting, holds, Pools(usage=dict(usage))).grants:
            one = next(one for one in waiting if one.job == grant.job)
            waiting.remove(one)
            running.append((now + chance.uniform(1, 10), one, grant))
        running.sort(key=lambda entry: entry[0])
        end, one, grant = running.pop(0)
        step = end - now
        for _, other, held_by in [*running, (end, one, grant)]:
            usage[other.user] += step * len(held_by.keys)
        now, done = end, done + 1
    total = sum(usage.values())
    assert all(abs(used / total - 1 / 3) < 0.1 / 3 for used in usage.values()), dict(usage)


def test_usage_fades() -> None:
    assert USAGE_HALF_LIFE_S == 7 * 24 * 3600


def test_no_job_waits_behind_backfill_longer_than_its_bound() -> None:
    running = [held(2, until=NOW + 100)]
    start = NOW + 100
    asks = [ask(1, 4), *(ask(number, limit=float(number)) for number in range(2, 60))]
    for grant in next_jobs(NOW, asks, running).grants:
        limit = next(one.limit for one in asks if one.job == grant.job)
        assert NOW + limit <= start
