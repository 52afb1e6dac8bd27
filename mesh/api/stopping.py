"""mesh stop and mesh restart: the end of a run on every host, and new processes for ranks of a run that goes on."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.api.attaching import ask_some, require_agents
from mesh.api.fetching import fetch_end
from mesh.api.inquiries import DEFAULTS, STOP_TIMEOUT_S, FoundRun, ask, clusters_of, find_run, told_failures
from mesh.api.records import find_record
from mesh.api.retrying import has_requeued
from mesh.config.settings import Options
from mesh.core.cluster import Placement
from mesh.core.errors import MeshError, NoHosts, UsageError
from mesh.core.ranks import choose_ranks, told_ranks
from mesh.engine.question import Question
from mesh.protocol.questions import Restart, Stop
from mesh.protocol.replies import NewProcess, NewProcesses, Stopped
from mesh.rundir.records import Record, State

if TYPE_CHECKING:
    from mesh.api.slurmattempts import Stopping

GRACE_S = 10.0  # of a run that this machine has no record of
HOST_GRACE_MARGIN_S = 30.0  # beyond the grace, until a host that ends a run counts as lost
ANSWER_MARGIN_S = 10.0  # beyond the grace, for SIGKILL to take effect and for the new process to start
ASKING_MARGIN_S = 15.0  # beyond that, for the connections to the agents
CLIENT_END_S, CLIENT_POLL_S = 10.0, 0.1  # for the client of a run that ends to write that it has ended


def stop(
    run: str = "",
    *,
    every: bool = False,
    cluster: str = "",
    options: Options = DEFAULTS,
    clusters_file: str = "",
) -> tuple[str, ...]:
    """End a run on every host of its cluster, or every run there; return the ids of those that were ended.

    run: an id, a name or tag, or a part of an id or name. "last" is the newest `mesh run` of this machine; a cluster
        means the one run there. A run that is no more is no error
    every: all runs of this login on the cluster
    options.grace: seconds from SIGTERM to SIGKILL, instead of what the run was started with
    cluster: where it runs; "": from this machine's record of the run, else every cluster of cluster.yaml
    Raises UsageError, and MeshError if something is left or a host cannot be asked.
    """
    if every and not cluster:
        raise UsageError("--all: expected a cluster", hint="mesh stop --all --cluster CLUSTER")
    if every == bool(run):
        raise UsageError(
            "expected a run", hint="`mesh ps` lists them; mesh stop RUN, or mesh stop --all --cluster CLUSTER"
        )
    if run and has_requeued(clusters_file):
        from mesh.api.slurmattempts import Stopping

        if (slurm := Stopping(run, cluster, clusters_file)).run:
            return _stop_attempts(slurm, options, clusters_file)
    if every:
        where = FoundRun(
            run="", clusters=tuple(clusters_of(cluster, options, clusters_file, [])), problems=(), record=None
        )
    else:
        where = find_run(run, cluster, options, clusters_file)
    try:
        stopped = stop_found(where, options.grace)
    except MeshError:
        # The client of the run has ended it as well, and has given back its hosts before they could answer.
        if where.record is None or not has_ended_meanwhile(where.record):
            raise
        stopped = {where.run}
    if not stopped and run and not where.record:
        names = ", ".join(found.name for found in where.clusters)
        raise UsageError(f"no run {run!r} is on {names}, and none is recorded here", hint="`mesh ps` lists what runs")
    for one in sorted({*stopped, *([where.run] if where.run else [])}):
        _note_end(one, clusters_file)
    return tuple(sorted(stopped))


def has_ended_meanwhile(record: Record, within: float = CLIENT_END_S) -> bool:
    """Return True if the client of a run, which was there before, has ended it and left nothing. within: seconds"""
    if record.state is not State.ON:
        return False
    until = time.monotonic() + within
    while True:
        now = find_record(record.run)
        if now is None or now.state is not State.ON or time.monotonic() > until:
            return now is not None and has_left_nothing(now.about)
        time.sleep(CLIENT_POLL_S)


def has_left_nothing(about: Mapping[str, object]) -> bool:
    """Return True if a run has ended, and all its hosts have reported that nothing of it is left. about: run.json

    >>> has_left_nothing({"ended": 1.5, "lost": [], "unverified": []}), has_left_nothing({"ended": 1.5, "lost": [{}]})
    (True, False)
    >>> has_left_nothing({"ended": None})
    False
    """
    return about.get("ended") is not None and not about.get("lost") and not about.get("unverified")


def _stop_attempts(slurm: Stopping, options: Options, clusters_file: str) -> tuple[str, ...]:
    """End a run that Slurm tries again; return the attempts that were ended. Raises MeshError."""
    stopped = _stop_present(slurm, options, clusters_file)
    slurm.end()
    if stopped is None and slurm.is_held():  # the allocation of one attempt has ended for the next meanwhile
        stopped = _stop_present(slurm, options, clusters_file, is_last=True)
    if stopped:
        _note_end(slurm.run, clusters_file)
    return tuple(sorted({*(stopped or ()), slurm.run}))


def _stop_present(slurm: Stopping, options: Options, clusters_file: str, *, is_last: bool = False) -> set[str] | None:
    """End the attempt that is there; return None if its hosts cannot be asked. Raises MeshError with is_last."""
    try:
        return stop_found(find_run(slurm.run, slurm.cluster, options, clusters_file), options.grace)
    except NoHosts:  # no attempt has an allocation now
        return set()
    except MeshError:
        if is_last:
            raise
        return None


def stop_found(where: FoundRun, grace: float | None = None) -> set[str]:
    """End a run that was found, or every run of its clusters; return the ids of those that were ended.

    grace: seconds from SIGTERM to SIGKILL; None: those of the run
    Raises MeshError if something is left or a host cannot be asked.
    """
    message = Stop(run=where.run, grace=grace)
    busy = HOST_GRACE_MARGIN_S + _grace(where, grace)
    stopped: set[str] = set()
    troubles = list(where.problems)
    for found in where.clusters:
        inquiry = ask(found, Question(message=message, answer_s=STOP_TIMEOUT_S), busy=busy)
        troubles += told_failures(found, inquiry)
        for node, answer in inquiry.replies(Stopped).items():
            stopped |= {one.run for one in answer.stopped}
            troubles += [f"{found.hosts[node].name}: something of run {left} is left" for left in answer.left]
    if troubles:
        raise MeshError("\n".join(troubles), hint="`mesh ps` shows what is still there")
    return stopped


def _note_end(run: str, clusters_file: str) -> None:
    """Write into this machine's record of a detached run how it ended."""
    record = find_record(run)
    if record and record.state is State.DETACHED and record.hosts:
        with contextlib.suppress(NoHosts):  # its allocation has ended by now, and the run with it
            fetch_end(record, clusters_file)


