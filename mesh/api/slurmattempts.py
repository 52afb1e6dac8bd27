"""Detached runs that Slurm tries again: their start, the attempt that is there now, and their end."""

from __future__ import annotations

import contextlib
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from mesh.api.choosing import cluster_file, project_here
from mesh.api.records import find_record
from mesh.api.retrying import may_retry
from mesh.app.declared import declared_hosts, plan_of
from mesh.app.secrets import secrets_of
from mesh.backends.slurm import commands
from mesh.config.settings import Options
from mesh.config.slurm import MadeAllocation, is_requeued
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import RUN_ID
from mesh.core.outcome import EXIT_LOST, Cause
from mesh.core.run import AUTO, RunSpec
from mesh.core.statusline import StatusLine
from mesh.hosts.slurm import render
from mesh.hosts.slurm.attempts import AttemptsRecord, Desk, Planned, ids_of, may_count, ranks_of
from mesh.hosts.slurm.made import key_days, maker_of, program
from mesh.hosts.slurm.making import Maker, NotOurs
from mesh.rundir.results import RunResult

END_LIMIT_S = 60.0  # for the holder to forget attempts that were stopped
LOOK_PAUSE_S = 0.3
GRACE_MARGIN_S = 10.0  # beyond `--host-grace` and the grace, for the last words of an attempt
FIRST_PORT, PORTS = 21000, 4000  # below those that Linux gives to connections
HINT = "mesh job submit"


def check(cluster: Cluster, spec: RunSpec) -> None:
    """Raise UsageError for a run whose next attempt hosts cannot start by themselves."""
    source, what = cluster.source, ""
    if not isinstance(source, MadeAllocation) or (source.nodes and len(cluster.hosts) != source.nodes):
        what = "a part of an allocation"
    elif modules := [word for word, _ in project_here().modules.descriptions]:
        what = f"{modules[0]}: of {project_here().path}"
    elif spec.share or spec.spares or spec.rules.slurm_env:
        what = "--share" if spec.share else "--spares" if spec.spares else "--slurm-env"
    if what:
        raise UsageError(f"--retries with -d cannot be used with {what}", hint=HINT)


def start(
    cluster: Cluster,
    spec: RunSpec,
    options: Options,
    run: Callable[[RunSpec], RunResult],
    report: Callable[[str], None],
) -> RunResult:
    """Start a detached run, of which the next attempt waits in Slurm's queue by then; return its result.

    run: starts it; report: called with a line if its first attempt has failed already
    Raises UsageError, and MeshError if no attempt can wait.
    """
    if any(group.nproc == AUTO for group in spec.groups):
        from mesh.api.inquiries import count_gpus

        spec = spec.with_nproc(count_gpus(cluster))
    check(cluster, spec)
    if not may_count(spec.run, options.retries):
        raise UsageError(f"--retries: {options.retries} attempts are too many", hint="mesh run --retries 3 ...")
    spec = replace(spec, retries=options.retries)
    with _desk(cluster) as (desk, maker):
        _check_free(desk, cluster.name)
        planned = _planned(cluster, spec, options)
        source, key = maker.made.source, _key(_source_limit(cluster) * (options.retries + 1))
        srun = render.step_words(source.nodes, source.request)
        more = {"digest": maker.made.digest, "home": maker.made.home}
        given = render.values(source, key, program(), maker.made.python, srun, **more)
        desk.leave(cluster.allocation.job, maker.made, planned, given)
        goes_on = False
        try:
            result = run(spec)
            goes_on = result.cause is Cause.DETACHED
            if may_retry(result, options.retry_on):  # its ranks have ended before its client has left
                desk.report(spec.run, result.exit_code)
                report(f"run {spec.run} ended with {result.exit_code}: its next attempt waits in Slurm's queue")
                goes_on, result = True, replace(result, exit_code=0, cause=Cause.DETACHED)
        finally:
            if not goes_on:
                _end(desk, spec.run)
    return result


def _check_free(desk: Desk, name: str) -> None:
    """Raise NotOurs if another run is tried again on a cluster. Files of attempts whose jobs are gone are removed."""
    if found := desk.find(cluster=name):
        if desk.is_held(found):
            run = found.runs[0]
            raise NotOurs(f"{name}: run {run} is there, and is tried again if it fails", hint=f"mesh stop {run}")
        desk.forget(found)


def newest_attempt(run: str, name: str, clusters_file: str) -> str:
    """Return the attempt of a run that is there now, or was the last one. Raises MeshError.

    run: its first attempt, else it is the answer; name: of its cluster
    """
    found = cluster_file(clusters_file).clusters.get(name)
    if found is None or not is_requeued(found):
        return run
    with _desk(found) as (desk, _):
        record = desk.find(run=run)
    return record.attempts[-1].run if record and record.attempts and record.runs[0] == run else run


