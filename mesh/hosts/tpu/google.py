"""Calls of the TPU API that make, list and delete machines. The only module that needs its version v2alpha1."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from mesh.core.tpu import Pricing, Provision
from mesh.hosts.interfaces import NotMade as NotMade
from mesh.hosts.interfaces import Why as Why
from mesh.hosts.tpu import translate
from mesh.hosts.tpu.client import (
    LOG_IN,
    PAGE_NODES,
    Api,
    NotAsked,
    credentials,
    name_of,
    needs_client,
    node_of,
    not_asked,
    patience,
    with_instances,
)
from mesh.hosts.tpu.gcloud import Zone
from mesh.hosts.tpu.machines import Intent, Machine, Seen, of_intent
from mesh.hosts.tpu.nodes import TpuNode

CALL_LIMIT_S = 20.0  # for one call, and for all pages of a list
DELETE_LIMIT_S = 200.0  # for all calls that delete the nodes of a request; a child has 300 s


def make(intent: Intent, zone: Zone, environ: Mapping[str, str]) -> None:
    """Ask for the machines of an intent. It may be repeated: machines of ours under the name count as made.

    Raises NotMade, UsageError, and NotAsked if it is not certain that they are asked for.
    A call is not repeated in here: after a lost answer, a refusal of the next call is no proof that nothing was made.
    """
    once = {"timeout": CALL_LIMIT_S, "retry": None}
    is_node = intent.spec.provision is Provision.TPU_VM
    with _client(zone, environ) as (client, types):
        from google.api_core import exceptions as api

        try:
            if is_node:
                client.create_node(types.CreateNodeRequest(translate.create_node(intent)), **once)
            else:
                fields = translate.create_queued_resource(intent)
                client.create_queued_resource(types.CreateQueuedResourceRequest(fields), **once)
        except api.Aborted:
            raise
        except api.Conflict:
            _adopt(client, intent, zone)
        except api.TooManyRequests as error:
            raise NotMade(Why.CAPACITY, _said(error)) from error
        except (api.BadRequest, api.Forbidden, api.Unauthorized, api.NotFound, api.MethodNotImplemented) as error:
            raise NotMade(Why.PERSON, _said(error), hint=_hint(error, intent, zone)) from error


def _adopt(client: Api, intent: Intent, zone: Zone) -> None:
    """Take machines that are there under the name, if they are ours. Raises NotMade, and NotAsked.

    A name that the API has and does not list counts as asked for: they may have been made and be gone by now, and then
    looks prove it.
    """
    seen = _all(client, zone)
    if of_intent(seen, intent) or not any(one.name == intent.name for one in seen.machines):
        return
    message = f"{intent.name} exists in {zone}, and is not of this job"
    raise NotMade(Why.PERSON, message, hint=f"gcloud compute tpus tpu-vm describe {intent.name} --zone {zone.zone}")


def list_machines(zone: Zone, environ: Mapping[str, str]) -> Seen:
    """Return all nodes and queued resources of a zone; an answer with holes, or none, is not complete."""
    begun = time.monotonic()
    try:
        with _client(zone, environ) as (client, _):
            return _all(client, zone)
    except NotAsked as error:
        return Seen(complete=False, time=begun, why=str(error), hint=error.hint)


def delete(intent: Intent, zone: Zone, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Delete what is there of an intent; return the names of it. It does not wait until they are gone.

    Raises NotAsked if the API does not answer, and if it refuses some of them: all others are being deleted then.
    """
    with _client(zone, environ) as (client, types):
        found = of_intent(_all(client, zone), intent)
        requests = [one for one in found if one.is_request]
        # A queued resource takes its nodes with it. Nodes that it has left behind are deleted by themselves.
        delete_each([one for one in requests or found if one.state != "DELETING"], zone, client, types)
        return tuple(one.name for one in found)


def delete_machine(machine: Machine, environ: Mapping[str, str], endpoint: str = "") -> None:
    """Delete one resource as a list has it. Raises NotAsked."""
    zone = Zone(project=machine.project, zone=machine.zone, endpoint=endpoint)
    with _client(zone, environ) as (client, types):
        delete_each([machine], zone, client, types)


def delete_each(machines: Sequence[Machine], zone: Zone, client: Api, types: Api) -> None:
    """Send the deletion of each resource, whatever the answers to the others are.

    client, types: Google's. Raises NotAsked with all refusals.
    """
    from google.api_core.exceptions import GoogleAPIError

    until = time.monotonic() + DELETE_LIMIT_S
    refused: list[tuple[str, NotAsked]] = []
    for one in machines:
        try:
            _delete(one, zone, client, types, min(until, time.monotonic() + CALL_LIMIT_S))
        except GoogleAPIError as error:
            refused.append((one.name, not_asked(error, zone, CALL_LIMIT_S)))
    if len(machines) == 1 and refused:
        raise refused[0][1]
    if refused:
        texts = "; ".join(f"{name}: {error}" for name, error in refused)
        raise NotAsked(f"{len(refused)} of {len(machines)} are not deleted yet: {texts}", hint=refused[0][1].hint)


def _delete(machine: Machine, zone: Zone, client: Api, types: Api, until: float) -> None:
    from google.api_core.exceptions import NotFound

    kind = "queuedResources" if machine.is_request else "nodes"
    name = f"{translate.place_of(zone.project, zone.zone)}/{kind}/{machine.name}"
    with contextlib.suppress(NotFound):
        if machine.is_request:
            wanted = types.DeleteQueuedResourceRequest(name=name, force=True)
            client.delete_queued_resource(wanted, **patience(until))
        else:
            client.delete_node(types.DeleteNodeRequest(name=name), **patience(until))


