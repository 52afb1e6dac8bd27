"""mesh stop: end a run on every host, and write down how a detached one ended."""

from __future__ import annotations

from mesh.api.fetching import fetch_end
from mesh.api.inquiries import DEFAULTS, STOP_TIMEOUT_S, FoundRun, ask, clusters_of, find_run, told_failures
from mesh.api.records import find_record
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.engine.question import Question
from mesh.protocol.questions import Stop
from mesh.protocol.replies import Stopped
from mesh.rundir.records import State


def stop(
    run: str = "",
    *,
    every: bool = False,
    cluster: str = "",
    options: Options = DEFAULTS,
    clusters_file: str = "",
) -> tuple[str, ...]:
    """End a run on every host of its cluster, or every run there; return the ids of those that were ended.

    run: an id, a name or tag, a part of an id or name, "last" for the newest `mesh run` of this machine, or a
        cluster for the one run there; a run that is no more is no error
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
    if every:
        where = FoundRun(
            run="", clusters=tuple(clusters_of(cluster, options, clusters_file, [])), problems=(), record=None
        )
    else:
        where = find_run(run, cluster, options, clusters_file)
    stopped = stop_found(where, options.grace)
    if not stopped and run and not where.record:
        names = ", ".join(found.name for found in where.clusters)
        raise UsageError(f"no run {run!r} is on {names}, and none is recorded here", hint="`mesh ps` lists what runs")
    for one in sorted({*stopped, *([where.run] if where.run else [])}):
        _note_end(one, clusters_file)
    return tuple(sorted(stopped))


def stop_found(where: FoundRun, grace: float | None = None) -> set[str]:
    """End a run that was found, or every run of its clusters; return the ids of those that were ended.

    grace: seconds from SIGTERM to SIGKILL; None: those of the run
    Raises MeshError if something is left or a host cannot be asked.
    """
    message = Stop(run=where.run, grace=grace)
    stopped: set[str] = set()
    troubles = list(where.problems)
    for found in where.clusters:
        inquiry = ask(found, Question(message=message, answer_s=STOP_TIMEOUT_S))
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
        fetch_end(record, clusters_file)
