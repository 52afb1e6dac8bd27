"""run.json: what it holds when a run begins and ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import asdict

from mesh.core import encoding
from mesh.core.cluster import Placement
from mesh.core.nodes import Arrived
from mesh.core.outcome import Outcome
from mesh.core.run import RunSpec
from mesh.rundir.commit import commit_of
from mesh.rundir.layout import FORMAT_VERSION, RUN
from mesh.rundir.records import UNFETCHED, read_about
from mesh.verdict.verdict import Verdict

BEGIN = ("cluster", "workspace", "git", "env", "created", "started", "detached", "rules", "groups", "slices", "spec")
MOVES = ("moved", "moves")  # of ranks between hosts
# The fields that only the end of a run decides.
END = (
    "started",
    "ended",
    "exit_code",
    "cause",
    "ranks",
    "first",
    "stopped",
    "lost",
    "failures",
    "unverified",
    "verdict",
)


def describe(spec: RunSpec, cluster: str, placement: Placement) -> dict[str, object]:
    """Return what a client must have to follow a run: for run.json, and for the hosts of a detached run.

    cluster: its name
    """
    return {
        "cluster": cluster,
        "hosts": [host.name for host in placement.hosts],
        "nproc": len(placement.ranks(0)),
        "slices": list(placement.slices),
        "command": list(spec.groups[0].command) if len(spec.groups) == 1 else [],
        "workspace": str(spec.workspace),
        "created": time.time(),
        "spec": spec.to_json(),
    }


def describe_begin(spec: RunSpec, cluster: str, placement: Placement) -> dict[str, object]:
    """Return run.json of a run that begins. cluster: its name"""
    return {
        "version": FORMAT_VERSION,
        "run": spec.run,
        "kind": spec.kind.value,
        "name": spec.name,
        "tags": list(spec.tags),
        "commands": [command.run for command in spec.commands],
        **describe(spec, cluster, placement),
        "rules": asdict(spec.rules),
        "groups": _groups(spec, placement),
        "git": commit_of(spec.workspace) if spec.sync else {},
        "env": sorted({name for group in spec.groups for name in group.env}),  # values may be secrets
        "started": None,
        "ended": None,
        "exit_code": None,
        "cause": None,
        "ranks": [],
    }


def _groups(spec: RunSpec, placement: Placement) -> list[dict[str, object]]:
    """Return the groups as run.json has them, with the names of their hosts."""
    hosts: list[list[str]] = [[] for _ in spec.groups]
    for node, host in enumerate(placement.hosts):
        for number in placement.groups(node):
            hosts[number].append(host.name)
    return [
        {"label": group.label, "command": list(group.command), "nproc": group.nproc, "hosts": names}
        for group, names in zip(spec.groups, hosts, strict=True)
    ]


def kept(about: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that stay when another client goes on with a run. about: its run.json"""
    names = (*BEGIN, *MOVES, *((*END, UNFETCHED) if about.get(UNFETCHED) else ()))
    return {name: about.get(name) for name in names if name in about or name == "spec"}


def with_move(about: Mapping[str, object], event: Arrived, host: str) -> dict[str, object]:
    """Return the fields about moves with one more. about: run.json; host: to which the rank has moved"""
    move = {"rank": event.rank, "host": host, "attempt": event.attempt, "printed": dict(event.printed)}
    moved, moves = about.get("moved"), about.get("moves")
    return {
        "moved": {**(moved if isinstance(moved, dict) else {}), str(event.rank): host},
        "moves": [*(moves if isinstance(moves, list) else ()), move],
    }


def _ranks(outcome: Outcome, placement: Placement) -> list[dict[str, object]]:
    """Return how each rank ended, as run.json has it."""
    exits = {exited.rank: exited for exited in outcome.exits}
    ranks = []
    for rank in range(placement.world_size):
        about: dict[str, object] = {"rank": rank, "host": placement.hosts[placement.node(rank)].name}
        about |= encoding.label(rank, placement)
        if rank in exits:
            exited = exits[rank]
            about |= {"signal": exited.signal} if exited.signal else {"code": exited.code}
            about |= {"oom": True} if exited.oom else {}
            about["ended"] = exited.time
        ranks.append(about)
    return ranks


def describe_end(outcome: Outcome, placement: Placement, verdict: Verdict | None) -> dict[str, object]:
    """Return the fields that only the end of a run decides."""
    first = outcome.first
    return {
        "started": outcome.started or None,
        "ended": outcome.ended,
        "exit_code": outcome.exit_code,
        "cause": outcome.cause.value,
        "ranks": _ranks(outcome, placement),
        "first": None if first is None else next(encoding.objects(first, placement)),
        "stopped": list(outcome.stopped),
        "lost": [item for lost in outcome.lost for item in encoding.objects(lost, placement)],
        "failures": [item for one in outcome.failures for item in encoding.objects(one, placement)],
        "unverified": list(outcome.unverified),
        "verdict": verdict.to_json(placement) if verdict else None,
    }


def write_end(directory: Path, source: Path) -> bool:
    """Copy the end of a run from the run.json of another directory; False if the run has not ended there.

    The output that only the hosts have stays to be fetched. Raises OSError.
    """
    about, end = read_about(directory), read_about(source)
    if end.get("ended") is None:
        return False
    about = {**about, **{name: end.get(name) for name in END}, UNFETCHED: True}
    write_about(directory, json.dumps(about, indent=1).encode() + b"\n")
    return True


def write_about(directory: Path, text: bytes) -> None:
    """Put run.json in place in one step, so that no reader finds half of it. Raises OSError."""
    path = directory / f"{RUN}.new"
    write_over(path, text)
    path.replace(directory / RUN)


def write_over(path: Path, data: bytes) -> None:
    """Write a file anew, in the room that it has already. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)
        file.truncate()
