"""Hands of jobs: each method carries out one order of the steward, in a process of its own, by what api has."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mesh.api.attempts import (
    hosts_of_attempt,
    missing_variables,
    run_of_attempt,
    with_locks,
    with_modules,
    with_workers,
    write_directory,
)
from mesh.api.checking import numbered
from mesh.api.detached import DetachedRun, Place
from mesh.api.fetching import Fetch
from mesh.api.inquiries import STOP_TIMEOUT_S, ask, count_gpus, told_failures
from mesh.api.joblogs import link_attempt, note, write_addresses
from mesh.api.jobprogress import ProgressReader
from mesh.api.looking import Seen, Standing, look_at, look_at_end
from mesh.api.lookout import Lookouts
from mesh.api.pulling import pull
from mesh.api.records import find_record
from mesh.api.setups import Wish, set_up
from mesh.api.taskparts import link_part, missing_worker, results_directory
from mesh.api.undoing import undo_modules
from mesh.app.assemble import Parts, launch, placed
from mesh.app.screen import Showing
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import PrepareFailed, Stream
from mesh.core.module import Preparation
from mesh.core.naming import RUN_ID
from mesh.core.outcome import Cause, Outcome
from mesh.core.paths import runs_directory
from mesh.core.run import AUTO, RunSpec, followed
from mesh.engine.question import Question
from mesh.jobs.events import Fetched, Prepared, Refusal, Refused, RunEnded, RunSeen, RunStarted, RunUnknown, Undone
from mesh.jobs.interfaces import NoAnswer, Request, RunFacts
from mesh.jobs.orders import Fetch as FetchOrder
from mesh.jobs.orders import LookAtRun, Prepare, Start, Undo
from mesh.jobs.orders import Stop as StopOrder
from mesh.jobs.values import Job, Phase, Setup
from mesh.protocol import questions
from mesh.protocol.replies import Stopped
from mesh.rundir.about import describe
from mesh.rundir.records import State
from mesh.rundir.results import run_result

LOOKS_AT_ONCE = 8
log = logging.getLogger(__name__)
FETCH_LIMIT_S = 3600.0
WRONG_WORKERS_STATUS = 2  # of a task whose `workers:` the worker does not have
_HOLDER = re.compile(rf"\(run ({RUN_ID.pattern})")
DECIDED = (Cause.COMPLETED, Cause.RANK, Cause.TIMEOUT, Cause.LOST)  # by the run itself, and not by its client
PERSONS = (
    *("host-key", "login", "python", "sync", "home", "devices", "prerun", "command", "interface", "workspace"),
    *("module", "modules", "rights", "admission", "image"),
)


class JobHands:
    """Starts, looks at, stops and fetches the runs of jobs. See mesh.jobs.interfaces.Hands."""

    def __init__(self) -> None:
        self._lookouts = Lookouts()
        self._progress = ProgressReader()

    def prepare(self, request: Request) -> Prepared | Refused:
        job, order = request.job, request.order
        assert isinstance(order, Prepare)
        if lacking := _lacking(job):
            return lacking
        try:
            machines = hosts_of_attempt(job, order.hosts, starts=True)
            write_directory(job, request.directory, machines)
            outcome, spec = set_up(
                job, request.directory, machines, Wish(only=order.modules, force=job.setup is Setup.FORCE)
            )
        except UsageError as error:
            return Refused(kind=Refusal.PERSON, why=str(error), hint=error.hint)
        except OSError as error:
            raise NoAnswer(f"cannot write {error.filename}: {error.strerror}") from error
        if outcome.unclean or outcome.cause in (Cause.SIGNAL, Cause.OUTPUT_CLOSED):
            raise NoAnswer(f"run {spec.run}: not every host has reported that its steps have ended")
        return Prepared() if outcome.cause is Cause.COMPLETED else _refused(outcome, machines, spec)

    def undo(self, request: Request) -> Undone:
        order = request.order
        assert isinstance(order, Undo)
        return undo_modules(request, order)

    def start(self, request: Request) -> RunStarted | RunEnded | Refused:
        job, order = request.job, request.order
        assert isinstance(order, Start)
        if lacking := _lacking(job):
            return lacking
        spec = run_of_attempt(job, order.run, order.attempt, os.environ, starts=True)
        if spec.sync and not spec.workspace.is_dir():
            return Refused(kind=Refusal.PERSON, why=f"the snapshot {spec.workspace} is gone", hint="submit it again")
        try:
            machines = hosts_of_attempt(job, order.hosts, starts=True)
            if wrong := missing_worker(job, order.run, len(machines.hosts)):
                return RunEnded(run=order.run, exit_code=WRONG_WORKERS_STATUS, cause=Cause.RANK.value, reason=wrong)
            cluster = with_workers(job, machines, order.run)
            spec, preparation = with_modules(job, with_locks(spec, cluster), cluster)
            write_directory(job, request.directory, machines)
            link_attempt(job, request.directory, spec, order.attempt, cluster)
            link_part(job, request.directory, spec, cluster)
            write_addresses(request.directory, machines)
            names = ", ".join(host.name for host in cluster.hosts)
            note(request.directory, f"attempt {order.attempt} is run {order.run} on {names}")
        except UsageError as error:
            return Refused(kind=Refusal.PERSON, why=str(error), hint=error.hint)
        except OSError as error:
            raise NoAnswer(f"cannot write {error.filename}: {error.strerror}") from error
        if spec.groups[0].nproc == AUTO:
            try:
                spec = spec.with_nproc(count_gpus(cluster, quiet=True))
            except MeshError as error:
                return Refused(kind=Refusal.UNREACHABLE, why=str(error), hint=error.hint)
        return _started(spec, cluster, preparation)

    def look(self, requests: Sequence[Request]) -> Sequence[RunFacts | None]:
        with ThreadPoolExecutor(max(1, min(len(requests), LOOKS_AT_ONCE))) as pool:
            return list(pool.map(self._fact_or_none, requests))

    def _fact_or_none(self, request: Request) -> RunFacts | None:
        order = request.order
        assert isinstance(order, LookAtRun)
        if (ended := _recorded(order)) is not None:
            return ended
        try:
            spec, cluster = _run(request, order.run, order.hosts)
            seen = look_at(spec, cluster, self._lookouts)
        except MeshError as error:
            log.warning("run %s: %s", order.run, error)
            return None
        if seen.problem:
            log.warning("run %s: %s", order.run, seen.problem)
        if seen.standing is Standing.RUNNING and (pattern := request.job.spec.progress):
            return RunSeen(run=order.run, progress=self._progress.of(spec, cluster, pattern))
        return _fact(order.run, seen)

    def stop(self, request: Request) -> RunEnded | RunUnknown:
        order = request.order
        assert isinstance(order, StopOrder)
        spec, cluster = _run(request, order.run, order.hosts)
        message = questions.Stop(run=order.run, grace=None)
        inquiry = ask(cluster, Question(message=message, answer_s=STOP_TIMEOUT_S), quiet=True)
        troubles = told_failures(cluster, inquiry)
        for node, answer in inquiry.replies(Stopped).items():
            troubles += [f"{cluster.hosts[node].name}: something of run {left} is left" for left in answer.left]
        if troubles:
            raise NoAnswer("; ".join(troubles))
        seen = look_at_end(spec, cluster)
        if seen.standing is Standing.NOT_ASKED:
            raise NoAnswer(seen.problem)
        return _ended(order.run, seen) if seen.result else RunUnknown(run=order.run)

    def fetch(self, request: Request) -> Fetched:
        order = request.order
        assert isinstance(order, FetchOrder)
        if wrong := missing_worker(request.job, order.run, len(order.hosts)):
            return Fetched(run=order.run, problem=wrong)
        problems = _fetched(request, order)
        if order.results and request.job.spec.results:
            problems += _pulled(request, order.run)
        problems += _copied(request, order)
        return Fetched(run=order.run, problem="; ".join(problems))


def _run(request: Request, run: str, hosts: Sequence[str]) -> tuple[RunSpec, Cluster]:
    """Return a run that was started, and its hosts. Raises NoAnswer if they cannot be found."""
    job = request.job
    try:
        cluster = with_workers(job, hosts_of_attempt(job, hosts), run)
    except MeshError as error:
        raise NoAnswer(str(error), hint=error.hint) from error
    attempt = next((one.number for one in job.attempts if one.run == run), job.attempt)
    spec = run_of_attempt(job, run, attempt, os.environ)
    record = find_record(run, is_exact=True)
    if spec.groups[0].nproc == AUTO and record is not None:
        spec = spec.with_nproc(max(1, record.spec.groups[0].nproc))
    return spec, cluster


# ---- start


def _lacking(job: Job) -> Refused | None:
    """Return why a job cannot start here, for want of variables; None if it can."""
    if not (missing := missing_variables(job.spec, os.environ)):
        return None
    why = f"{', '.join(missing)} of `pass:` is not set where mesh serve runs"
    hint = f"set it, and then: mesh serve stop; mesh job release {job.id}"
    return Refused(kind=Refusal.ENVIRONMENT, why=why, hint=hint)


def _started(spec: RunSpec, cluster: Cluster, preparation: Preparation) -> RunStarted | RunEnded | Refused:
    """Start a run, and leave it once all of its ranks run. Raises NoAnswer if it is not certain how it is."""
    parts = Parts(
        spec=spec,
        cluster=cluster,
        showing=Showing(quiet=True),
        decider=numbered(spec, cluster),
        uses_kept=True,
        preparation=preparation,
    )
    outcome, placement, store = launch(parts)
    if outcome.cause is Cause.DETACHED:
        return RunStarted(run=spec.run)
    if outcome.unclean or outcome.goes_on or outcome.cause in (Cause.SIGNAL, Cause.OUTPUT_CLOSED):
        raise NoAnswer(f"run {spec.run}: not every host has reported that nothing of it is left")
    if outcome.cause in (Cause.BUSY, Cause.PREPARE):
        return _refused(outcome, cluster, spec)
    assert store is not None
    result = run_result(outcome, placement, store, (Stream.STDOUT, Stream.STDERR))
    lost = tuple(dict.fromkeys(cluster.hosts[one.node].name for one in outcome.lost))
    return _ended(spec.run, Seen(standing=Standing.ENDED, result=result, lost=lost))


def _refused(outcome: Outcome, cluster: Cluster, spec: RunSpec) -> Refused:
    """Return why a run was not started. The cause that needs a person weighs most, as it does not go by itself."""
    failures = outcome.failures
    kinds = {failure.node: _kind(failure, outcome) for failure in failures}
    worst = Refusal.PERSON if Refusal.PERSON in kinds.values() else next(iter(kinds.values()), Refusal.UNREACHABLE)
    chosen = [failure for failure in failures if kinds[failure.node] is worst]
    names = tuple(cluster.hosts[failure.node].name for failure in chosen)
    if not chosen:
        return Refused(kind=worst, why="a host was lost before the ranks started")
    first = chosen[0]
    more = f" (and {len(chosen) - 1} more)" if len(chosen) > 1 else ""
    holder = _HOLDER.findall(first.message) if worst is Refusal.BUSY else []
    return Refused(
        kind=worst,
        why=f"{names[0]}: {first.message}{more}",
        hint=first.hint or f"mesh logs {spec.run}",
        by_run=holder[-1] if holder else "",
        hosts=names,
    )


def _kind(failure: PrepareFailed, outcome: Outcome) -> Refusal:
    if outcome.cause is Cause.BUSY and failure.step == "lock":
        return Refusal.BUSY
    if failure.step in PERSONS and not failure.killed_by:
        return Refusal.PERSON
    return Refusal.UNREACHABLE


# ---- look


def _recorded(order: LookAtRun) -> RunEnded | None:
    """Return the end of a run that is written in its directory here; None if it is not, or not final."""
    record = find_record(order.run, is_exact=True)
    if record is not None and record.state is State.ENDED and record.cause in [one.value for one in DECIDED]:
        cause, code = record.cause, record.exit_code or 0
        lost = tuple(str(one.get("host", "")) for one in record.about.get("lost", ()) if isinstance(one, dict))
        return RunEnded(run=order.run, exit_code=code, cause=cause, reason=f"exit {code}", hosts=lost)
    return None


def _fact(run: str, seen: Seen) -> RunFacts | None:
    match seen.standing:
        case Standing.RUNNING:
            return RunSeen(run=run)
        case Standing.CLIENT:
            return RunSeen(run=run, is_detached=False)
        case Standing.ENDED:
            return _ended(run, seen)
        case Standing.UNKNOWN:
            return RunUnknown(run=run)
    return None


def _ended(run: str, seen: Seen) -> RunEnded:
    result = seen.result
    assert result is not None
    reason = result.first_failure or ("" if result.ok else f"exit {result.exit_code}")
    return RunEnded(run=run, exit_code=result.exit_code, cause=result.cause.value, reason=reason, hosts=seen.lost)


# ---- fetch


def _fetched(request: Request, order: FetchOrder) -> list[str]:
    """Bring the output of an ended run into its directory here; return what is missing for good. Raises NoAnswer."""
    record = find_record(order.run, is_exact=True)
    if record is not None and record.state is State.ENDED and not record.lacks_output:
        return []
    spec, cluster = _run(request, order.run, order.hosts)
    about = describe(spec, cluster.name, placed(spec, cluster))
    found = DetachedRun(run=order.run, cluster=cluster.name, about=about)
    try:
        place = Place(found, "here", shared=False)
    except BlockingIOError:
        raise NoAnswer(f"another command reads the output of run {order.run}") from None
    except OSError as error:
        raise NoAnswer(f"cannot write {runs_directory(os.environ) / order.run}: {error.strerror}") from error
    with contextlib.closing(place):
        fetching = Fetch(followed(spec), cluster, place, lasting=not _is_condemned(request.job, order.run))
        with contextlib.closing(fetching):
            fetching.wait_for_end(FETCH_LIMIT_S)
            problems = list(fetching.news())
            is_complete = fetching.is_complete
    record = find_record(order.run, is_exact=True)
    if record is None or record.state is not State.ENDED:
        raise NoAnswer("; ".join(problems) or f"the hosts have not sent all of run {order.run}")
    return [] if is_complete else problems


def _is_condemned(job: Job, run: str) -> bool:
    """Return True for a run whose machines are about to be deleted, so that no more output follows."""
    number = next((one.generation for one in job.attempts if one.run == run), 0)
    phases = [one.phase for one in job.generations if one.number == number and one.maker]
    return Phase.RELEASING in phases


def _copied(request: Request, order: FetchOrder) -> list[str]:
    """Copy the output of a job to its bucket, if it has one; return what went wrong. Raises NoAnswer."""
    job = request.job
    if not job.spec.logs:
        return []
    from mesh.api.bucketlogs import copy_logs

    _, cluster = _run(request, order.run, order.hosts)
    return copy_logs(job, cluster.slices or (len(cluster.hosts),))


def _pulled(request: Request, run: str) -> list[str]:
    """Pull the results of a job into its directory; return what is missing for good. Raises NoAnswer."""
    spec = request.job.spec
    into = results_directory(request.job, run, request.directory)
    try:
        result = pull(spec.results, cluster=run, into=into, quiet=True)
    except MeshError as error:
        raise NoAnswer(str(error), hint=error.hint) from error
    if result.failures:
        raise NoAnswer("; ".join(result.failures))
    return [f"results: {line}" for line in result.missing]
