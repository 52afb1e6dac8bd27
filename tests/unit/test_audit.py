"""Whose machines are, what may be deleted, and what they cost: on random clouds, and case by case."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mesh.config.prices import EXAMPLE, read_prices
from mesh.core.errors import UsageError
from mesh.core.job import CommandSpec, JobSpec, MachinesSpec
from mesh.core.tpu import Pricing, TpuSpec
from mesh.hosts.tpu.machines import Machine, labels_of
from mesh.jobs.audit import Owned, Place, Whose, audit, due, in_order, owned_by, quotas
from mesh.jobs.costs import HOUR_S, costs_by, total, uses_of
from mesh.jobs.decide import decide
from mesh.jobs.events import AnyEvent, Granted, MachinesAbsent, MachinesPending, MachinesReady, Submitted
from mesh.jobs.values import Job, Phase, State

STORE, OTHER_STORE = "abc123", "zyx987"
PROJECT, ZONES = "lab", ("us-east1-d", "us-east5-b")


def no_price(kind: str, zone: str, pricing: str) -> float | None:
    return None


def row(job: int, generation: int, phase: Phase, *, is_over: bool = False) -> Owned:
    name = f"mesh-{STORE}-{job}-g{generation}"
    return Owned(
        job=job,
        job_name="train",
        generation=generation,
        name=name,
        phase=phase,
        is_over=is_over,
        project=PROJECT,
        zones=ZONES,
    )


def machine(name: str, labels: Mapping[str, str], zone: str = ZONES[0], **more: object) -> Machine:
    fields = {"state": "READY", "accelerator": "v6e-8", "pricing": "spot", "created": 1.0, **more}
    return Machine(name=name, labels=labels, zone=zone, project=PROJECT, **fields)  # type: ignore[arg-type]


def of(owned: Owned, **more: object) -> Machine:
    labels = labels_of(STORE, str(owned.job), owned.generation, "me")
    return machine(owned.name, labels, **more)  # type: ignore[arg-type]


def classes(rows: Sequence[Owned], machines: Sequence[Machine]) -> dict[str, Whose]:
    seen: dict[Place, Sequence[Machine]] = {
        (PROJECT, zone): [one for one in machines if one.zone == zone] for zone in ZONES
    }
    return {one.name: one.whose for one in audit(STORE, rows, seen, no_price)}


def test_every_planted_case_is_found() -> None:
    rows = [
        row(1, 1, Phase.READY),
        row(2, 1, Phase.RELEASING),
        row(3, 1, Phase.RELEASED),
        row(4, 1, Phase.READY, is_over=True),
        row(6, 1, Phase.READY),
    ]
    lost = labels_of(STORE, "77", 1, "me")
    machines = [
        *map(of, rows[:4]),
        machine("mesh-abc123-77-g1", lost),
        machine("mesh-zyx987-1-g1", labels_of(OTHER_STORE, "1", 1, "me")),
        machine("somebody", {}),
    ]
    assert classes(rows, machines) == {
        "mesh-abc123-1-g1": Whose.OWNED,
        "mesh-abc123-2-g1": Whose.CONDEMNED,
        "mesh-abc123-3-g1": Whose.ORPHAN,
        "mesh-abc123-4-g1": Whose.ORPHAN,
        "mesh-abc123-77-g1": Whose.UNKNOWN,
        "mesh-zyx987-1-g1": Whose.OTHER,
        "somebody": Whose.NOBODYS,
        "mesh-abc123-6-g1": Whose.MISSING,
    }


def test_a_machine_is_missing_only_if_every_zone_has_answered() -> None:
    rows = [row(1, 1, Phase.READY)]
    assert [one.whose for one in audit(STORE, rows, {(PROJECT, zone): [] for zone in ZONES}, no_price)] == [
        Whose.MISSING
    ]
    assert audit(STORE, rows, {(PROJECT, ZONES[0]): []}, no_price) == []


def test_labels_of_another_generation_under_a_name_are_unknown() -> None:
    """A machine of another name is not ours to delete, even with copies of our labels."""
    labels = labels_of(STORE, "3", 1, "me")
    assert classes([row(3, 1, Phase.RELEASED)], [machine("precious", labels)]) == {"precious": Whose.UNKNOWN}
    nodes = [machine("mesh-abc123-3-g1-0", labels), machine("mesh-abc123-3-g12", labels)]
    assert classes([row(3, 1, Phase.RELEASED)], nodes) == {
        "mesh-abc123-3-g1-0": Whose.ORPHAN,
        "mesh-abc123-3-g12": Whose.UNKNOWN,
    }


@pytest.mark.parametrize("seed", range(100))
def test_random_clouds(seed: int) -> None:
    """Only what is condemned or orphaned in both looks goes, and unknown ones by their name alone."""
    random_ = random.Random(seed)
    rows = [
        row(job, generation, random_.choice(list(Phase)), is_over=random_.random() < 0.3)
        for job in range(1, 8)
        for generation in range(1, random_.randint(1, 3) + 1)
    ]
    clouds = [_cloud(random_, rows) for _ in range(2)]
    shared = _cloud(random_, rows)
    looks = []
    for cloud in clouds:
        seen: dict[Place, Sequence[Machine]] = {}
        for zone in ZONES:
            seen[PROJECT, zone] = [one for one in [*cloud, *shared] if one.zone == zone]
        looks.append(audit(STORE, rows, seen, no_price))
    named = {one.name for one in looks[1] if random_.random() < 0.2}
    gone = due(*looks, named)
    by_label = {(str(one.job), str(one.generation)): one for one in rows}
    for one in [*clouds[1], *shared]:
        ours = one.labels.get("mesh-store") == STORE
        owner = by_label.get((one.labels.get("mesh-job", ""), one.labels.get("mesh-generation", "")))
        is_owned_name = owner is not None and one.name in (owner.name, f"{owner.name}-0")
        may = (
            ours
            and is_owned_name
            and owner is not None
            and (owner.phase in (Phase.RELEASING, Phase.RELEASED) or owner.is_over)
        )
        may_by_name = ours and not is_owned_name and one.name in named
        in_both = one in shared or any(other == one for other in clouds[0])
        is_due = any(
            found.name == one.name and found.zone == one.zone and found.created == one.created for found in gone
        )
        assert is_due == (in_both and (may or may_by_name)), one
    assert {one.whose for one in gone} <= {Whose.CONDEMNED, Whose.ORPHAN, Whose.UNKNOWN}


def _cloud(random_: random.Random, rows: Sequence[Owned]) -> list[Machine]:
    found = []
    for number in range(20):
        owner = random_.choice(rows)
        labels: dict[str, str] = labels_of(
            random_.choice((STORE, OTHER_STORE)), str(random_.choice((owner.job, 99))), owner.generation, "me"
        )
        if random_.random() < 0.3:
            labels.pop("mesh-store")
        if random_.random() < 0.1:
            labels.pop("mesh-job")
        names = (owner.name, f"{owner.name}-0", f"{owner.name}x", f"mesh-{STORE}-precious", f"machine-{number}")
        found.append(machine(random_.choice(names), labels, random_.choice(ZONES), created=random_.random()))
    return found


def test_a_name_that_came_back_meanwhile_is_another_machine() -> None:
    rows = [row(3, 1, Phase.RELEASED)]
    looks = []
    for created in (1.0, 2.0):
        looks.append(audit(STORE, rows, {(PROJECT, ZONES[0]): [of(rows[0], created=created)]}, no_price))
    assert due(*looks) == []


def test_a_request_takes_its_nodes_with_it() -> None:
    rows = [row(3, 1, Phase.RELEASED)]
    request = of(rows[0], is_request=True, state="SUSPENDED")
    node = machine(f"{rows[0].name}-0", request.labels, request=request.name)
    alone = machine(f"{rows[0].name}-1", request.labels, request="gone")
    found = audit(STORE, rows, {(PROJECT, ZONES[0]): [request, node, alone]}, no_price)
    assert [one.name for one in in_order(found)] == [request.name, alone.name]


# ---- costs

SPEC = JobSpec(
    name="train",
    user="me",
    machines=MachinesSpec(
        maker="tpu",
        pool="v6e/us-east1-d/spot",
        units=16,
        tpu=TpuSpec(
            accelerator="v6e-8", runtime="r", zones=("us-east1-d",), project=PROJECT, pricing=Pricing.SPOT, slices=2
        ),
    ),
    command=CommandSpec(words=("true",)),
)


def history(*events: AnyEvent) -> Job:
    job, _ = decide(None, Submitted(time=0.0, job=7, store=STORE, spec=SPEC))
    for event in events:
        job, _ = decide(job, event)
    return job


def test_the_wait_in_the_queue_costs_nothing() -> None:
    name = "train-abc123-7-g1"
    job = history(
        Granted(time=10.0),
        MachinesPending(time=20.0, generation=1, state="WAITING_FOR_RESOURCES"),
        MachinesPending(time=100.0, generation=1, state=f"{name}-0 is CREATING"),
        MachinesReady(time=200.0, generation=1, hosts=("a",)),
    )
    (use,) = uses_of(job)
    assert (use.begin, use.end, use.chips, use.zone) == (100.0, 0.0, 16, "us-east1-d")
    assert use.chip_hours(100.0 + HOUR_S) == 16.0
    assert [(row.name, row.phase, row.is_over) for row in owned_by([job])] == [(name, Phase.READY, False)]


def test_machines_cost_until_they_are_gone() -> None:
    job = history(
        Granted(time=10.0),
        MachinesReady(time=100.0, generation=1, hosts=("a",)),
        MachinesAbsent(time=100.0 + HOUR_S, generation=1, evidence="PREEMPTED"),
        Granted(time=9000.0),
        MachinesReady(time=10000.0, generation=2, hosts=("a",)),
    )
    assert job.state is State.PREPARING
    uses = uses_of(job)
    now = 10000.0 + HOUR_S
    assert [one.chip_hours(now) for one in uses] == [16.0, 16.0]

    def half(kind: str, zone: str, pricing: str) -> float | None:
        return 0.5 if (kind, zone, pricing) == ("v6e", "us-east1-d", "spot") else None

    for key, names in {"job": ["7 train"], "user": ["me"], "zone": ["us-east1-d"]}.items():
        (cost,) = costs_by(key, uses, now, half)
        assert (cost.key, cost.chip_hours, cost.amount, cost.unknown, cost.uses) == (names[0], 32.0, 16.0, 0.0, 2)
    (unknown,) = costs_by("job", uses, now, no_price)
    assert (unknown.amount, unknown.unknown) == (0.0, 32.0)


def test_days_share_the_cost_of_a_night() -> None:
    job = history(
        Granted(time=10.0),
        MachinesReady(time=10.0, generation=1, hosts=("a",)),
        MachinesAbsent(time=10.0 + 3 * 86400.0, generation=1, evidence="deleted"),
    )
    costs = costs_by("day", uses_of(job), 1e6, no_price)
    assert len(costs) == 4
    assert total(costs).chip_hours == pytest.approx(3 * 24 * 16)


def test_prices(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    assert read_prices(path).of("v6e", "us-east1-d", "spot") is None
    path.write_text(EXAMPLE)
    prices = read_prices(path)
    assert (prices.currency, prices.date) == ("USD", "2026-11-25")
    assert prices.of("v6e", "us-east1-d", "spot") == 0.01
    assert prices.of("v6e", "us-east5-a", "spot") is None
    path.write_text("chip_hour: {v6e: 1, v6e/us-east1/spot: -1}\ncurency: USD\n")
    with pytest.raises(UsageError) as caught:
        read_prices(path)
    assert [line.partition("prices.yaml:")[2] for line in str(caught.value).splitlines()] == [
        "2: curency: unknown key 'curency'; did you mean 'currency'?",
        "1: chip_hour.v6e: expected KIND/REGION/PRICING, as v6e/us-east1/spot, found 'v6e'",
        "1: chip_hour.v6e/us-east1/spot: expected a price, found -1",
    ]


def test_quotas_that_are_held_for_nothing() -> None:
    machines = [
        machine("a", {}, state="READY", request="a"),
        machine("a", {}, is_request=True, state="ACTIVE"),
        machine("b", {}, is_request=True, state="WAITING_FOR_RESOURCES", slices=2),
        machine("c", {}, is_request=True, state="SUSPENDED"),
        machine("d", {}, state="PREEMPTED"),
        machine("e", {}, zone=ZONES[1], accelerator="v4-16", pricing="ondemand"),
    ]
    first, second = quotas(machines, {"v6e/us-east1-d/spot": 64.0}.get)
    assert (first.pool, first.used, first.limit) == ("v4/us-east5-b/ondemand", 8, None)
    assert (second.pool, second.used, second.asked, second.idle) == ("v6e/us-east1-d/spot", 8, 16, 16)
    assert (second.limit, second.holders) == (64.0, ("c", "d"))
