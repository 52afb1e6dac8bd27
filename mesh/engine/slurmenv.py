"""Variables of Slurm for programs that want them: a set of each rank that is complete and fits mesh's own."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.core.cluster import Placement


def slurm_environment(placement: Placement, rank: int) -> dict[str, str]:
    """Return the variables that srun would set, were each rank one of its tasks. SLURM_JOB_ID is not among them."""
    place, hosts = placement.table[rank], placement.hosts
    nodes, count = ",".join(host.name for host in hosts), str(len(hosts))
    tasks = tasks_per_node([len(placement.ranks(node)) for node in range(len(hosts))])
    size = str(placement.world_size)
    return {
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"), nodes),
        **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES"), count),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), size),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), tasks),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(place.local),
        "SLURM_NODEID": str(place.node),
        "SLURMD_NODENAME": hosts[place.node].name,
        "SLURM_STEP_ID": "0",
    }


def tasks_per_node(counts: Sequence[int]) -> str:
    """Return how many tasks each node has, as Slurm writes it.

    >>> tasks_per_node([8, 8, 8, 2]), tasks_per_node([1])
    ('8(x3),2', '1')
    """
    groups: list[list[int]] = []
    for count in counts:
        if groups and groups[-1][0] == count:
            groups[-1][1] += 1
        else:
            groups.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