class Stopping:
    """The end of a run that Slurm tries again: around the end of its present attempt."""

    def __init__(self, word: str, cluster: str, clusters_file: str) -> None:
        """Have no other attempt begin. word, cluster: as with ``stop``. Raises MeshError."""
        self.run = ""  # the attempt that is there now; "": Slurm tries no such run again
        self.cluster = ""
        self._found: AttemptsRecord | None = None
        self._place: Cluster | None = None
        for one in _candidates(word, cluster, clusters_file):
            with _desk(one) as (desk, _):
                record = find_record(word)
                run = record.run if record else word if RUN_ID.fullmatch(word) else ""
                if not run and word != one.name:
                    continue
                found = desk.find(run=run, cluster=one.name)
                if found is None or found.is_over:
                    continue
                desk.stop(found)
                self._found, self._place = found, one
                self.run, self.cluster = found.attempts[-1].run, one.name
                return

    def end(self) -> None:
        """Wait until nothing waits in Slurm's queue any more. Raises MeshError."""
        if self._found is not None and self._place is not None:
            with _desk(self._place) as (desk, _):
                _end(desk, self._found.runs[0])

    def is_held(self) -> bool:
        """Return True while a job of the run is there. Raises MeshError."""
        if self._found is None or self._place is None:
            return False
        with _desk(self._place) as (desk, _):
            found = desk.find(run=self._found.runs[0])
            if found is not None and found.attempts:
                self.run = found.attempts[-1].run
            return found is not None and desk.is_held(found)


def forget_attempts(cluster: Cluster) -> None:
    """Have no other attempt of any run begin on a cluster whose allocation is to be cancelled. Raises MeshError."""
    if is_requeued(cluster):
        with _desk(cluster) as (desk, _):
            if found := desk.find(cluster=cluster.name):
                desk.stop(found)


def forget_files(cluster: Cluster) -> None:
    """Remove what attempts needed, once the allocation is cancelled. Raises MeshError."""
    if is_requeued(cluster):
        with _desk(cluster) as (desk, _):
            while found := desk.find(cluster=cluster.name):
                desk.stop(found)
                desk.forget(found)


def _end(desk: Desk, run: str) -> None:
    """Stop a run's attempts, and wait until the holder has forgotten them, or forget them without one."""
    until = time.monotonic() + END_LIMIT_S
    while (found := desk.find(run=run)) is not None and not found.is_over:
        desk.stop(found)
        if not desk.is_held(found):
            desk.forget(found)
        elif time.monotonic() > until:
            raise MeshError(f"{found.cluster}: job {', '.join(found.jobs)} is still there", hint="squeue --me")
        time.sleep(LOOK_PAUSE_S)


def _candidates(word: str, cluster: str, clusters_file: str) -> Iterator[Cluster]:
    """Yield the clusters where a run that Slurm tries again may be."""
    record = find_record(word)
    if record is not None and not record.spec.retries:
        return
    wanted = cluster or (record.cluster if record else "")
    file = cluster_file(clusters_file)
    if record is None and not RUN_ID.fullmatch(word) and word not in file.clusters:
        return
    for name, one in file.clusters.items():
        if is_requeued(one) and name in (wanted or name) and (RUN_ID.fullmatch(word) or record or word == name):
            yield one


@contextlib.contextmanager
def _desk(cluster: Cluster) -> Iterator[tuple[Desk, Maker]]:
    """Open the desk of a cluster's login node for a while."""
    login, maker = maker_of(cluster, StatusLine())
    try:
        yield Desk(login, cluster.python, cluster.remote_dir), maker
    finally:
        login.close()


def _source_limit(cluster: Cluster) -> float:
    """Return the time limit of a cluster's allocation, in seconds; 0: there is none."""
    source = cluster.source
    assert isinstance(source, MadeAllocation)
    return commands.limit_of(source.request.get("time", ""))


def _planned(cluster: Cluster, spec: RunSpec, options: Options) -> Planned:
    """Return what the next attempts of a run need."""
    from mesh.remote.declared import pack

    number = zlib.crc32(spec.run.encode()) % (PORTS // 4) * 4
    own = replace(spec, sync=False, existing=spec.sync or spec.existing, lock=True, claim=True)
    own = replace(own, master_port=spec.master_port or FIRST_PORT + number)
    hosts = replace(cluster, hosts=declared_hosts(len(cluster.hosts)))
    made = plan_of(own, hosts, f"Slurm, {cluster.name}", meeting_port=FIRST_PORT + number + 3, limit=1 << 30)
    secrets = secrets_of(spec, os.environ)
    begin = made["begin"]
    assert isinstance(begin, dict)
    masked = {name: secrets.json(begin[name]) for name in ("about", "owner", "plan")}
    plan = {**made, "begin": {**begin, **masked}, "start_timeout": 120.0}
    rules = spec.rules
    silence = sum(one for one in (rules.host_grace, rules.grace) if math.isfinite(one))
    return Planned(
        plan=plan,
        runs=ids_of(spec.run, options.retries),
        statuses=tuple(options.retry_on or (EXIT_LOST,)),
        ranks=ranks_of(plan),
        remote_dir=cluster.remote_dir,
        patience=silence + GRACE_MARGIN_S,
        key=_key(0.0),
        program=pack(),
    )


def _key(limit: float) -> str:
    from mesh.core.credentials import make_credentials

    return make_credentials(key_days(limit))
