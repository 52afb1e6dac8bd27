"""Machines of the TPU API: requests for them, how they are by an answer, their evidence, zones and names."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.app.machines import Evidence, Pace
from mesh.core.errors import UsageError
from mesh.core.job import MachinesSpec
from mesh.core.tpu import Pricing, Provision, TpuSpec
from mesh.hosts.tpu.machines import Intent, Machine, Seen, labels_of
from mesh.hosts.tpu.nodes import TpuNode, Worker
from mesh.hosts.tpu.standing import How, Standing, standing
from mesh.hosts.tpu.translate import Fields, create_node, create_queued_resource
from mesh.jobs import events
from mesh.jobs.events import Refusal
from mesh.jobs.generations import generation_name
from mesh.jobs.orders import Make
from tests.job_histories import History, job_spec, op
from tests.jobman_rules import deletes

ZONES = ("us-central2-b", "us-east1-d")
SPEC = TpuSpec(accelerator="v4-16", runtime="tpu-ubuntu2204-base", zones=ZONES, project="lab")
LABELS = labels_of("abc123", "7", 1, "Me")
NAME = "train-abc123-7-g1"
BASE = {
    "accelerator_type": "v4-16",
    "runtime_version": "tpu-ubuntu2204-base",
    "labels": {"mesh-store": "abc123", "mesh-job": "7", "mesh-generation": "1", "mesh-user": "me"},
    "network_config": {"enable_external_ips": True},
}
PARENT = "projects/lab/locations/us-central2-b"


def intent(**changes: object) -> Intent:
    spec = replace(SPEC, **changes)
    return Intent(spec=spec, project="lab", zone=ZONES[0], name=NAME, labels=LABELS)


NODES: dict[str, tuple[dict[str, object], Fields]] = {
    "on demand": ({}, {}),
    "spot": ({"pricing": Pricing.SPOT}, {"scheduling_config": {"spot": True}}),
    "preemptible": ({"pricing": Pricing.PREEMPTIBLE}, {"scheduling_config": {"preemptible": True}}),
    "reserved": ({"pricing": Pricing.RESERVED}, {"scheduling_config": {"reserved": True}}),
    "a network of one's own": (
        {"network": "net", "subnetwork": "sub", "external_ips": False},
        {"network_config": {"enable_external_ips": False, "network": "net", "subnetwork": "sub"}},
    ),
    "an account": (
        {"service_account": "me@lab"},
        {"service_account": {"email": "me@lab", "scope": ["https://www.googleapis.com/auth/cloud-platform"]}},
    ),
    "labels, which cannot take ours": (
        {"labels": {"team": "x", "mesh-job": "9"}},
        {"labels": {"team": "x", **BASE["labels"]}},  # type: ignore[dict-item]
    ),
    "metadata and a script": (
        {"metadata": {"a": "b"}, "startup_script": "echo hi", "tags": ("t",), "description": "d"},
        {"metadata": {"a": "b", "startup-script": "echo hi"}, "tags": ["t"], "description": "d"},
    ),
    "disks": (
        {"data_disks": ("data:read-only", "projects/p/zones/z/disks/d")},
        {
            "data_disks": [
                {"source_disk": "projects/lab/zones/us-central2-b/disks/data", "mode": "READ_ONLY"},
                {"source_disk": "projects/p/zones/z/disks/d", "mode": "READ_WRITE"},
            ]
        },
    ),
    "checkpoints by Google": ({"autocheckpoint": True}, {"autocheckpoint_enabled": True}),
}


@pytest.mark.parametrize(("asked", "expected"), NODES.values(), ids=NODES)
def test_the_request_of_a_node(asked: dict[str, object], expected: Fields) -> None:
    wanted = intent(provision=Provision.TPU_VM, **asked)
    assert create_node(wanted) == {
        "parent": PARENT,
        "node_id": NAME,
        "node": {**BASE, **expected},
        "request_id": wanted.request_id,
    }
    assert google_types().CreateNodeRequest(create_node(wanted)).node_id == NAME


def google_types() -> Any:
    """Return the types of Google's client, which refuse a field or a word that they do not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip("google.cloud.tpu_v2alpha1")


