"""Runs that are tried again after a failure: ``mesh run --retries``. Each attempt is a run with its own directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from mesh.api.choosing import cluster_file, named_clusters
from mesh.config.settings import Options
from mesh.config.slurm import is_requeued
from mesh.core.errors import UsageError
from mesh.core.outcome import EXIT_LOST, Cause
from mesh.core.run import RunSpec
from mesh.rundir.results import RunResult

RETRY_STATUSES = (EXIT_LOST,)


def check_retries(options: Options, selector: str, clusters_file: str, environ: Mapping[str, str]) -> None:
    """Raise UsageError for attempts that cannot be started. selector: of the cluster"""
    if options.retry_on and not options.retries:
        raise UsageError("--retry-on: without --retries nothing is tried again", hint="mesh run --retries 3 ...")
    if not options.retries:
        return
    if environ.get("MESH_JOB_ID"):
        hint = "`restart:` in the file of the job starts the job again"
        raise UsageError(f"--retries: this is inside of job {environ['MESH_JOB_ID']}", hint=hint)
    if options.stdin != "none":
        text = "--retries: standard input cannot be read again, and a further attempt would get only the rest of it"
        raise UsageError(text, hint="leave out -i or --stdin")
    if options.detach:
        named = named_clusters(selector, clusters_file)
        if len(named) != 1 or not is_requeued(named[0]):
            raise UsageError("--retries starts each attempt from here, and --detach leaves", hint="mesh job submit")


def has_requeued(clusters_file: str) -> bool:
    """Return True if there is such a cluster; a file with errors counts as one without."""
    try:
        return any(map(is_requeued, cluster_file(clusters_file).clusters.values()))
    except UsageError:
        return False


def refuse_retries(options: Options, what: str) -> None:
    """Raise UsageError if a command that tries nothing again was given options for that. what: the command"""
    if options.retries or options.retry_on:
        raise UsageError(f"--retries is for mesh run, not for {what}", hint="mesh run --retries 3 ...")


def with_attempt(spec: RunSpec, attempt: int) -> RunSpec:
    """Return a run whose ranks find the number of its attempt, from 0, in MESH_ATTEMPT."""
    if not attempt:
        return spec
    groups = [replace(group, env={**group.env, "MESH_ATTEMPT": str(attempt)}) for group in spec.groups]
    return replace(spec, groups=tuple(groups))


def may_retry(result: RunResult, statuses: Sequence[int]) -> bool:
    """Return True if a run has failed in a way after which it is tried again. statuses: exit statuses"""
    is_over = result.was_stopped or result.cause in (Cause.SIGNAL, Cause.OUTPUT_CLOSED, Cause.DETACHED)
    return not is_over and result.exit_code in (statuses or RETRY_STATUSES)


def attempts(start: Callable[[int], RunResult], options: Options, report: Callable[[str], None]) -> RunResult:
    """Start a run, and start it again as often as it may; return the result of the last attempt.

    start: runs the attempt of a number, from 0; report: called with a line before each further attempt
    """
    attempt = 0
    result = start(attempt)
    while attempt < options.retries and may_retry(result, options.retry_on):
        attempt += 1
        report(f"run {result.run} ended with {result.exit_code}: starting attempt {attempt} of {options.retries}")
        result = start(attempt)
    return result
