"""Calls that make, list and delete machines, through Google's own client, on a stand-in for the TPU API."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mesh.app.machines import delete_machines, list_owned, look_at_machines, make_machines
from mesh.core.errors import MeshError
from mesh.core.tpu import Provision, TpuSpec
from mesh.hosts.tpu.client import NotAsked
from mesh.hosts.tpu.google import NotMade, Why
from mesh.hosts.tpu.machines import Intent, labels_of
from mesh.hosts.tpu.standing import How
from tests.lab import eventually
from tests.tpuemulator.client import PROJECT, ZONES, Emulator, emulator

ZONE = ZONES[0]
SPEC = TpuSpec(accelerator="v4-16", runtime="tpu-ubuntu2204-base", zones=ZONES, project=PROJECT)
REPAIRING = 6  # google.cloud.tpu_v2.Node.State
FIELDS = {"accelerator_type": "v4-8", "runtime_version": "x"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with emulator(tmp_path_factory.mktemp("tpu")) as found:
        yield found


@pytest.fixture
def tpus(running: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    running.calm()
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture(params=list(Provision), ids=[one.value for one in Provision])
def intent(request: pytest.FixtureRequest, tpus: Emulator) -> Intent:
    """Machines that no other test has asked for."""
    number = len(tpus.journal())
    spec = replace(SPEC, provision=request.param)
    labels = labels_of("abc123", str(number), 1, "me")
    return Intent(spec=spec, project=PROJECT, zone=ZONE, name=f"train-abc123-{number}-g1", labels=labels)


def made(tpus: Emulator, intent: Intent) -> int:
    """Return how often the machines of an intent were made."""
    kind = "create-node" if intent.spec.provision is Provision.TPU_VM else "create-request"
    return tpus.effects(kind).count(intent.name)


def how(intent: Intent) -> How:
    found = look_at_machines(intent, environ=os.environ)
    assert found is not None
    return found.how


@pytest.mark.parametrize("repeats_conflict", [False, True])
def test_an_answer_that_is_lost_makes_nothing_twice(tpus: Emulator, intent: Intent, repeats_conflict: bool) -> None:
    tpus.set(repeats_conflict=repeats_conflict)
    verb = "CreateNode" if intent.spec.provision is Provision.TPU_VM else "CreateQueuedResource"
    tpus.faults({"verb": verb, "status": "DEADLINE_EXCEEDED", "lost": True, "times": 1})
    with pytest.raises(NotAsked):
        make_machines(intent)
    make_machines(intent)
    make_machines(intent)
    assert made(tpus, intent) == 1
    assert eventually(lambda: how(intent) is How.READY)
    owned = [one.name for one in list_owned(PROJECT, ZONE, "abc123").machines]
    assert intent.name in owned
    tpus.faults({"verb": "*", "status": "INTERNAL", "lost": True, "times": 3})
    with pytest.raises(NotAsked):
        delete_machines(intent)
    tpus.faults()
    delete_machines(intent)
    assert eventually(lambda: how(intent) is How.ABSENT)
    assert delete_machines(intent) == ()


def test_machines_that_were_made_and_vanished_before_the_answer_came_are_absent(tpus: Emulator, intent: Intent) -> None:
    """The API has the name, or the id of the request, and does not list it: looks decide."""
    make_machines(intent)
    assert eventually(lambda: how(intent) is How.READY)
    tpus.control("preempt", zone=ZONE, name=intent.name, how="vanished")
    if intent.spec.provision is Provision.QUEUED_RESOURCES:
        tpus.control("lose_request", zone=ZONE, name=intent.name)
    make_machines(intent)
    assert how(intent) is How.ABSENT
    assert made(tpus, intent) == 1


def test_a_name_that_is_of_others_is_for_a_person(tpus: Emulator, intent: Intent) -> None:
    labels = {"mesh-store": "zzzzzz", "mesh-job": "1", "mesh-generation": "1"}
    fields = {**FIELDS, "labels": labels}
    tpus.control("create_node", zone=ZONE, name=intent.name, fields=fields, request_id="")
    with pytest.raises(NotMade, match="not of this job") as failed:
        make_machines(intent)
    assert failed.value.why is Why.PERSON
    assert delete_machines(intent) == ()
    assert f"{ZONE}/{intent.name}" in tpus.nodes
    assert intent.name not in [one.name for one in list_owned(PROJECT, ZONE, "abc123").machines]
    assert intent.name in [one.name for one in list_owned(PROJECT, ZONE).machines]


@pytest.mark.parametrize("intent", [Provision.QUEUED_RESOURCES], indirect=True)
def test_a_node_that_cannot_be_deleted_keeps_no_other_one(tpus: Emulator, intent: Intent) -> None:
    intent = replace(intent, spec=replace(intent.spec, slices=3))
    make_machines(intent)
    assert eventually(lambda: how(intent) is How.READY)
    tpus.control("lose_request", zone=ZONE, name=intent.name)
    tpus.set(hold=["DELETING"])
    tpus.faults({"verb": "DeleteNode", "status": "PERMISSION_DENIED", "times": 2})
    with pytest.raises(NotAsked, match=f"2 of 3 are not deleted yet: {intent.name}-0: .*; {intent.name}-1: ") as failed:
        delete_machines(intent)
    assert "roles/tpu" in failed.value.hint
    assert tpus.nodes[f"{ZONE}/{intent.name}-2"]["state"] == "DELETING"
    tpus.calm()
    delete_machines(intent)
    assert eventually(lambda: how(intent) is How.ABSENT)


def test_machines_that_are_sick_are_neither_lost_nor_well(tpus: Emulator, intent: Intent) -> None:
    make_machines(intent)
    assert eventually(lambda: how(intent) is How.READY)
    tpus.control("health", **{intent.name: "UNHEALTHY_MAINTENANCE"})
    found = look_at_machines(intent)
    assert found is not None
    assert (found.how, found.sickness) == (How.READY, f"{intent.name} is READY and UNHEALTHY_MAINTENANCE")
    tpus.control("health")
    tpus.control("future", **{intent.name: REPAIRING})
    found = look_at_machines(intent)
    assert found is not None
    assert (found.how, found.sickness) == (How.PENDING, f"{intent.name} is REPAIRING")
    tpus.control("future")
    assert eventually(lambda: how(intent) is How.READY)
    delete_machines(intent)


REFUSALS = {
    "RESOURCE_EXHAUSTED": Why.CAPACITY,
    "PERMISSION_DENIED": Why.PERSON,
    "UNAUTHENTICATED": Why.PERSON,
    "INVALID_ARGUMENT": Why.PERSON,
    "INTERNAL": None,
    "UNAVAILABLE": None,
    "DEADLINE_EXCEEDED": None,
    "ABORTED": None,
}


@pytest.mark.parametrize("status", REFUSALS)
def test_refusals_by_kind(tpus: Emulator, intent: Intent, status: str) -> None:
    tpus.faults({"verb": "*", "status": status})
    with pytest.raises(MeshError) as failed:
        make_machines(intent)
    error = failed.value
    assert (error.why if isinstance(error, NotMade) else None) is REFUSALS[status]
    assert isinstance(error, NotMade | NotAsked)
    assert error.hint or status == "RESOURCE_EXHAUSTED"
    assert not list_owned(PROJECT, ZONE).complete
    assert look_at_machines(intent) is None
    assert made(tpus, intent) == 0


def test_a_list_of_many_pages_and_one_with_a_hole(tpus: Emulator) -> None:
    for number in range(5):
        name = f"many-{len(tpus.journal())}-{number}"
        fields = {**FIELDS, "labels": {"mesh-store": "pages1"}}
        tpus.control("create_node", zone=ZONES[1], name=name, fields=fields, request_id="")
    tpus.control("holes", page=2)
    assert len(list_owned(PROJECT, ZONES[1], "pages1").machines) == 5
    tpus.control("holes", page=2, holes={"ListQueuedResources": "unreachable"})
    seen = list_owned(PROJECT, ZONES[1], "pages1")
    assert not seen.complete
    assert "cannot see all" in seen.why
