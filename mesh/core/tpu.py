"""The machines that `tpu:` of a job file or of cluster.yaml asks Google Cloud for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field

POD_HOST_CHIPS = 4  # of a host that is part of a slice of several
# Families as accelerators name them: the kind of their chips, what the number counts for one chip (v2 to v5p count
# cores), and the most chips of a slice that is one host.
FAMILIES: Mapping[str, tuple[str, int, int]] = {
    "v2": ("v2", 2, 4),
    "v3": ("v3", 2, 4),
    "v4": ("v4", 2, 4),
    "v5p": ("v5p", 2, 4),
    "v5litepod": ("v5e", 1, 8),
    "v5e": ("v5e", 1, 8),
    "v6e": ("v6e", 1, 8),
}
REPAIR_FOR_S = 1800.0  # for machines that the API has repaired, or calls unhealthy
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


class Recreate(Enum):
    """The time at which other machines are asked for after a loss."""

    WAIT = "wait"  # once the lost ones are gone
    EAGER = "eager"  # at once


class Accelerator(Struct, frozen=True, kw_only=True):
    """The size of one slice of an accelerator."""

    kind: str  # of its chips: v5e
    chips: int  # 0: its name has no number
    hosts: int  # as far as the table has it, else 0; the API's answer is what counts


def accelerator_of(name: str) -> Accelerator:
    """Return the chips of an accelerator, by its name in the API.

    >>> accelerator_of("v4-16")
    Accelerator(kind='v4', chips=8, hosts=2)
    >>> accelerator_of("v5litepod-8"), accelerator_of("v9x-32")
    (Accelerator(kind='v5e', chips=8, hosts=1), Accelerator(kind='v9x', chips=32, hosts=0))
    """
    family, _, number = name.partition("-")
    if not (number.isascii() and number.isdecimal()):
        return Accelerator(kind=family, chips=0, hosts=0)
    kind, counted, alone = FAMILIES.get(family, (family, 1, 0))
    chips = max(1, int(number) // counted)
    if family not in FAMILIES:
        return Accelerator(kind=kind, chips=chips, hosts=0)
    return Accelerator(kind=kind, chips=chips, hosts=1 if chips <= alone else -(-chips // POD_HOST_CHIPS))


def kind_of(accelerator: str) -> str:
    """Return the kind of an accelerator's chips.

    >>> kind_of("v5litepod-16"), kind_of("v6e-8")
    ('v5e', 'v6e')
    """
    return accelerator_of(accelerator).kind


def quota_pool(kind: str, zone: str, pricing: str) -> str:
    """Return the name of a quota.

    >>> quota_pool("v6e", "us-east1-d", "spot")
    'v6e/us-east1-d/spot'
    """
    return f"{kind}/{zone}/{pricing}"


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
    user: str = ""  # who logs in; "": ssh_config's, else the local user
    identity_file: str = ""  # "": gcloud's key where there is one
    internal_ip: str = "auto"  # of a cluster's `tpu:`: auto, true or false
    iap: bool = False  # connections go through Google's Identity-Aware Proxy
    valid_for: float = 0.0  # seconds that the request may wait in Google's queue; 0: for ever
    make_for: float = MAKE_FOR_S
    recreate: Recreate = Recreate.WAIT
    unreachable_for: float = 0.0  # seconds of silence of hosts that are READY, after which they are lost; 0: never
    probe: str = ""  # HOST[:PORT] of an SSH server elsewhere, without whose answer silence does not count
    repair_for: float = REPAIR_FOR_S
    keep: float = 0.0  # seconds that machines stay for the next job of the same kind at the end; 0: they are deleted

    @property
    def chips(self) -> int:
        """The number of chips of all slices."""
        return accelerator_of(self.accelerator).chips * self.slices

    @property
    def kind(self) -> str:
        """The kind of the chips, as "v5e"."""
        return kind_of(self.accelerator)

    def pool(self, zone: str) -> str:
        """Return the quota that machines of this request use in a zone."""
        return quota_pool(self.kind, zone, self.pricing.value)
