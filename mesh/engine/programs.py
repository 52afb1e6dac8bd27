"""Requests about the nodes of a program, made from its spec and from the answers of its hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mesh.core.errors import MeshError
from mesh.core.events import Locked
from mesh.engine.run import Run
from mesh.protocol.nodes import Node, NodeAddress


def nodes_of(run: Run, node: int) -> list[Node]:
    """Return the ranks of a host that are nodes, as its agent treats them; none where the run is attached to."""
    found, placement = [], run.placement
    for rank in placement.ranks(node) if run.spec.is_program and run.local.have is None else ():
        group = run.spec.groups[placement.table[rank].group]
        if group.is_node:
            about = Node(
                rank=rank,
                label=placement.role(rank),
                sockets=group.sockets,
                remote=len(placement.hosts) > 1,
                payload=_payload(run, rank),
                may_fail=group.may_fail,
                restarts=group.restarts,
                ends_run=group.ends_run,
            )
            found.append(about)
    return found


def address_book(run: Run, locked: Mapping[int, Locked], address_of: Callable[[int], str]) -> list[NodeAddress]:
    """Return the addresses of all nodes. address_of: a host as the others reach it"""
    placement = run.placement
    sockets = {one.rank: one for host in locked.values() for one in host.sockets}
    book = []
    for rank in range(placement.world_size):
        group, found, node = run.spec.groups[placement.table[rank].group], sockets.get(rank), placement.node(rank)
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
    """Return the payloads that nodes of a host have, by their hashes. Raises MeshError for one that is missing."""
    wanted = {_payload(run, rank) for rank in run.placement.ranks(node)} - {""}
    if missing := wanted - run.local.payloads.keys():
        raise MeshError(f"the payload {min(missing)} of a node is not here")
    return {name: run.local.payloads[name] for name in sorted(wanted)}


def _payload(run: Run, rank: int) -> str:
    """Return the hash of a rank's payload; "" for none."""
    place = run.placement.table[rank]
    payloads = run.spec.groups[place.group].payloads
    return payloads[place.index] if payloads else ""
