"""Questions to the hosts: what runs there, end it, what was left behind."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import NOT_NAMED, choose_cluster, cluster_file, knowing_secrets, make_spec
from mesh.api.gathering import Gathering
from mesh.api.gathering import RunLine as RunLine
from mesh.api.held import find_hosts
from mesh.api.meant import clusters_meant, run_of_job
from mesh.api.records import find_record
from mesh.app.assemble import Parts, launch
from mesh.app.screen import Showing
from mesh.config.clusters import LOCAL
from mesh.config.mad import CLUSTER as MAD
from mesh.config.project import Project
from mesh.config.settings import Options, patient
from mesh.core.amounts import ago
from mesh.core.cluster import Cluster, place_ranks
from mesh.core.errors import MeshError, NoHosts, UsageError
from mesh.core.naming import RUN_ID, NamedRun, ambiguous, the_one
from mesh.core.outcome import Cause
from mesh.engine.question import Question
from mesh.hosts.interfaces import Purpose
from mesh.protocol.answers import Owner
from mesh.protocol.questions import AskGpus, AskLeftovers, AskRuns
from mesh.protocol.replies import Cleaned, Gpus, Runs
from mesh.rundir.records import Record

if TYPE_CHECKING:
    from mesh.engine.inquiry import Inquiry, Questions

DEFAULTS = Options()
NAMES_SHOWN = 8  # hosts in one message
STOP_TIMEOUT_S = 3600.0  # seconds for the answer of a host that ends runs: each of them has its own grace


class Answers(Struct, frozen=True, kw_only=True):
    """The runs that hosts have reported, and the hosts that gave no answer."""

    runs: tuple[RunLine, ...]
    failures: tuple[str, ...]  # one line for each host


class Leftover(Struct, frozen=True, kw_only=True):
    """Something that a run has left on a host."""

    host: str
    what: str
    bytes: int
    stays: bool  # it could not be removed


def ps(
    *,
    cluster: str = "",
    options: Options = DEFAULTS,
    clusters_file: str = "",
    show: Callable[[Sequence[RunLine]], object] = lambda lines: None,
) -> Answers:
    """The runs on the hosts of a cluster, whoever of this login has started them, and from wherever.

    cluster: "" for all of cluster.yaml and this machine: they are asked at once, and a host has 5 s to answer
    show: is called with runs as soon as all of their hosts have answered, with each run once
    Raises UsageError.
    """
    failures: list[str] = []
    question = Question(message=AskRuns())
    gathering = Gathering(show)
    if cluster:
        for found in clusters_of(cluster, options, clusters_file, failures):
            inquiry = ask(found, question)
            failures += told_failures(found, inquiry)
            for node, answer in inquiry.replies(Runs).items():
                gathering.take(found.hosts[node], answer)
    else:
        from mesh.api.everywhere import ask_everywhere

        failures += ask_everywhere(_all_clusters(options, clusters_file, failures), question, gathering.take)
    return Answers(runs=gathering.end(), failures=tuple(failures))


def runs_on(cluster: Cluster) -> Answers:
    """Return the runs on the hosts of a cluster, which are given, and the hosts that gave no answer."""
    gathering = Gathering(lambda lines: None)
    inquiry = ask(cluster, Question(message=AskRuns()), quiet=True)
    for node, answer in inquiry.replies(Runs).items():
        gathering.take(cluster.hosts[node], answer)
    return Answers(runs=gathering.end(), failures=tuple(told_failures(cluster, inquiry)))


def clean(
    *, cluster: str, dry_run: bool = False, options: Options = DEFAULTS, clusters_file: str = ""
) -> list[Leftover]:
    """Remove what runs that were cut short have left on the hosts: spools, half-written files, processes.

    dry_run: only list it. Workspaces, and what a setup has left running, are not touched.
    Raises UsageError, and MeshError if a host cannot be asked.
    """
    found = choose_cluster(cluster, options, clusters_file, purpose=Purpose.ASK)
    inquiry = ask(found, Question(message=AskLeftovers(dry_run=dry_run), answer_s=STOP_TIMEOUT_S))
    troubles = told_failures(found, inquiry)
    if troubles:
        raise MeshError("\n".join(troubles))
    return [
        Leftover(host=found.hosts[node].name, what=item.what, bytes=item.bytes, stays=item.stays)
        for node, answer in inquiry.replies(Cleaned).items()
        for item in answer.found
    ]


def count_gpus(cluster: Cluster, *, quiet: bool = False) -> int:
    """How many GPUs every host of a cluster has. Raises MeshError unless all have the same number, at least 1."""
    inquiry = ask(cluster, Question(message=AskGpus()), quiet=quiet)
    troubles = told_failures(cluster, inquiry)
    if troubles:
        raise MeshError("\n".join(troubles), hint=next(iter(inquiry.failures.values())).hint)
    return agreed({cluster.hosts[node].name: answer.gpus for node, answer in inquiry.replies(Gpus).items()})


def agreed(gpus: Mapping[str, int]) -> int:
    """The number of GPUs that all hosts have. Raises MeshError unless it is one number, at least 1."""
    from mesh.core.ranks import counted

    found: dict[int, list[str]] = {}
    for host, count in gpus.items():
        found.setdefault(count, []).append(host)
    if len(found) == 1 and 0 not in found:
        return next(iter(found))
    told = "; ".join(
        f"{counted(count, 'GPU') if count else 'no GPU'} on {_few(names)}" for count, names in sorted(found.items())
    )
    if not any(found):
        raise MeshError(f"--nproc auto: {told}", hint="give --nproc NUMBER; JAX on TPU wants one rank on each host")
    hint = "give --nproc NUMBER, or leave hosts out with --exclude"
    raise MeshError(f"--nproc auto: the hosts differ: {told}", hint=hint)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else "")


class FoundRun(Struct, frozen=True, kw_only=True):
    """A run that a command is about."""

    run: str  # its id
    clusters: tuple[Cluster, ...]  # where it may be
    problems: tuple[str, ...]  # clusters that cannot be asked, one line each
    record: Record | None  # this machine's record of it; None if there is none


def find_run(run: str, cluster: str, options: Options, clusters_file: str) -> FoundRun:
    """Return the run that a name means, and where it is: as ``stop`` takes them. Raises UsageError.

    A name that is a cluster means the run on its hosts, and a job means its newest run.
    """
    own, its = run_of_job(run) if not cluster else ("", "")
    if own:
        run, cluster = own, its
    elif meant := clusters_meant(run, cluster, clusters_file):
        run = _only_one("", [choose_cluster(run, options, clusters_file, purpose=Purpose.ASK)])
        if not find_record(run):  # all hosts of these clusters may have it, not only those that were named
            whole = [choose_cluster(name, options, clusters_file, purpose=Purpose.ASK) for name in meant]
            return FoundRun(run=run, clusters=tuple(whole), problems=(), record=None)
    record = find_record(run)
    full = record.run if record else run if RUN_ID.fullmatch(run) else ""
    recorded = record.cluster if record else ""
    problems: list[str] = []
    if recorded == MAD and not cluster:
        hint = "write one with these hosts, user and key into cluster.yaml, and name it with --cluster"
        raise UsageError(f"{full} is on nodes that were named to `mesh mad` alone, and are no cluster", hint=hint)
    clusters = tuple(clusters_of(cluster or recorded, options, clusters_file, problems))
    return FoundRun(run=full or _only_one(run, clusters), clusters=clusters, problems=tuple(problems), record=record)


def ask(
    cluster: Cluster,
    question: Question,
    then: Callable[[Inquiry], Questions] | None = None,
    *,
    reach: float = math.inf,
    quiet: bool = False,
    busy: float = 0.0,
) -> Inquiry:
    """Ask every host.

    then: as with Inquiry; reach: as reach_limit_s of Parts; quiet: as with Showing
    busy: seconds for which a host may answer no beat, because it waits for what was asked
    """
    from mesh.engine.inquiry import Inquiry

    spec = make_spec(Project(workspace=Path("/"), named=False), DEFAULTS, ())
    rules = replace(spec.rules, host_grace=max(spec.rules.host_grace, busy))
    spec = knowing_secrets(replace(spec, sync=False, lock=False, rules=rules))
    placement = place_ranks(cluster.hosts)
    inquiry = Inquiry(placement, question, then)
    showing = Showing(kept=False, quiet=quiet)
    outcome, _, _ = launch(Parts(spec=spec, cluster=cluster, showing=showing, decider=inquiry, reach_limit_s=reach))
    if outcome.cause is Cause.SIGNAL:
        raise KeyboardInterrupt
    return inquiry


def told_failures(cluster: Cluster, inquiry: Inquiry) -> list[str]:
    """The hosts that gave no answer, one line each."""
    return [f"{cluster.hosts[node].name}: {failure.message}" for node, failure in sorted(inquiry.failures.items())]


def _all_clusters(options: Options, clusters_file: str, problems: list[str]) -> list[Cluster]:
    """Return all clusters that can be used, this machine included; their sources are asked at the same time.

    problems: gets a line for each of the others
    """
    if options.hosts or options.ranks or options.exclude:
        raise NOT_NAMED
    here = choose_cluster(f"{LOCAL}:1", DEFAULTS, clusters_file)
    file = cluster_file(clusters_file)
    problems += [f"{bad}: not asked: {lines[0]}" for bad, lines in file.problems.items()]

    def find(cluster: Cluster) -> Cluster | MeshError:
        try:
            return find_hosts(cluster, Purpose.ASK)
        except MeshError as error:
            return error

    with ThreadPoolExecutor(max(1, len(file.clusters))) as pool:
        found = list(pool.map(find, file.clusters.values()))
    problems += [
        f"{name}: not asked: {one}"
        for name, one in zip(file.clusters, found, strict=True)
        if isinstance(one, MeshError) and not isinstance(one, NoHosts)  # nothing runs where there are no hosts
    ]
    return [here, *(one for one in found if isinstance(one, Cluster))]


def clusters_of(name: str, options: Options, clusters_file: str, problems: list[str]) -> Iterable[Cluster]:
    """The one that is named, or all that can be used, this machine included.

    problems: gets a line for each of the others
    """
    if name:
        yield choose_cluster(name, options, clusters_file, purpose=Purpose.ASK)
        return
    if options.hosts or options.ranks or options.exclude:
        raise NOT_NAMED
    yield choose_cluster(f"{LOCAL}:1", DEFAULTS, clusters_file)
    file = cluster_file(clusters_file)
    problems += [f"{bad}: not asked: {lines[0]}" for bad, lines in file.problems.items()]
    for cluster in file.clusters.values():
        try:
            yield patient(find_hosts(cluster, Purpose.ASK), options, os.environ)
        except NoHosts:
            continue  # nothing runs there
        except MeshError as error:
            problems.append(f"{cluster.name}: not asked: {error}")


def _only_one(name: str, clusters: Sequence[Cluster]) -> str:
    """Return the run on the hosts that a word means, the only one there for "".

    Raises UsageError, and MeshError if a host is silent.
    """
    known: dict[str, NamedRun] = {}
    silent: list[str] = []
    for cluster in clusters:
        inquiry = ask(cluster, Question(message=AskRuns()))
        silent += told_failures(cluster, inquiry)
        for answer in inquiry.replies(Runs).values():
            known |= {orphan.run: NamedRun(run=orphan.run) for orphan in answer.orphans}
            known |= {one.run: _named(one.run, one.about) for one in answer.runs}
    runs = list(known.values())
    where = ", ".join(cluster.name for cluster in clusters)
    if len(runs) > 1 and not name:
        raise ambiguous(f"several runs are on {where}", runs)
    if found := the_one(name, runs):
        return found.run
    wanted = f"no run {name!r}" if name else "no run"
    if silent:
        hint = "`mesh check CLUSTER` shows what is wrong there; --cluster asks one alone"
        raise MeshError("\n".join([f"{wanted} is on hosts that answer", *silent]), hint=hint)
    hint = f"`mesh ps` shows {', '.join(sorted(known)[-NAMES_SHOWN:])}" if known else "`mesh ps` shows none at all"
    raise UsageError(f"{wanted} is on {where}", hint=hint)


def _named(run: str, about: Owner) -> NamedRun:
    """Return the words for a run that a host reports. about: its owner"""
    age = "" if about.since is None else ago(time.time() - about.since)
    return NamedRun(run=run, name=about.name, tags=tuple(about.tags), command=about.command, age=age)
