"""Requests to an agent, made from the spec of a run."""

from __future__ import annotations

from mesh.engine.environment import ports_wanted
from mesh.engine.run import Run
from mesh.engine.wrapping import host_program
from mesh.remote.begin import Begin, Finds, Preparation
from mesh.remote.blob import library

DEVICES_FREE_LIMIT_S = 30.0  # for a host's devices to be free again after a run


def begin_request(run: Run, node: int) -> Begin:
    """Return the first request to a host's agent."""
    spec, cluster, owner = run.spec, run.cluster, run.local.owner
    return Begin(
        run=spec.run,
        project=spec.project,
        remote_dir=run.placement.hosts[node].remote_dir or cluster.remote_dir,
        about=owner,
        owner=owner if spec.lock else None,
        lock=run.decider.locks_at_once(node),
        node=node,
        announce=spec.is_announced,
        exclusive=spec.exclusive,
        share=spec.share,
        existing=spec.existing,
        workspace_links=cluster.workspace_links,
        needs_home=spec.needs_home,
        devices=cluster.devices,
        device_patience=DEVICES_FREE_LIMIT_S,
        return_within=run.backend.client_return,
        rules=spec.rules,
        ports=() if node else ports_wanted(spec, run.placement),
        stacks=spec.stacks,
        plan=run.local.plan,
    )


def preparation(run: Run, node: int) -> Preparation:
    """Return the work of a host before its ranks can start."""
    spec = run.spec
    return Preparation(
        prerun=spec.prerun,
        force=spec.force,
        claim=spec.claim,
        evict=spec.evict,
        library=library() if spec.has_command else b"",
        program=host_program(spec, run.placement, node),
    )


def early_finds(run: Run, node: int) -> Finds:
    """Return enough to find a named interface and the command on PATH, before all hosts have answered."""
    return Finds(env=run.spec.groups[run.placement.group(node)].env, interface=run.cluster.interface)
