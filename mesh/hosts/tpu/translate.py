"""Requests of the TPU API (v2alpha1) for what a job file asks for, as mappings of their fields. Pure."""

from __future__ import annotations

from mesh.core.errors import UsageError
from mesh.core.tpu import Pricing, Provision, TpuSpec
from mesh.hosts.tpu.machines import Intent

STARTUP_SCRIPT = "startup-script"  # the key of metadata whose text the machines run at boot
ALL_SCOPES = "https://www.googleapis.com/auth/cloud-platform"
READ_ONLY = ":read-only"

Fields = dict[str, object]  # of a message of the API; checked where Google's client makes the message


def place_of(project: str, zone: str) -> str:
    """Return the parent of what is made in a zone."""
    return f"projects/{project}/locations/{zone}"


def check_spec(spec: TpuSpec) -> None:
    """Raise UsageError for a combination that the API has no request for."""
    if spec.provision is not Provision.TPU_VM:
        return
    if spec.slices > 1:
        hint = "allocation_mode: queued-resources"
        raise UsageError(f"tpu.slices: {spec.slices}: a tpu-vm is one slice", hint=hint)
    if spec.pricing is Pricing.BEST_EFFORT:
        raise UsageError("tpu.pricing: best-effort is for queued resources", hint="allocation_mode: queued-resources")
    if spec.valid_for:
        raise UsageError("tpu.valid_for is for queued resources", hint="allocation_mode: queued-resources")


def create_node(intent: Intent) -> Fields:
    """Return the fields of a CreateNodeRequest. Raises UsageError."""
    check_spec(intent.spec)
    return {
        "parent": place_of(intent.project, intent.zone),
        "node_id": intent.name,
        "node": node_fields(intent),
        "request_id": intent.request_id,
    }


def create_queued_resource(intent: Intent) -> Fields:
    """Return the fields of a CreateQueuedResourceRequest."""
    spec, parent = intent.spec, place_of(intent.project, intent.zone)
    which: Fields = {"node_id": intent.name}
    if spec.slices > 1:
        which = {"multi_node_params": {"node_count": spec.slices, "node_id_prefix": intent.name}}
    wanted: Fields = {"tpu": {"node_spec": [{"parent": parent, **which, "node": node_fields(intent)}]}}
    if spec.pricing is Pricing.SPOT:
        wanted["spot"] = {}
    elif spec.pricing is Pricing.BEST_EFFORT:
        wanted["best_effort"] = {}
    elif spec.pricing is Pricing.RESERVED:
        wanted["guaranteed"] = {"reserved": True}
    if spec.reservation:
        wanted["reservation_name"] = spec.reservation
    if spec.valid_for:
        wanted["queueing_policy"] = {"valid_until_duration": {"seconds": int(spec.valid_for)}}
    return {
        "parent": parent,
        "queued_resource_id": intent.name,
        "queued_resource": wanted,
        "request_id": intent.request_id,
    }


def node_fields(intent: Intent) -> Fields:
    """Return the fields of a Node."""
    spec = intent.spec
    found: Fields = {
        "accelerator_type": spec.accelerator,
        "runtime_version": spec.runtime,
        "labels": {**spec.labels, **intent.labels},
        "network_config": _network(spec),
    }
    metadata = {**spec.metadata, **({STARTUP_SCRIPT: spec.startup_script} if spec.startup_script else {})}
    if metadata:
        found["metadata"] = metadata
    if spec.description:
        found["description"] = spec.description
    if spec.tags:
        found["tags"] = list(spec.tags)
    if spec.service_account or spec.scopes:
        found["service_account"] = {"email": spec.service_account, "scope": list(spec.scopes) or [ALL_SCOPES]}
    if spec.data_disks:
        found["data_disks"] = [_disk(disk, intent) for disk in spec.data_disks]
    if spec.autocheckpoint:
        found["autocheckpoint_enabled"] = True
    if scheduling := _scheduling(spec):
        found["scheduling_config"] = scheduling
    return found


def _network(spec: TpuSpec) -> Fields:
    found: Fields = {"enable_external_ips": spec.external_ips}
    if spec.network:
        found["network"] = spec.network
    if spec.subnetwork:
        found["subnetwork"] = spec.subnetwork
    return found


def _scheduling(spec: TpuSpec) -> Fields:
    if spec.pricing is Pricing.SPOT:
        return {"spot": True}
    if spec.pricing is Pricing.PREEMPTIBLE:
        return {"preemptible": True}
    if spec.pricing is Pricing.RESERVED and spec.provision is Provision.TPU_VM:
        return {"reserved": True}
    return {}


def _disk(disk: str, intent: Intent) -> Fields:
    name = disk.removesuffix(READ_ONLY)
    path = name if "/" in name else f"projects/{intent.project}/zones/{intent.zone}/disks/{name}"
    return {"source_disk": path, "mode": "READ_ONLY" if disk.endswith(READ_ONLY) else "READ_WRITE"}
