"""What mesh tells the ranks through their environment (README, "What every rank knows")."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.cluster import Placement
from mesh.core.run import RunSpec


def host_environment(
    spec: RunSpec, placement: Placement, addresses: Sequence[str], master_port: int, node: int
) -> dict[str, str]:
    """The variables of a host's first rank; the user's own win over what mesh sets.

    addresses: of every host, as the others reach it, in order
    master_port: a TCP port that was free on the first host
    """
    return {
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_WORLD_SIZE": str(placement.nproc),
        "NODE_RANK": str(node),
        "NNODES": str(len(placement.hosts)),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(master_port),
        "MESH_RUN_ID": spec.run,
        "MESH_HOSTS": ",".join(addresses),
        "PYTHONUNBUFFERED": "1",
        **rank_environment(placement, placement.ranks(node)[0]),
        **spec.env,
    }


def rank_environment(placement: Placement, rank: int) -> dict[str, str]:
    """The variables in which the ranks of one host differ."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank % placement.nproc)}
