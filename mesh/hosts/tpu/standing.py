"""How the machines of an intent are, by one complete answer of the API. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from mesh.core.tpu import Provision, accelerator_of
from mesh.hosts.interfaces import How as How
from mesh.hosts.tpu.machines import Intent, Machine, Seen, of_intent
from mesh.hosts.tpu.nodes import READY, TpuNode

GONE = ("PREEMPTED", "TERMINATED", "STOPPED")  # states of a node that does not come back by itself
ENDED = ("PREEMPTED", "TERMINATED")  # those of GONE in which Google has ended the machines: no process runs there
GIVEN_UP = ("SUSPENDED", "FAILED")  # states of a queued resource that holds quota for nothing
QUEUED = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES")  # states of a queued resource that has no machines yet
REPAIRING, DELETING = "REPAIRING", "DELETING"
SICK = ("TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE")  # values of a node's health
# States of which nothing follows but a wait.
NODE_STATES = ("CREATING", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPING", "STARTING")
REQUEST_STATES = ("PROVISIONING", "ACTIVE", "SUSPENDING", "DELETING")


class Standing(Struct, frozen=True, kw_only=True):
    """The machines of an intent."""

    how: How
    text: str  # for people
    is_waiting: bool = False  # with PENDING: in Google's queue
    nodes: tuple[TpuNode, ...] = ()  # in order, where they are READY
    is_deleting: bool = False  # all of them
    is_ended: bool = False  # Google has ended each machine that was ready, so that no process runs there
    alive: tuple[str, ...] = ()  # names of nodes that are READY
    sickness: str = ""  # a node under repair, or one that is not healthy, whatever its state is; "": none


def standing(intent: Intent, seen: Seen, ids: Sequence[str] = ()) -> Standing:
    """Return how the machines of an intent are. ids: of its nodes when they were ready, () before

    seen: a complete answer
    """
    found = of_intent(seen, intent)
    # A queued resource takes its nodes with it.
    deciding = [one for one in found if one.is_request] or found
    is_deleting = bool(found) and all(one.state == DELETING for one in deciding)
    alive = tuple(one.name for one in found if not one.is_request and one.state == READY)
    ended = _is_ended(found, ids)
    return replace(_standing(intent, found, ids), is_deleting=is_deleting, is_ended=ended, alive=alive)


def _is_ended(found: Sequence[Machine], ids: Sequence[str]) -> bool:
    """Return True if the nodes that were ready, and no others, are there and ended."""
    nodes = [one for one in found if not one.is_request]
    there = {one.node.id for one in nodes if one.node is not None}
    return bool(ids) and there == set(ids) and len(nodes) == len(there) and all(one.state in ENDED for one in nodes)


def _standing(intent: Intent, found: Sequence[Machine], ids: Sequence[str]) -> Standing:
    request = next((one for one in found if one.is_request), None)
    nodes = sorted((one for one in found if not one.is_request), key=_number)
    if not found:
        return Standing(how=How.ABSENT, text=f"{intent.name} is not listed in {intent.zone}")
    if request is not None and (judged := _of_request(request)) is not None:
        return judged
    if (judged := _of_states(nodes, ids)) is not None:
        return judged
    if request is None and intent.spec.provision is Provision.QUEUED_RESOURCES and not ids:
        return Standing(how=How.MISSING, text=f"queued resource {intent.name} is not listed, and its nodes are")
    if len(nodes) < intent.spec.slices:
        text = f"{len(nodes)} of {intent.spec.slices} slices are listed"
        return Standing(how=How.MISSING if ids else How.PENDING, text=text)
    found_at = _of_addresses(intent, [one.node for one in nodes if one.node is not None])
    sick = next((one for one in nodes if one.health in SICK), None)
    return replace(found_at, sickness=f"{sick.name} is READY and {sick.health}") if sick is not None else found_at


def _number(node: Machine) -> tuple[int, str]:
    last = node.name.rpartition("-")[2]
    return (int(last) if last.isdigit() else 0, node.name)


def _of_request(request: Machine) -> Standing | None:
    """Return what follows from the state of a queued resource alone; None if its nodes decide."""
    state, text = request.state, f"queued resource {request.name} is {request.state}"
    if state in GIVEN_UP:
        return Standing(how=How.LOST, text=f"{text}{f': {request.why}' if request.why else ''}")
    if state in QUEUED:
        return Standing(how=How.PENDING, text=state, is_waiting=True)
    if state not in REQUEST_STATES:
        return Standing(how=How.UNKNOWN, text=text)
    if state == "ACTIVE":
        return None
    return Standing(how=How.PENDING, text=state)


def _of_states(nodes: Sequence[Machine], ids: Sequence[str]) -> Standing | None:
    """Return what follows from the states of nodes; None if all are ready."""
    for one in nodes:
        if one.state in GONE:
            return Standing(how=How.LOST, text=f"{one.name} is {one.state}")
        if ids and one.node is not None and one.node.id not in ids:
            return Standing(how=How.LOST, text=f"another TPU has the name {one.name}")
    for one in nodes:
        if one.state in NODE_STATES:
            text = f"{one.name} is {one.state}"
            return Standing(how=How.PENDING, text=text, sickness=text if one.state == REPAIRING else "")
        if one.state != READY:
            return Standing(how=How.UNKNOWN, text=f"{one.name} is {one.state}")
    return None


def _of_addresses(intent: Intent, nodes: Sequence[TpuNode]) -> Standing:
    """Return if nodes that are READY have the addresses of all of their machines."""
    hosts = accelerator_of(intent.spec.accelerator).hosts
    for node in nodes:
        if not node.workers:
            return Standing(how=How.PENDING, text=f"{node.name} is READY, without all addresses")
    counted = sum(len(node.workers) for node in nodes)
    if hosts and all(len(node.workers) == hosts for node in nodes):
        return Standing(how=How.READY, text=f"{counted} hosts are READY", nodes=tuple(nodes))
    is_fewer = any(len(node.workers) < hosts for node in nodes)
    text = f"READY with {counted} addresses"
    return Standing(how=How.FEWER if is_fewer else How.OTHER_COUNT, text=text, nodes=tuple(nodes))
