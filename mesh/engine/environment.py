"""The variables that mesh sets for the ranks (listed in docs/ranks.md)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.run import VISIBLE_DEVICES, RunSpec, visible_devices
from mesh.engine.slurmenv import slurm_environment


class Rendezvous(Struct, frozen=True, kw_only=True):
    """Addresses and ports at which the ranks meet."""

    addresses: Sequence[str]  # of every host, as the others reach it, in order; spare hosts last
    ports: Sequence[int]  # TCP ports that are kept for the ranks on the first host, as ``ports_wanted`` has them


def ports_wanted(spec: RunSpec, placement: Placement) -> tuple[int, ...]:
    """Return the ports that the ranks need on the first host; 0: any that is free."""
    return (spec.master_port, 0) if len(placement.slices) > 1 else (spec.master_port,)


def host_environment(spec: RunSpec, placement: Placement, rendezvous: Rendezvous, node: int) -> dict[str, str]:
    """Return the variables of a host's first rank; the user's own win over what mesh sets.

    For a host without ranks: those that all ranks share.
    """
    first, port, ranks = rendezvous.addresses[0], rendezvous.ports[0], placement.ranks(node)
    return {
        "WORLD_SIZE": str(placement.world_size),
        **({"LOCAL_WORLD_SIZE": str(len(ranks)), "NODE_RANK": str(node)} if ranks else {}),
        "NNODES": str(placement.count),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(port),
        "JAX_COORDINATOR_ADDRESS": f"[{first}]:{port}" if ":" in first else f"{first}:{port}",
        "JAX_NUM_PROCESSES": str(placement.world_size),
        "MESH_RUN_ID": spec.run,
        "MESH_ATTEMPT": "0",  # nothing is tried a second time yet
        "MESH_HOSTS": ",".join(rendezvous.addresses[: placement.count]),
        "PYTHONUNBUFFERED": "1",
        **_slice_environment(placement, rendezvous, node),
        **(_label_environment(placement, node) if ranks else {}),
        **_group_environment(spec, placement, node),
        **(_first_environment(spec, placement, node) if ranks else {}),
    }


def _first_environment(spec: RunSpec, placement: Placement, node: int) -> dict[str, str]:
    """Return the own variables of a host's first rank that all of its ranks have: the others must not inherit more."""
    ranks = placement.ranks(node)
    first = _own_environment(spec, placement, ranks[0])
    if not _is_shared(placement, node):
        return first
    others = [_own_environment(spec, placement, rank) for rank in ranks[1:]]
    return {name: value for name, value in first.items() if all(name in one for one in others)}


def rank_environment(spec: RunSpec, placement: Placement, rank: int) -> dict[str, str]:
    """Return the variables in which the ranks of one host differ, less what the user has set."""
    place = placement.table[rank]
    of_group = spec.groups[place.group].env if _is_shared(placement, place.node) else {}
    return {**_own_environment(spec, placement, rank), **of_group}


def _own_environment(spec: RunSpec, placement: Placement, rank: int) -> dict[str, str]:
    """Return the same without the variables that the user has set for a group."""
    place = placement.table[rank]
    group = spec.groups[place.group]
    local, env = place.local, group.env
    own = {"RANK": str(rank), "LOCAL_RANK": str(local), "JAX_PROCESS_ID": str(rank)}
    if placement.label(rank):
        own["MESH_GROUP_RANK"] = str(place.index)
        if _is_shared(placement, place.node):
            own["MESH_LABEL"] = placement.label(rank)
    if group.is_node:
        own |= {"MESH_LABEL": placement.role(rank), "MESH_PROGRAM": spec.name}
    if group.devices and group.devices[place.index]:
        own |= dict.fromkeys(VISIBLE_DEVICES, group.devices[place.index])
    if placement.slices:
        own["WORKER_ID"] = str(placement.worker(rank)[1])
    if spec.rules.slurm_env:
        own |= slurm_environment(placement, rank)
    own = {name: value for name, value in own.items() if name not in env}
    if spec.bind:  # the user's own list names the devices to bind to
        devices = visible_devices(env)
        own |= dict.fromkeys(VISIBLE_DEVICES, devices[local] if devices else str(local))
    return own


def _is_shared(placement: Placement, node: int) -> bool:
    """Return True if a host has ranks of several groups, whose variables are then those of each rank."""
    return len(placement.groups(node)) > 1


def _group_environment(spec: RunSpec, placement: Placement, node: int) -> dict[str, str]:
    """Return the variables that the user has set for all ranks of a host; on a spare one, for all of the run."""
    if _is_shared(placement, node):
        return {}
    first, *others = [spec.groups[number].env for number in placement.groups(node) or range(len(spec.groups))]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _label_environment(placement: Placement, node: int) -> dict[str, str]:
    label = placement.labels[placement.group(node)]
    return {"MESH_LABEL": label} if label else {}


def _slice_environment(placement: Placement, rendezvous: Rendezvous, node: int) -> dict[str, str]:
    if not placement.slices:
        return {}
    number, _ = placement.worker(placement.first(node))
    if len(placement.slices) == 1:  # its chips reach each other without Megascale
        return {"SLICE_ID": str(number)}
    return {
        "SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": rendezvous.addresses[0],
        "MEGASCALE_PORT": str(rendezvous.ports[1]),
        "MEGASCALE_NUM_SLICES": str(len(placement.slices)),
        "MEGASCALE_SLICE_ID": str(number),
    }
