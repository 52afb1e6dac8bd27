"""Requests to an agent, made from the spec of a run."""

from __future__ import annotations

from msgspec.structs import asdict

from mesh.core.interfaces import Announces
from mesh.engine.environment import ports_wanted
from mesh.engine.programs import nodes_of
from mesh.engine.run import Run
from mesh.engine.wrapping import host_program
from mesh.protocol.first import Begin
from mesh.protocol.requests import Finds, Prepare, PrerunEntry
from mesh.remote.blob import library
from mesh.remote.greeting import new_marker
from mesh.remote.programs import program_library

DEVICES_FREE_LIMIT_S = 30.0  # for a host's devices to be free again after a run


def begin_request(run: Run, node: int) -> Begin:
    """Return the first request to a host's agent."""
    spec, cluster, owner = run.spec, run.cluster, run.local.owner
    rules = {name: value for name, value in asdict(spec.rules).items() if name in Begin.FIELDS}
    return Begin(
        marker=new_marker(),
        run=spec.run,
        node=node,
        remote_dir=run.placement.hosts[node].remote_dir or cluster.remote_dir,
        project=spec.project,
        about=owner,
        owner=owner if spec.lock else None,
        lock=run.decider.locks_at_once(node),
        announce=spec.is_announced,
        exclusive=spec.exclusive,
        share=spec.share,
        existing=spec.existing,
        workspace_links=cluster.workspace_links,
        needs_home=spec.needs_home,
        stacks=spec.stacks,
        devices=cluster.devices,
        device_patience=DEVICES_FREE_LIMIT_S,
        return_within=run.backend.client_return,
        ports=() if node else ports_wanted(spec, run.placement),
        plan=run.local.plan,
        nodes=nodes_of(run, node),
        node_ports=cluster.ports,
        program=spec.is_program and run.local.have is None,
        term_limit=run.backend.term_limit if isinstance(run.backend, Announces) else 0.0,
        tied=spec.tied,
        **rules,
    )


def prepare_request(run: Run, node: int, finds: Finds) -> Prepare:
    """Return the request to prepare a host. finds: the environment of prerun, which is the first rank's"""
    spec, program = run.spec, host_program(run.spec, run.placement, node)
    return Prepare(
        finds=finds,
        prerun=[PrerunEntry(run=entry.run, inputs=entry.inputs, module=entry.module) for entry in spec.prerun],
        force=spec.force,
        claim=spec.claim,
        evict=spec.evict,
        program=run.preparation.wrapped([program])[0] if program else "",
    )


def library_of(run: Run) -> bytes:
    """Return what Python programs of the run may import: ``meshrun``, and for a program ``mesh.program``; b"": none."""
    if run.spec.is_program:
        return program_library()
    return library() if run.spec.has_command else b""


def early_finds(run: Run, node: int) -> Finds:
    """Return enough to find a named interface and the command on PATH, before all hosts have answered."""
    env = run.spec.groups[run.placement.group(node)].env
    return Finds(env=env, interface=run.cluster.interface, targets=[])
