"""The machines that `tpu:` of a job file or of cluster.yaml asks Google Cloud for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

MAKE_FOR_S = 3600.0  # from the request's grant until every machine must be ready; then it is given back


class Provision(Enum):
    """The call of the API that makes the machines."""

    TPU_VM = "tpu-vm"  # a node, made at once or refused
    QUEUED_RESOURCES = "queued-resources"  # a request that waits in Google's queue


class Pricing(Enum):
    """The terms on which machines are had."""

    ONDEMAND = "ondemand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"
    BEST_EFFORT = "best-effort"


class TpuSpec(Struct, frozen=True, kw_only=True):
    """A TPU that is to be made: one generation of machines is one request for it."""

    accelerator: str  # as the API names it: v6e-32
    runtime: str  # the software version of the machines: tpu-ubuntu2204-base
    zones: tuple[str, ...]  # tried in order
    project: str = ""  # "": gcloud's
    provision: Provision = Provision.QUEUED_RESOURCES
    pricing: Pricing = Pricing.ONDEMAND
    slices: int = 1
    reservation: str = ""
    prefix: str = ""  # JOBMAN's `tpu.name`: names of machines begin with it; "": with the name of the job
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""
    scopes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    startup_script: str = ""  # its text, not its path
    data_disks: tuple[str, ...] = ()  # names of persistent disks, each with ":read-only" behind it where it is
    autocheckpoint: bool = False
    description: str = ""
    valid_for: float = 0.0  # seconds that the request may wait in Google's queue; 0: for ever
    make_for: float = MAKE_FOR_S
    keep: float = 0.0  # seconds that the machines wait for the next job of the same kind and user at the end