REQUESTS: dict[str, tuple[dict[str, object], Fields, Fields]] = {
    "on demand": ({}, {}, {}),
    "spot": ({"pricing": Pricing.SPOT}, {"scheduling_config": {"spot": True}}, {"spot": {}}),
    "reserved": (
        {"pricing": Pricing.RESERVED, "reservation": "r"},
        {},
        {"guaranteed": {"reserved": True}, "reservation_name": "r"},
    ),
    "best effort": ({"pricing": Pricing.BEST_EFFORT}, {}, {"best_effort": {}}),
    "for a while": ({"valid_for": 60.0}, {}, {"queueing_policy": {"valid_until_duration": {"seconds": 60}}}),
}


@pytest.mark.parametrize(("asked", "node", "more"), REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("slices", [1, 2])
def test_the_request_of_a_queued_resource(asked: dict[str, object], node: Fields, more: Fields, slices: int) -> None:
    many = {"multi_node_params": {"node_count": 2, "node_id_prefix": NAME}}
    which = {"node_id": NAME} if slices == 1 else many
    wanted = intent(slices=slices, **asked)
    assert create_queued_resource(wanted) == {
        "parent": PARENT,
        "queued_resource_id": NAME,
        "queued_resource": {"tpu": {"node_spec": [{"parent": PARENT, **which, "node": {**BASE, **node}}]}, **more},
        "request_id": wanted.request_id,
    }
    made = google_types().CreateQueuedResourceRequest(create_queued_resource(wanted))
    assert made.queued_resource.tpu.node_spec[0].node.accelerator_type == "v4-16"


@pytest.mark.parametrize("asked", [{"slices": 2}, {"pricing": Pricing.BEST_EFFORT}, {"valid_for": 1.0}])
def test_words_that_a_node_does_not_have(asked: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"queued|one slice"):
        create_node(intent(provision=Provision.TPU_VM, **asked))


def test_a_request_has_the_same_id_each_time_and_another_one_for_another_generation() -> None:
    assert intent().request_id == intent(slices=2).request_id
    assert intent().request_id != replace(intent(), name="train-abc123-7-g2").request_id


# ---- how machines are


def node(name: str, state: str = "READY", workers: int = 2, number: int = 1, **labels: str) -> Machine:
    there = tuple(Worker(internal=f"10.0.0.{worker}") for worker in range(workers))
    value = TpuNode(name=name, state=state, workers=there, id=str(number))
    return Machine(name=name, state=state, labels={**LABELS, **labels}, node=value)


def request(state: str, **labels: str) -> Machine:
    return Machine(name=NAME, state=state, is_request=True, labels={**LABELS, **labels})


STANDINGS: dict[str, tuple[list[Machine], tuple[str, ...], How]] = {
    "nothing is listed": ([], (), How.ABSENT),
    "it waits": ([request("WAITING_FOR_RESOURCES")], (), How.PENDING),
    "it is being made": ([request("PROVISIONING")], (), How.PENDING),
    "active before its node is listed": ([request("ACTIVE")], (), How.PENDING),
    "active before its node is ready": ([request("ACTIVE"), node(NAME, "CREATING")], (), How.PENDING),
    "ready": ([request("ACTIVE"), node(NAME)], (), How.READY),
    "ready without addresses": ([request("ACTIVE"), node(NAME, workers=0)], (), How.PENDING),
    "ready with some addresses": ([request("ACTIVE"), node(NAME, workers=1)], (), How.FEWER),
    "ready with more addresses": ([request("ACTIVE"), node(NAME, workers=4)], (), How.OTHER_COUNT),
    "preempted": ([request("ACTIVE"), node(NAME, "PREEMPTED")], ("1",), How.LOST),
    "terminated": ([request("ACTIVE"), node(NAME, "TERMINATED")], ("1",), How.LOST),
    "suspended": ([request("SUSPENDED")], ("1",), How.LOST),
    "on its way to suspended": ([request("SUSPENDING"), node(NAME, "DELETING")], ("1",), How.PENDING),
    "failed in the queue": ([request("FAILED")], (), How.LOST),
    "silently deleted": ([request("ACTIVE")], ("1",), How.MISSING),
    "another one under the name": ([request("ACTIVE"), node(NAME, number=2)], ("1",), How.LOST),
    "repaired": ([request("ACTIVE"), node(NAME, "REPAIRING")], ("1",), How.PENDING),
    "a state from the future": ([request("ACTIVE"), node(NAME, "77")], ("1",), How.UNKNOWN),
    "a request's state from the future": ([request("77"), node(NAME)], ("1",), How.UNKNOWN),
    "nodes without their request": ([node(NAME, "CREATING")], (), How.PENDING),
    "ready ones without their request": ([node(NAME)], (), How.MISSING),
    "of another store": ([request("ACTIVE", **{"mesh-store": "other1"})], (), How.ABSENT),
    "of another generation": ([request("ACTIVE", **{"mesh-generation": "2"})], (), How.ABSENT),
}


BOTH = ("1", "2")
ENDED: dict[str, tuple[list[Machine], tuple[str, ...], bool]] = {
    "preempted": ([request("ACTIVE"), node(NAME, "PREEMPTED")], ("1",), True),
    "terminated, without its request": ([node(NAME, "TERMINATED")], ("1",), True),
    "and its request is suspended": ([request("SUSPENDED"), node(NAME, "PREEMPTED")], ("1",), True),
    "before it was ready": ([request("ACTIVE"), node(NAME, "PREEMPTED")], (), False),
    "another one under the name": ([node(NAME, "PREEMPTED", number=2)], ("1",), False),
    "stopped, which a person may start again": ([node(NAME, "STOPPED")], ("1",), False),
    "being deleted": ([request("DELETING"), node(NAME, "DELETING")], ("1",), False),
    "not listed": ([request("ACTIVE")], ("1",), False),
    "nothing is listed": ([], ("1",), False),
    "both slices": ([node(f"{NAME}-0", "PREEMPTED"), node(f"{NAME}-1", "TERMINATED", number=2)], BOTH, True),
    "one of two slices": ([node(f"{NAME}-0", "PREEMPTED"), node(f"{NAME}-1", number=2)], BOTH, False),
    "the other one is not listed": ([node(f"{NAME}-0", "PREEMPTED")], BOTH, False),
    "the other one is listed twice": (
        [node(f"{NAME}-{number}", "PREEMPTED", number=min(number + 1, 2)) for number in range(3)],
        BOTH,
        False,
    ),
}


@pytest.mark.parametrize(("machines", "ids", "is_ended"), ENDED.values(), ids=ENDED)
def test_machines_are_ended_only_if_google_has_ended_each_that_was_ready(
    machines: list[Machine], ids: tuple[str, ...], is_ended: bool
) -> None:
    assert standing(intent(), Seen(complete=True, machines=tuple(machines)), ids).is_ended is is_ended


def test_two_answers_must_show_machines_ended() -> None:
    evidence = Evidence(Pace())
    lost, ended = (Standing(how=How.LOST, text="x-0 is PREEMPTED", is_ended=one) for one in (False, True))
    assert not evidence.is_proved("a", lost, 100.0)
    assert not evidence.is_proved("a", ended, 102.0)
    assert not evidence.is_proved("a", ended, 103.0)
    assert evidence.is_proved("a", ended, 104.0)


@pytest.mark.parametrize(("machines", "ids", "how"), STANDINGS.values(), ids=STANDINGS)
def test_how_machines_are(machines: list[Machine], ids: tuple[str, ...], how: How) -> None:
    seen = Seen(complete=True, machines=(*machines, node("train-abc123-7-g11"), node("other")))
    assert standing(intent(), seen, ids).how is how


def test_slices_are_in_the_order_of_their_numbers() -> None:
    nodes = [node(f"{NAME}-{number}", number=number) for number in (10, 2, 0, 1, *range(3, 10))]
    seen = Seen(complete=True, machines=(request("ACTIVE"), *nodes))
    found = standing(intent(slices=11), seen)
    assert [one.name for one in found.nodes] == [f"{NAME}-{number}" for number in range(11)]
    assert standing(intent(slices=12), seen).how is How.PENDING
    assert standing(intent(slices=12), seen, ("1",)).how is How.MISSING or found.how is How.READY


def test_absence_is_proved_by_two_looks_twenty_seconds_apart() -> None:
    evidence, absent = Evidence(Pace()), Standing(how=How.ABSENT, text="gone")
    assert not evidence.is_proved("a", absent, 100.0)
    assert not evidence.is_proved("a", absent, 100.0)  # the same answer
    assert not evidence.is_proved("a", absent, 119.0)
    assert evidence.is_proved("a", absent, 120.0)
    assert evidence.is_proved("a", Standing(how=How.PENDING, text="x"), 121.0)  # it is there again
    assert not evidence.is_proved("a", absent, 122.0)
    assert not evidence.is_proved("b", Standing(how=How.LOST, text="PREEMPTED"), 122.0)
    assert evidence.is_proved("b", Standing(how=How.LOST, text="PREEMPTED"), 124.0)


# ---- generations


CLOUD = replace(job_spec("failure", name="Train 8B"), machines=MachinesSpec(maker="tpu", pool="p", units=8, tpu=SPEC))


def test_names_of_generations() -> None:
    assert generation_name(CLOUD, "abc123", 7, 3) == "train-8b-abc123-7-g3"
    assert generation_name(replace(CLOUD, name="8"), "abc123", 7, 1) == "mesh-8-abc123-7-g1"
    tpu = replace(SPEC, prefix="My_TPU" + 80 * "x")
    spec = replace(CLOUD, machines=replace(CLOUD.machines, tpu=tpu))
    name = generation_name(spec, "abc123", 123456, 1000)
    assert name.startswith("my-tpuxxx")
    assert name.endswith("-abc123-123456-g1000")
    assert len(name) <= 61


def zones(history: History) -> list[str]:
    return [one.zone for one in history.job.generations]


def test_a_zone_without_capacity_goes_to_the_end() -> None:
    history = History(CLOUD).play("granted refused:capacity absent @99 granted refused:capacity absent @999 granted")
    assert zones(history) == [ZONES[0], ZONES[1], ZONES[0]]


def test_a_zone_that_took_machines_twice_within_an_hour_goes_to_the_end() -> None:
    life = "granted made ready started lost deleting absent"
    assert zones(History(CLOUD).play(f"{life} @99 {life} @199 granted")) == [ZONES[0], ZONES[0], ZONES[1]]
    assert zones(History(CLOUD).play(f"{life} @99 granted made ready started @9999 lost deleting absent granted")) == [
        *[ZONES[0]] * 3
    ]


def test_machines_that_are_not_ready_in_time_are_given_back() -> None:
    history = History(CLOUD).play("granted made waiting @90000 waiting timer")
    assert history.told == "requesting"  # Google's queue may take days
    history.play("pending @93590 timer")
    assert history.told == "requesting"
    history.play("@93700 pending")
    assert (history.told, history.orders) == ("recovering", ["make", "delete"])
    assert history.job.generations[0].end == "capacity"


def test_machines_that_became_ready_while_nobody_could_ask_are_used() -> None:
    history = History(CLOUD).play("granted made pending @9999 not-asked:look-machines timer taken-over")
    assert (history.told, history.orders) == ("requesting", ["make"])
    assert history.play("ready").orders == ["make", "start"]


def test_a_refusal_that_needs_a_person_moves_no_zone() -> None:
    history = History(CLOUD).play("granted")
    history.happen(events.Refused(time=5.0, op=op(history.job, Make), kind=Refusal.PERSON, why="403"))
    assert history.told == "held"
    assert history.play("absent resume @99 granted").job.generations[-1].zone == ZONES[0]


# ---- an API that fails, by our rules and by those of JOBMAN

READY_ANSWER = Seen(complete=True, machines=(request("ACTIVE"), node(NAME)))
FAILED_CALL = Seen(complete=False, why="403")
FUTURE = Seen(complete=True, machines=(request("ACTIVE"), node(NAME, "77")))
HISTORIES = {
    "a login that expired": [READY_ANSWER, *[FAILED_CALL] * 40, READY_ANSWER],
    "an API that flaps": [READY_ANSWER, FAILED_CALL] * 20,
    "a list without it, once": [READY_ANSWER, Seen(complete=True), READY_ANSWER],
    "a state from the future": [READY_ANSWER, FUTURE, FUTURE, READY_ANSWER],
}


def ours(history: list[Seen]) -> list[How]:
    """Return what our rules prove of a history of answers, one each 15 s."""
    evidence, proved = Evidence(Pace()), []
    for number, answer in enumerate(history):
        if answer.complete:
            found = standing(intent(), answer, ("1",))
            if evidence.is_proved(NAME, found, number * 15.0):
                proved.append(found.how)
    return proved


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_an_api_that_fails_costs_jobman_a_healthy_machine_and_us_none(history: list[Seen]) -> None:
    assert any(map(deletes, history))
    assert {How.LOST, How.MISSING, How.ABSENT}.isdisjoint(ours(history))
    assert How.ABSENT in ours([READY_ANSWER, *[Seen(complete=True)] * 3])  # it is not that ours never does