class RestartedRank(Struct, frozen=True, kw_only=True):
    """A rank with a new process."""

    rank: int
    name: str  # as "rank 3" or "rank 3 (actor/1)"
    host: str  # "": the run is of another machine
    pid: int  # of its new process, on its host


def restart(
    run: str,
    ranks: Iterable[int] | str,
    *,
    on: str = "",
    grace: float | None = None,
    cluster: str = "",
    clusters_file: str = "",
) -> tuple[RestartedRank, ...]:
    """End the processes of ranks of a run and start each rank again, while the others go on.

    ranks: their numbers, or text as --rank takes it
    on: the host on which they start: a spare one of the run, or one that they have come from. "": their own
    grace: seconds from SIGTERM to SIGKILL; None: as the run was started with. Nodes of a program get SIGKILL at once
    run, cluster: as with ``attach``
    Raises UsageError for ranks and hosts that the run does not have. Raises MeshError if a rank cannot be started
    again, or a host cannot be asked.
    """
    return restart_found(find_run(run, cluster, DEFAULTS, clusters_file), ranks, on=on, grace=grace)


def restart_found(
    where: FoundRun, ranks: Iterable[int] | str, *, on: str = "", grace: float | None = None
) -> tuple[RestartedRank, ...]:
    """Do the same for a run that was found. Raises UsageError and MeshError."""
    placement = where.record.placement if where.record and where.record.hosts else None
    wanted = sorted(choose_ranks("--rank", ranks, placement) if isinstance(ranks, str) else set(ranks))
    if placement is None and on:
        raise UsageError(f"--on: the hosts of {where.run} are not recorded here", hint="leave out --on")
    if where.record is not None and where.record.state is State.ENDED:
        require_agents([], where)
    stays, moves = check_ranks(wanted, on, placement, where.run) if placement is not None else (wanted, [])
    limit = _grace(where, grace) + ANSWER_MARGIN_S
    found: dict[int, NewProcess] = {}
    late = ""
    to = [host.name for host in placement.hosts].index(on) if placement is not None and moves else -1
    for some, target in ((stays, -1), (moves, to)):
        if some:
            question = Restart(run=where.run, ranks=some, grace=grace, to=target, limit=limit, id=secrets.token_hex(8))
            answers, unasked = ask_some(where, question, NewProcesses, limit + ASKING_MARGIN_S)
            if not unasked:
                require_agents([one for one in answers if one.agents], where)
            found |= {one.rank: one for answer in answers for one in answer.ranks}
            silent = f"an agent has not answered within {limit:g} s" if any(one.silent for one in answers) else ""
            late = "; ".join(unasked) or silent or late
    if where.record is not None and where.record.about.get("started"):  # a detached run, whose hosts leave one by one
        late = late or "it has ended"
    if refused := refusals(wanted, found, placement, late):
        raise MeshError("\n".join(refused), hint=f"mesh logs {where.run} --rank {wanted[0]}")
    after = placement.moved((rank, to) for rank in moves) if placement is not None else None
    return tuple(
        RestartedRank(rank=rank, name=_name(rank, placement), host=_host(rank, after), pid=found[rank].pid)
        for rank in wanted
    )


