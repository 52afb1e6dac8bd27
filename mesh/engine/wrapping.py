"""The command line of a host's ranks: the user's words, or a framework's own launcher in front of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping

from msgspec import Struct

from mesh.core.cluster import Placement
from mesh.core.run import MULTI_NODE_ARGS, Launch, RunSpec, visible_devices


class _Job(Struct, frozen=True, kw_only=True):
    """The hosts and processes that a framework's launcher gets by its options."""

    node: int  # 0 .. hosts - 1
    nprocs: tuple[int, ...]  # processes that it starts on each host
    address: str  # of the first host
    port: str
    devices: tuple[str, ...]  # the GPUs that the user has named; (): all


def host_program(spec: RunSpec, placement: Placement, node: int) -> str:
    """Return the first word of ``host_command``; "" if the run has no command."""
    if spec.launcher is not Launch.NONE:
        return _PROGRAMS[spec.launcher]
    command = spec.groups[placement.group(node)].command
    return command[0] if command else ""


def host_command(spec: RunSpec, placement: Placement, node: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words for execve on one host, the same for all its ranks.

    env: of its first rank
    """
    hosts, group = placement.count, spec.groups[placement.group(node)]
    if spec.multi_node:
        context = multi_node_context(hosts, node, env)
        return tuple(context if word == MULTI_NODE_ARGS else word for word in group.command)
    if spec.launcher is Launch.NONE:
        return group.command
    job = _Job(
        node=node,
        nprocs=tuple(spec.groups[placement.group(other)].nproc for other in range(hosts)),
        address=env["MASTER_ADDR"],
        port=env["MASTER_PORT"],
        devices=visible_devices(group.env),
    )
    return (_PROGRAMS[spec.launcher], *_ARGUMENTS[spec.launcher](job), *group.command)


def rank_command(spec: RunSpec, placement: Placement, rank: int) -> tuple[str, ...]:
    """Return the words for execve of a rank whose group is not that of its host's first rank; () for all others."""
    place = placement.table[rank]
    return spec.groups[place.group].command if place.group != placement.group(place.node) else ()


def multi_node_context(hosts: int, node: int, env: Mapping[str, str]) -> str:
    """Return the hosts for madengine's ``--additional-context``, as a Python literal.

    env: as in host_command
    """
    told = {
        "RUNNER": "torchrun",
        "MASTER_ADDR": env["MASTER_ADDR"],
        "MASTER_PORT": env["MASTER_PORT"],
        "NNODES": str(hosts),
        "NODE_RANK": str(node),
        # Where no way to rank 0 was found they are empty, which NCCL and gloo take for none.
        "NCCL_SOCKET_IFNAME": env.get("NCCL_SOCKET_IFNAME", ""),
        "GLOO_SOCKET_IFNAME": env.get("GLOO_SOCKET_IFNAME", ""),
    }
    return repr({"multi_node_args": told})


def _torchrun(job: _Job) -> list[str]:
    # With underscores every version takes them.
    return [
        f"--nnodes={len(job.nprocs)}",
        f"--node_rank={job.node}",
        f"--nproc_per_node={job.nprocs[job.node]}",
        f"--master_addr={job.address}",
        f"--master_port={job.port}",
    ]


def _accelerate(job: _Job) -> list[str]:
    return [
        "launch",
        f"--num_machines={len(job.nprocs)}",
        f"--machine_rank={job.node}",
        f"--num_processes={sum(job.nprocs)}",  # of all machines
        f"--main_process_ip={job.address}",
        f"--main_process_port={job.port}",
    ]


def _deepspeed(job: _Job) -> list[str]:
    # `deepspeed` itself would go over ssh from the first host to the others, and starts this on each host.
    # It sets CUDA_VISIBLE_DEVICES to these numbers.
    slots = {f"node-{node}": list(job.devices[:nproc] or range(nproc)) for node, nproc in enumerate(job.nprocs)}
    return [
        "-m",
        "deepspeed.launcher.launch",
        f"--world_info={base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()}",
        f"--node_rank={job.node}",
        f"--master_addr={job.address}",
        f"--master_port={job.port}",
    ]


_PROGRAMS: Mapping[Launch, str] = {
    Launch.TORCHRUN: "torchrun",
    Launch.ACCELERATE: "accelerate",
    Launch.DEEPSPEED: "python3",
}
_ARGUMENTS: Mapping[Launch, Callable[[_Job], list[str]]] = {
    Launch.TORCHRUN: _torchrun,
    Launch.ACCELERATE: _accelerate,
    Launch.DEEPSPEED: _deepspeed,
}
