"""TPU nodes in the API's answers, and their hosts. Pure."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from mesh.config.tpu import TpuName
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import MeshError
from mesh.hosts.tpu.gcloud import Zone

READY = "READY"
SHOWN_NAMES = 8
# Advice about a node, by its state (google.cloud.tpu_v2.Node.State).
_LATER = "wait until {name} is READY: `gcloud compute tpus tpu-vm list --zone {zone} --project {project}` shows it"
_GONE = "{name} does not come back by itself: delete it and create it anew, or have its queued resource do so"
_ADVICE = {
    "PREEMPTED": _GONE,
    "TERMINATED": _GONE,
    "DELETING": _GONE,
    "STOPPED": "start {name}: gcloud compute tpus tpu-vm start {name} --zone {zone} --project {project}",
}


class Worker(Struct, frozen=True, kw_only=True):
    """Machine of a node."""

    internal: str  # its address in its network
    external: str = ""  # its address for all others; "": it has none
    instance: str = ""  # what it is called as a virtual machine; "": nobody has asked


class TpuNode(Struct, frozen=True, kw_only=True):
    """TPU, that is a slice, with its machines in the order of their worker numbers."""

    name: str
    state: str  # as the API calls it
    workers: tuple[Worker, ...]
    id: str = ""  # that no other one has had; "": none
    os_login: bool = False  # who logs in is asked of OS Login, and metadata holds no keys


def tpu_of(cluster: Cluster) -> TpuName:
    """Return the name of the TPUs that a cluster consists of."""
    if not isinstance(cluster.source, TpuName):
        raise TypeError(cluster.source)
    return cluster.source


def matching(nodes: Sequence[TpuNode], tpu: TpuName, zone: Zone) -> tuple[TpuNode, ...]:
    """Return the nodes that a name means, in order: the one so called, else PREFIX-0, PREFIX-1, ... by number.

    Raises MeshError if there are none, or two of one number.
    """
    exact = tuple(node for node in nodes if node.name == tpu.name)
    if exact:
        return exact[:1]
    numbered = re.compile(re.escape(tpu.name) + "-([0-9]+)")
    found = {node.name: int(match[1]) for node in nodes if tpu.is_prefix and (match := numbered.fullmatch(node.name))}
    if not found:
        wanted = f"{tpu.name} or {tpu.name}-NUMBER" if tpu.is_prefix else tpu.name
        raise MeshError(f"there is no TPU {wanted} in {zone}", hint=_others(nodes, tpu, zone))
    ordered = sorted((node for node in nodes if node.name in found), key=lambda node: (found[node.name], node.name))
    for one, other in itertools.pairwise(ordered):
        if found[one.name] == found[other.name]:
            both = f"{one.name} and {other.name} are both number {found[one.name]} of {tpu.name}"
            raise MeshError(both, hint="name one of them: name: below tpu:, or --TPU_PREFIX with its whole name")
    return tuple(ordered)


def _others(nodes: Sequence[TpuNode], tpu: TpuName, zone: Zone) -> str:
    names = sorted(node.name for node in nodes)
    near = difflib.get_close_matches(tpu.name, names, n=SHOWN_NAMES, cutoff=0.6) or names
    if not near:
        listing = shlex.join(["gcloud", "compute", "tpus", "tpu-vm", "list", "--zone", "-", "--project", zone.project])
        return f"it has no TPU at all; all zones: {listing}"
    more = f" and {len(names) - SHOWN_NAMES} more" if len(near) == len(names) > SHOWN_NAMES else ""
    return f"there are {', '.join(near[:SHOWN_NAMES])}{more}"


def gaps(nodes: Sequence[TpuNode]) -> list[str]:
    """Return the names that are missing between the first and the last number, or as many as are ever shown.

    >>> gaps([TpuNode(name=f"pod-{number}", state=READY, workers=()) for number in (1, 2, 5)])
    ['pod-3', 'pod-4']
    >>> len(gaps([TpuNode(name=f"pod-{number}", state=READY, workers=()) for number in (0, 20240206123456)]))
    9
    """
    prefix = nodes[0].name.rpartition("-")[0] if nodes else ""
    numbers = [int(node.name.rpartition("-")[2]) for node in nodes] if len(nodes) > 1 else []
    missing = (number for low, high in itertools.pairwise(numbers) for number in range(low + 1, high))
    return [f"{prefix}-{number}" for number in itertools.islice(missing, SHOWN_NAMES + 1)]


def with_nodes(
    cluster: Cluster, nodes: Sequence[TpuNode], zone: Zone, *, key: str, is_google: bool, all_ready: bool = True
) -> Cluster:
    """Return the cluster of a TPU with the hosts of its nodes, each node a slice.

    key: the private key for hosts that have no other, a path; "": none
    is_google: this machine is one of Google Cloud, and reaches their internal addresses
    all_ready: refuse nodes that are not; else take those of their machines that have an address
    Raises MeshError.
    """
    tpu = tpu_of(cluster)
    bad = [node for node in nodes if node.state != READY or not node.workers]
    if bad and all_ready:
        raise MeshError("\n".join(_complaint(node) for node in bad), hint=_advice(bad[0], zone))
    able = [node for node in nodes if node.workers]
    if not able:
        raise MeshError("\n".join(_complaint(node) for node in nodes), hint=_advice(nodes[0], zone))
    hosts = [_host(node, number, tpu, zone, key, is_google) for node in able for number in range(len(node.workers))]
    return replace(cluster, hosts=tuple(hosts), slices=tuple(len(node.workers) for node in able))


def _complaint(node: TpuNode) -> str:
    if node.state != READY:
        return f"TPU {node.name} is {node.state}, not {READY}"
    return f"TPU {node.name} is {READY}, but the API lists no address for some of its machines"


def _advice(node: TpuNode, zone: Zone) -> str:
    return _ADVICE.get(node.state, _LATER).format(name=node.name, zone=zone.zone, project=zone.project)


def _host(node: TpuNode, number: int, tpu: TpuName, zone: Zone, key: str, is_google: bool) -> Host:
    worker, like = node.workers[number], tpu.like
    identity = like.identity_file or key
    return replace(
        like,
        name=f"{node.name}-w{number}",
        address=_address(node, worker, tpu, is_google),
        identity_file=identity,
        internal_ip=worker.internal,
        # Another TPU may have had this address: it is no other key of the same host.
        key_alias=f"tpu.{node.id}-{number}" if node.id else "",
        slice_index=number,
        proxy_command=_tunnel(worker.instance, zone) if tpu.iap else "",
        hints={"login": _about_keys(node, like.user, identity, zone), **_about_way(tpu, worker)},
    )


def _address(node: TpuNode, worker: Worker, tpu: TpuName, is_google: bool) -> str:
    """Return the address to connect to. Raises MeshError if there is none of the kind that was chosen."""
    if tpu.iap or tpu.internal_ip == "true" or (tpu.internal_ip == "auto" and (is_google or not worker.external)):
        return worker.internal
    if not worker.external:
        hint = "internal_ip: true if this machine is in its network, or iap: true"
        raise MeshError(f"TPU {node.name} has no external address, and internal_ip is false", hint=hint)
    return worker.external


def _tunnel(instance: str, zone: Zone) -> str:
    words = ["gcloud", "compute", "start-iap-tunnel", instance, "%p", "--listen-on-stdin"]
    return shlex.join([*words, f"--project={zone.project}", f"--zone={zone.zone}", "--verbosity=warning"])


def _about_way(tpu: TpuName, worker: Worker) -> dict[str, str]:
    if tpu.iap:
        return {"reach": "the firewall must let IAP (35.235.240.0/20) reach port 22 there"}
    if tpu.internal_ip == "auto" and not worker.external:
        return {"reach": "it has no external address: is this machine in its network? Else iap: true below tpu:"}
    return {"reach": "is internal_ip right? It is true for machines in the TPU's network, false for all others"}


def _about_keys(node: TpuNode, user: str, key: str, zone: Zone) -> str:
    """Return the commands that put the key there. The user runs them, as the key then opens the host."""
    if node.os_login:
        key = key or "KEY"
        add = shlex.join(["gcloud", "compute", "os-login", "ssh-keys", "add", f"--key-file={key}.pub"])
        return f"if OS Login has no such key: {add}\nyour name there: gcloud compute os-login describe-profile"
    target = f"{user}@{node.name}" if user else node.name
    words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", target, f"--zone={zone.zone}", f"--project={zone.project}"]
    words += [f"--ssh-key-file={key}"] if key else []
    command = shlex.join([*words, "--command=true"])
    return f"if its project has no such key, this puts it into the TPU's metadata:\n{command}"