def with_tunnels(nodes: tuple[TpuNode, ...], zone: Zone, environ: Mapping[str, str]) -> tuple[TpuNode, ...]:
    """Return nodes with the names of their machines, by which tunnels reach them. Raises NotAsked."""
    with _client(zone, environ) as (client, _):
        until = time.monotonic() + CALL_LIMIT_S
        return tuple(with_instances(client, node, zone, until) for node in nodes)


@contextlib.contextmanager
def _client(zone: Zone, environ: Mapping[str, str]) -> Iterator[tuple[Api, Api]]:
    """Yield a client and the types of the API; what the client raises inside becomes NotAsked."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of Pythons that Google supports no more
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import tpu_v2alpha1
    except ImportError as error:
        raise needs_client() from error
    try:
        with tpu_v2alpha1.TpuClient(transport=_transport(tpu_v2alpha1, zone, environ)) as client:
            yield client, tpu_v2alpha1
    except (GoogleAPIError, GoogleAuthError) as error:
        raise not_asked(error, zone, CALL_LIMIT_S) from error


def _transport(types: Api, zone: Zone, environ: Mapping[str, str]) -> Api:
    """Return gRPC; to an http:// endpoint without TLS and credentials."""
    place = urlsplit(zone.endpoint)
    kind = types.TpuClient.get_transport_class("grpc")
    if place.scheme == "http":
        import grpc

        return kind(channel=grpc.insecure_channel(place.netloc))
    host = place.netloc or zone.endpoint or types.TpuClient.DEFAULT_ENDPOINT
    return kind(host=host, credentials=credentials(environ))


def _all(client: Api, zone: Zone) -> Seen:
    """Return the nodes and queued resources of all pages. Raises NotAsked where the answer has holes."""
    begun = time.monotonic()
    place = {"parent": translate.place_of(zone.project, zone.zone), "page_size": PAGE_NODES}
    # Requests come first: a node that appears between the two lists has its request in the first one.
    until = begun + CALL_LIMIT_S
    requests = _pages(client.list_queued_resources, place, "queued_resources", zone, until)
    nodes = _pages(client.list_nodes, place, "nodes", zone, until)
    machines = [_of_request(one, zone) for one in requests]
    # Nodes of the older API are no machines to log in to.
    machines += [_of_node(one, zone) for one in nodes if not name_of(one.api_version).startswith("V1")]
    return Seen(complete=True, machines=tuple(machines), time=begun)


def _pages(call: Callable[..., Api], request: Mapping[str, Api], field: str, zone: Zone, until: float) -> list[Api]:
    """Return what all pages of a list have. until: monotonic. Raises NotAsked where they have holes"""
    token, found = "", list[Api]()
    while True:
        page = next(call({**request, "page_token": token}, **patience(until)).pages)
        if page.unreachable:
            missing = ", ".join(page.unreachable)
            raise NotAsked(f"the TPU API cannot see all of {zone} now: {missing}", hint="try again in a moment")
        found += getattr(page, field)
        if not page.next_page_token:
            return found
        token = page.next_page_token


def _of_node(node: Api, zone: Zone) -> Machine:
    scheduling = node.scheduling_config
    kinds = (Pricing.SPOT, Pricing.PREEMPTIBLE, Pricing.RESERVED)
    pricing = next((kind for kind in kinds if getattr(scheduling, kind.value)), Pricing.ONDEMAND)
    return Machine(
        name=node.name.rpartition("/")[2],
        state=name_of(node.state),
        request=node.queued_resource.rpartition("/")[2],
        labels=dict(node.labels),
        accelerator=node.accelerator_type,
        pricing=pricing.value,
        zone=zone.zone,
        project=zone.project,
        created=_seconds(node.create_time),
        node=node_of(node),
        health=name_of(node.health),
    )


def _of_request(request: Api, zone: Zone) -> Machine:
    specs = request.tpu.node_spec
    node = specs[0].node if specs else None
    state = request.state
    is_best_effort, is_reserved = "best_effort" in request, "guaranteed" in request and request.guaranteed.reserved
    pricing = Pricing.BEST_EFFORT if is_best_effort else Pricing.RESERVED if is_reserved else Pricing.ONDEMAND
    if "spot" in request:
        pricing = Pricing.SPOT
    elif node is not None and node.scheduling_config.preemptible:
        pricing = Pricing.PREEMPTIBLE
    return Machine(
        name=request.name.rpartition("/")[2],
        state=name_of(state.state),
        is_request=True,
        labels=dict(node.labels) if node is not None else {},
        accelerator=node.accelerator_type if node is not None else "",
        pricing=pricing.value,
        slices=sum(max(1, one.multi_node_params.node_count) for one in specs),
        zone=zone.zone,
        project=zone.project,
        created=_seconds(request.create_time),
        why=" ".join(state.failed_data.error.message.split())[:300] if "failed_data" in state else "",
    )


def _seconds(stamp: Api) -> float:
    return float(stamp.timestamp()) if stamp else 0.0


def _said(error: Api) -> str:
    return " ".join(str(getattr(error, "message", "") or error).split())[:300]


def _hint(error: Exception, intent: Intent, zone: Zone) -> str:
    from google.api_core import exceptions as api

    if isinstance(error, api.Unauthorized):
        return LOG_IN
    if isinstance(error, api.Forbidden):
        return f"gcloud projects get-iam-policy {zone.project}: it takes roles/tpu.admin"
    kinds = f"gcloud compute tpus accelerator-types list --zone {zone.zone} --project {zone.project}"
    versions = f"gcloud compute tpus versions list --zone {zone.zone} --project {zone.project}"
    return f"{kinds}\n{versions}"