def check_ranks(ranks: Iterable[int], on: str, placement: Placement, run: str) -> tuple[list[int], list[int]]:
    """Return the ranks that start on their own hosts, and those that start on another one.

    Raises UsageError for ranks and hosts that the run does not have, and for a host that can take none of them.
    """
    ranks = list(ranks)
    if missing := [rank for rank in ranks if rank >= placement.world_size]:
        has = f"it has {told_ranks(range(placement.world_size))}"
        raise UsageError(f"{run}: no {told_ranks(missing)}", hint=has)
    if not on:
        return ranks, []
    hosts = [host.name for host in placement.hosts]
    if on not in hosts:
        raise UsageError(f"--on: {on} is no host of {run}", hint=f"its hosts are {', '.join(hosts)}")
    moves = [rank for rank in ranks if hosts[placement.node(rank)] != on]
    if moves and not placement.spares:
        own = hosts[placement.node(moves[0])]
        text = f"{_name(moves[0], placement)} is on {own}, and cannot move to {on}: the run has no spare hosts"
        raise UsageError(f"--on: {text}", hint=f"mesh restart {run} --rank {moves[0]} starts it again on {own}")
    return [rank for rank in ranks if rank not in moves], moves


def refusals(wanted: Iterable[int], found: dict[int, NewProcess], placement: Placement | None, late: str) -> list[str]:
    """Return a line for each rank that has no new process. late: why an answer may be missing; "": all have answered"""
    lines = []
    for rank in wanted:
        one = found.get(rank)
        if one is not None and one.pid:
            continue
        host = _host(rank, placement)
        why = one.why if one is not None else late or "it has ended, or was never started"
        lines.append(f"{_name(rank, placement)}{f' on {host}' if host else ''}: not started again ({why})")
    return lines


def _grace(where: FoundRun, grace: float | None) -> float:
    """Return the seconds from SIGTERM to SIGKILL that hosts may take."""
    if grace is not None:
        return grace
    found = where.record.spec.rules.grace if where.record else GRACE_S
    return found if math.isfinite(found) else GRACE_S


def _name(rank: int, placement: Placement | None) -> str:
    role = placement.role(rank) if placement is not None else ""
    return f"rank {rank} ({role})" if role else f"rank {rank}"


def _host(rank: int, placement: Placement | None) -> str:
    return placement.hosts[placement.node(rank)].name if placement is not None else ""
