"""Requests about the nodes of a program, made from its spec and from the answers of its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mesh.core.errors import MeshError
from mesh.core.events import Locked
from mesh.core.nodes import Adopted
from mesh.core.run import Group
from mesh.engine.run import Run
from mesh.protocol.nodes import Node, NodeAddress

NONE_ADOPTED: Mapping[int, Adopted] = {}


def nodes_of(run: Run, node: int) -> list[Node]:
    """Return the ranks of a host that are nodes, as its agent treats them; none where the run is attached to."""
    ranks = run.placement.ranks(node) if run.spec.is_program and run.local.have is None else ()
    return [node_of(run, rank) for rank in ranks if _group(run, rank).is_node]


def node_of(run: Run, rank: int) -> Node:
    """Return a rank that is a node, as its agent treats it."""
    group = _group(run, rank)
    return Node(
        rank=rank,
        label=run.placement.role(rank),
        sockets=group.sockets,
        remote=len(run.placement.hosts) > 1,
        payload=_payload(run, rank),
        may_fail=group.may_fail,
        restarts=group.restarts,
        ends_run=group.ends_run,
    )


def address_book(
    run: Run,
    locked: Mapping[int, Locked],
    address_of: Callable[[int], str],
    adopted: Mapping[int, Adopted] = NONE_ADOPTED,
) -> list[NodeAddress]:
    """Return the addresses of all nodes.

    address_of: a host as the others reach it; adopted: nodes that have moved to another host, by rank
    """
    placement = run.placement
    sockets = {one.rank: one for host in locked.values() for one in host.sockets}
    sockets |= {rank: one.sockets for rank, one in adopted.items()}
    book = []
    for rank in range(placement.world_size):
        group, found = _group(run, rank), sockets.get(rank)
        node = adopted[rank].node if rank in adopted else placement.node(rank)
        if group.is_node:
            address = NodeAddress(
                label=placement.role(rank),
                host=node,
                address=address_of(node),
                unix=found.unix if found else "",
                remote=len(placement.hosts) > 1,
                ports=found.ports if found else (),
                serves=group.serves,
            )
            book.append(address)
    return book


def payloads_of(run: Run, node: int) -> dict[str, bytes]:
    """Return the payloads that nodes of a host have, by their hashes. Raises MeshError for one that is missing.

    A spare host has those of all nodes, because any of them may move there.
    """
    placement = run.placement
    wanted = {_payload(run, rank) for rank in placement.ranks(node) or range(placement.world_size)} - {""}
    if missing := wanted - run.local.payloads.keys():
        raise MeshError(f"the payload {min(missing)} of a node is not here")
    return {name: run.local.payloads[name] for name in sorted(wanted)}


def _group(run: Run, rank: int) -> Group:
    return run.spec.groups[run.placement.table[rank].group]


def _payload(run: Run, rank: int) -> str:
    """Return the hash of a rank's payload; "" for none."""
    place = run.placement.table[rank]
    payloads = run.spec.groups[place.group].payloads
    return payloads[place.index] if payloads else ""
