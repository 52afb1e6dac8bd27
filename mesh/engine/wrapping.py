"""The command line of a host's ranks: the user's words, or a framework's own launcher in front of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping

from msgspec import Struct

from mesh.core.run import MULTI_NODE_ARGS, Launch, RunSpec, visible_devices


class _Place(Struct, frozen=True, kw_only=True):
    """What a launcher must know."""

    hosts: int
    node: int  # 0 .. hosts - 1
    nproc: int  # processes that it starts
    address: str  # of the first host
    port: str
    devices: tuple[str, ...]  # the GPUs that the user has named; (): all


def host_program(spec: RunSpec) -> str:
    """Return the first word of ``host_command``, the same on every host; "" if the run has no command."""
    if spec.launcher is not Launch.NONE:
        return _PROGRAMS[spec.launcher]
    return spec.command[0] if spec.command else ""


def host_command(spec: RunSpec, hosts: int, node: int, env: Mapping[str, str]) -> tuple[str, ...]:
    """The words for execve on one host; the same for all its ranks.

    env: what its first rank gets
    """
    if spec.multi_node:
        context = multi_node_context(hosts, node, env)
        return tuple(context if word == MULTI_NODE_ARGS else word for word in spec.command)
    if spec.launcher is Launch.NONE:
        return spec.command
    place = _Place(
        hosts=hosts,
        node=node,
        nproc=spec.nproc,
        address=env["MASTER_ADDR"],
        port=env["MASTER_PORT"],
        devices=visible_devices(spec.env),
    )
    return (_PROGRAMS[spec.launcher], *_ARGUMENTS[spec.launcher](place), *spec.command)


def multi_node_context(hosts: int, node: int, env: Mapping[str, str]) -> str:
    """What madengine's ``--additional-context`` says of the hosts: a Python literal, as it reads it.

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


def _torchrun(place: _Place) -> list[str]:
    # With underscores every version takes them.
    return [
        f"--nnodes={place.hosts}",
        f"--node_rank={place.node}",
        f"--nproc_per_node={place.nproc}",
        f"--master_addr={place.address}",
        f"--master_port={place.port}",
    ]


def _accelerate(place: _Place) -> list[str]:
    return [
        "launch",
        f"--num_machines={place.hosts}",
        f"--machine_rank={place.node}",
        f"--num_processes={place.hosts * place.nproc}",  # of all machines
        f"--main_process_ip={place.address}",
        f"--main_process_port={place.port}",
    ]


def _deepspeed(place: _Place) -> list[str]:
    # What `deepspeed` itself starts on each host; that one would go over ssh from the first host to the others.
    # It sets CUDA_VISIBLE_DEVICES to these numbers.
    numbers = place.devices[: place.nproc] or range(place.nproc)
    slots = {f"node-{node}": list(numbers) for node in range(place.hosts)}
    return [
        "-m",
        "deepspeed.launcher.launch",
        f"--world_info={base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()}",
        f"--node_rank={place.node}",
        f"--master_addr={place.address}",
        f"--master_port={place.port}",
    ]


_PROGRAMS: Mapping[Launch, str] = {
    Launch.TORCHRUN: "torchrun",
    Launch.ACCELERATE: "accelerate",
    Launch.DEEPSPEED: "python3",
}
_ARGUMENTS: Mapping[Launch, Callable[[_Place], list[str]]] = {
    Launch.TORCHRUN: _torchrun,
    Launch.ACCELERATE: _accelerate,
    Launch.DEEPSPEED: _deepspeed,
}
