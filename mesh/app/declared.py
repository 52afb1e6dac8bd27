"""The plan of a run that no client begins: what pods of a declared job send to their agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mesh.agent.declared.plan import ADDRESS, ATTEMPT, FORMAT_VERSION, HOST, RUN, VARIABLE
from mesh.app.assemble import placed
from mesh.app.owner import owner_of
from mesh.core.cluster import Cluster, Host, Placement
from mesh.core.errors import UsageError
from mesh.core.run import RunSpec
from mesh.engine.environment import Rendezvous, host_environment, rank_environment
from mesh.engine.requests import DEVICES_FREE_LIMIT_S
from mesh.engine.wrapping import host_command, host_program, rank_command
from mesh.protocol.first import Begin
from mesh.protocol.messages import Message
from mesh.protocol.requests import Finds as Found
from mesh.protocol.requests import Prepare, PrerunEntry, RankStart
from mesh.rundir.about import describe

CLIENT_RETURN_S = 30.0  # as with pods that a client uses
MASTER_PORT = 29500  # of the first pod, where nothing else listens
MEETING_PORT = 7744  # of the first pod, where all others connect
PLAN_BYTES = 900_000  # an object of Kubernetes has at most 1 MiB
PLANNED_FIELDS = ("marker", "node")  # that each pod sets itself


def declared_hosts(nodes: int) -> tuple[Host, ...]:
    """Return the pods of a declared job as hosts, with places for their names and addresses."""
    return tuple(Host(name=HOST.format(node), address=ADDRESS.format(node)) for node in range(nodes))


def without_values(spec: RunSpec, names: Sequence[str]) -> RunSpec:
    """Return a spec with places for the values of these variables, which a Secret has; they may have none here."""
    hidden = {name: VARIABLE.format(name) for name in names}
    return replace(spec, groups=tuple(replace(one, env={**one.env, **hidden}) for one in spec.groups))


def plan_of(
    spec: RunSpec, cluster: Cluster, place: str, *, meeting_port: int = MEETING_PORT, limit: int = PLAN_BYTES
) -> Mapping[str, object]:
    """Return the plan of a run on the pods of a job. Raises UsageError if an object of Kubernetes cannot hold it.

    spec: with places for secret values; cluster: with ``declared_hosts``; place: what begins it, for people
    meeting_port: of the first pod, where the others connect; limit: bytes that the plan may have
    """
    port = spec.master_port or MASTER_PORT
    spec = replace(spec, run=RUN, detach=True, master_port=port)
    placement = placed(spec, cluster)
    slices = len(placement.slices)
    ports = (port, port + 1) if slices > 1 else (port,)
    pods, environments = [], [_environment(spec, placement, ports, node) for node in range(placement.count)]
    first = environments[0]
    common = {name: value for name, value in first.items() if all(one.get(name) == value for one in environments)}
    for node, env in enumerate(environments):
        own = {name: value for name, value in env.items() if name not in common}
        second = [ADDRESS.format(1)] if not node and placement.count > 1 else []
        pods.append(
            {
                "env": own,
                "targets": [env["MASTER_ADDR"], *second],
                "argv": list(host_command(spec, placement, node, env)),
                "ranks": [_header(_rank(spec, placement, rank)) for rank in placement.ranks(node)],
                "prepare": {"program": host_program(spec, placement, node)},
            }
        )
    prepare = Prepare(
        finds=Found(env={}, interface="", targets=[]),
        prerun=[PrerunEntry(run=one.run, inputs=one.inputs, module=one.module) for one in spec.prerun],
        force=spec.force,
        claim=spec.claim,
        evict=False,
        program="",
    )
    plan = {
        "format": FORMAT_VERSION,
        "port": meeting_port,
        "python": cluster.python,
        "nodes": placement.count,
        "per_slice": placement.count // max(1, slices),
        "host_grace": spec.rules.host_grace,
        "introduce": placement.count > 1 and not spec.rules.keep_going,
        "interface": cluster.interface,
        "begin": _begin(spec, cluster, placement, ports, place),
        "prepare": _header(prepare),
        "env": common,
        "pods": pods,
    }
    size = len(json.dumps(plan))
    if size > limit:
        raise UsageError(
            f"{cluster.name}: the plan of {placement.count} pods has {size} bytes, and a ConfigMap takes {limit}",
            hint="a declared job has room for some hundreds of pods with a short command",
        )
    return plan


def _environment(spec: RunSpec, placement: Placement, ports: Sequence[int], node: int) -> dict[str, str]:
    addresses = [ADDRESS.format(one) for one in range(placement.count)]
    env = host_environment(spec, placement, Rendezvous(addresses=addresses, ports=ports), node)
    return {**env, "MESH_ATTEMPT": ATTEMPT}


def _rank(spec: RunSpec, placement: Placement, rank: int) -> RankStart:
    env, argv = rank_environment(spec, placement, rank), rank_command(spec, placement, rank)
    return RankStart(rank=rank, env=env, stdin=False, argv=argv)


def _begin(
    spec: RunSpec, cluster: Cluster, placement: Placement, ports: Sequence[int], place: str
) -> Mapping[str, object]:
    """Return the first request to each agent, without what its pod sets."""
    made = {"machine": place, "boot": "", "start": "", "pid": None, "since": 0.0}
    owner = {**owner_of(spec, cluster), **made}
    rules = {name: getattr(spec.rules, name) for name in type(spec.rules).__struct_fields__ if name in Begin.FIELDS}
    begin = Begin(
        marker="",
        run=spec.run,
        node=0,
        remote_dir=cluster.remote_dir,
        project=spec.project,
        about=owner,
        owner=owner if spec.lock else None,
        lock=True,
        announce=False,
        exclusive=False,
        share=False,
        existing=spec.existing,
        workspace_links=False,
        needs_home=spec.needs_home,
        stacks=spec.stacks,
        devices=cluster.devices,
        device_patience=DEVICES_FREE_LIMIT_S,
        return_within=CLIENT_RETURN_S,
        ports=ports,
        plan={**describe(spec, cluster.name, placement), "created": 0.0},
        **rules,
    )
    return {name: value for name, value in _header(begin).items() if name not in PLANNED_FIELDS}


def _header(message: object) -> dict[str, object]:
    """Return a message or a record as JSON has it."""
    from mesh.protocol.records import plain

    if isinstance(message, Message):
        return {name: plain(value) for name, value in message.header().items()}
    found = plain(message)
    assert isinstance(found, dict)
    return found
