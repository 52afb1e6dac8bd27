"""Runs that go on without a client: finding one, and the directory here that it is written to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.checking import TCP_TIMEOUT_S
from mesh.api.choosing import choose_cluster, knowing_secrets
from mesh.api.inquiries import ask, clusters_of, told_failures
from mesh.app.assemble import Attaching
from mesh.config.selectors import HOST_LIST, select_hosts
from mesh.config.settings import Options, patient
from mesh.core.cluster import Cluster, Host
from mesh.core.errors import MeshError, UsageError
from mesh.core.naming import LAST, RUN_ID, NamedRun, the_one
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec, followed
from mesh.engine.question import Question
from mesh.hosts.interfaces import Purpose
from mesh.protocol.nodes import Taken
from mesh.protocol.questions import AskJournals
from mesh.protocol.records import fields_of
from mesh.protocol.replies import Journals, Plan
from mesh.rundir.about import MOVES
from mesh.rundir.layout import LOGS, SUFFIX
from mesh.rundir.records import Record, arrivals_of, read_record, read_spec
from mesh.rundir.results import RunResult
from mesh.rundir.resuming import read_left

DEFAULTS = Options()
ALL_OUTPUT_BYTES = 1 << 62  # more than a stream has


class DetachedRun(Struct, frozen=True, kw_only=True):
    """A run that there is somewhere."""

    run: str  # its id
    cluster: str
    about: Mapping[str, Any]  # as run.json has it: hosts, slices, spec


def known(record: Record, cluster: str = "") -> DetachedRun:
    """Return a run by its directory on this machine. cluster: where it is; "": the one in the directory."""
    return DetachedRun(run=record.run, cluster=cluster or record.cluster, about=record.about)


def find_detached(name: str, cluster: str, clusters_file: str) -> DetachedRun:
    """Find a run that this machine has no directory of, by the journals of the hosts.

    name: its id, name or tag, a part of the first two, or "last": the newest one that is no exec
    cluster: where it is; "": every cluster of cluster.yaml is asked
    Raises UsageError if there is none, and MeshError if some hosts could not be asked.
    """
    found: dict[str, DetachedRun] = {}
    runs: list[NamedRun] = []
    failures: list[str] = []
    arrivals: dict[str, list[tuple[str, Taken]]] = {}
    for asked in clusters_of(cluster, DEFAULTS, clusters_file, []):
        inquiry = ask(asked, Question(message=AskJournals()), reach=TCP_TIMEOUT_S)
        failures += told_failures(asked, inquiry)
        for node, answer in inquiry.replies(Journals).items():
            for journal in answer.tapes:
                run, plan = journal.run, journal.plan
                arrivals.setdefault(run, []).extend((asked.hosts[node].name, one) for one in journal.taken)
                # The name becomes a directory here, so no other text of a host is accepted.
                if RUN_ID.fullmatch(run) and plan and run not in found:
                    found[run] = planned(run, plan, asked, clusters_file)
                    spec = read_spec(found[run].about, run)
                    if name != LAST or not spec.is_exec:
                        runs.append(NamedRun(run=run, name=spec.name, tags=spec.tags, command=spec.told))
    meant = max(runs, key=lambda one: one.run, default=None) if name == LAST else the_one(name, runs)
    if meant is None:
        what = "detached run" if name == LAST else f"detached run {name!r}"
        if failures:  # it may be on those hosts
            lines = [f"no {what} is recorded here, or on hosts that answer", *failures]
            raise MeshError("\n".join(lines), hint=f"mesh check {cluster or 'CLUSTER'}")
        where = f"on {cluster}" if cluster else "on any cluster"
        raise UsageError(f"no {what} is recorded here, or {where}", hint="`mesh ps` lists what runs")
    moves = [moved_to(host, one) for host, one in sorted(arrivals[meant.run], key=lambda item: item[1].attempt)]
    return _with_moves(found[meant.run], moves)


def with_moves(found: DetachedRun, clusters_file: str) -> DetachedRun:
    """Return a run with all moves of ranks in its hosts' journals: a client may be killed before it has written one.

    Hosts that cannot be asked are left out. Raises UsageError if there is no such cluster any more.
    """
    cluster = choose_cluster(found.cluster, DEFAULTS, clusters_file, purpose=Purpose.ASK)
    asked = with_hosts(cluster, found.about["hosts"])
    inquiry = ask(asked, Question(message=AskJournals()), reach=TCP_TIMEOUT_S)
    moves: dict[tuple[int, int], dict[str, object]] = {
        (one["rank"], one["attempt"]): one for one in found.about.get("moves") or ()
    }
    for node, answer in inquiry.replies(Journals).items():
        for one in (one for journal in answer.tapes if journal.run == found.run for one in journal.taken):
            moves.setdefault((one.rank, one.attempt), moved_to(asked.hosts[node].name, one))
    return _with_moves(found, [moves[key] for key in sorted(moves, key=lambda key: key[1])])


def _with_moves(found: DetachedRun, moves: Sequence[Mapping[str, object]]) -> DetachedRun:
    """Return a run with these moves of its ranks, in order, and no others."""
    if not moves:
        return found
    now = {str(one["rank"]): one["host"] for one in moves}
    return replace(found, about={**found.about, "moves": list(moves), "moved": now})


def moved_to(host: str, one: Taken) -> dict[str, object]:
    """Return the move of a rank as run.json has it."""
    return {"rank": one.rank, "host": host, "attempt": one.attempt, "printed": dict(one.printed)}


def planned(run: str, plan: Plan, asked: Cluster, clusters_file: str = "") -> DetachedRun:
    """Return a run by the plan that a host of ``asked`` has sent."""
    where = _cluster_of(plan, asked, clusters_file)
    return DetachedRun(run=run, cluster=where, about={**fields_of(plan), "cluster": where})


def _cluster_of(plan: Plan, asked: Cluster, clusters_file: str) -> str:
    """Return the cluster of a run that a host reports: the run's own name for it, if that has all of its hosts here.

    A host cannot name hosts that are in no file, so that no host can make mesh connect to others.
    """
    if HOST_LIST in plan.cluster:
        return asked.name
    try:
        named = choose_cluster(plan.cluster, DEFAULTS, clusters_file, purpose=Purpose.ASK)
    except MeshError:  # another machine may have other names
        return asked.name
    has_all = set(plan.hosts) <= {host.name for host in named.hosts}
    return named.name if has_all and named.backend == asked.backend else asked.name


def with_hosts(cluster: Cluster, names: Sequence[str], slices: Sequence[int] = ()) -> Cluster:
    """The cluster with the hosts of a run; one that it has no more is named, and not looked for."""
    hosts = {host.name: host for host in cluster.hosts}
    chosen = tuple(hosts.get(name) or Host(name=name, address="") for name in names)
    return replace(cluster, hosts=chosen, slices=tuple(slices))


def hosts_of_run(record: Record, options: Options, clusters_file: str) -> Cluster:
    """Return the hosts of a run that this machine has started, without those that options leave out.

    Raises UsageError.
    """
    cluster = choose_cluster(record.cluster, DEFAULTS, clusters_file)
    return select_hosts(patient(with_hosts(cluster, record.hosts), options, os.environ), options)


def prepared(found: DetachedRun, clusters_file: str) -> tuple[RunSpec, Cluster]:
    """Return the spec for a client that follows a run, and the cluster of its hosts. Raises UsageError."""
    cluster = choose_cluster(found.cluster, DEFAULTS, clusters_file, purpose=Purpose.ASK)
    spec = knowing_secrets(followed(read_spec(found.about, found.run)))
    return spec, with_hosts(cluster, found.about["hosts"], found.about.get("slices") or ())


class Scratch:
    """A temporary directory for the end of a detached run: none of its output is fetched into it."""

    def __init__(self, found: DetachedRun) -> None:
        """Raises OSError."""
        from mesh.rundir.resuming import open_events

        self._temporary = tempfile.mkdtemp(prefix="mesh-end-")
        self.directory = Path(self._temporary) / found.run
        self.directory.mkdir(mode=0o700)
        placement = read_spec(found.about, found.run).placed(
            [Host(name=name, address="") for name in found.about["hosts"]]
        )
        have = {(rank, stream): ALL_OUTPUT_BYTES for rank in range(placement.world_size) for stream in SUFFIX}
        self.attaching = Attaching(
            directory=self.directory,
            left=read_left(read_record(self.directory), open_events(self.directory)),
            fetch=have,
            hide={},
            told=self.directory / LOGS,
            begin="here",
            arrivals=arrivals_of(found.about, found.about["hosts"]),
            only_end=True,
        )

    def forget(self) -> None:
        """There is no such run; ``close`` removes all there is."""

    def close(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


class Place:
    """The directory that a detached run is written to, and what is fetched for it."""

    def __init__(self, found: DetachedRun, begin: str, *, shared: bool = True) -> None:
        """begin: as Attaching has it, or "start": all of it comes again

        shared: where another client of this machine writes it, we write for ourselves alone
        Raises BlockingIOError if that may not be, and OSError.
        """
        from mesh.rundir.resuming import open_events

        directory = runs_directory(os.environ) / found.run
        arrivals = arrivals_of(found.about, found.about["hosts"])
        self._is_new = not directory.exists()
        self._temporary = ""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            lock = open_events(directory)
        except BlockingIOError:
            if not shared:
                raise
            have = read_left(read_record(directory), -1).have
            self._temporary = tempfile.mkdtemp(prefix="mesh-attach-")
            self._directory = Path(self._temporary) / found.run
            self._directory.mkdir(mode=0o700)
            left = read_left(read_record(self._directory), open_events(self._directory))
            self.attaching = Attaching(
                directory=self._directory,
                left=left,
                fetch={},
                hide=have if begin == "here" else {},
                told=directory / LOGS,
                begin=begin,
                arrivals=arrivals,
            )
        else:
            self._directory = directory
            left = read_left(read_record(directory), lock)
            about = {**found.about, **left.about}
            if len(found.about.get("moves", ())) > len(left.about.get("moves", ())):  # hosts have had more of them
                about |= {name: found.about[name] for name in MOVES}
            left = replace(left, about=about)
            fetch = {} if begin == "start" else left.have
            if begin == "start":
                left = replace(left, skip=left.have)
            self.attaching = Attaching(
                directory=directory,
                left=left,
                fetch=fetch,
                hide={},
                told=directory / LOGS,
                begin=begin,
                arrivals=arrivals,
            )

    def told(self, result: RunResult) -> RunResult:
        """Return the result with the paths of the other client, as our own directory goes."""
        logs = self.attaching.told
        ranks = [
            replace(one, stdout_path=logs / one.stdout_path.name, stderr_path=logs / one.stderr_path.name)
            for one in result.ranks
        ]
        return replace(result, ranks=tuple(ranks), directory=logs.parent)

    def forget(self) -> None:
        """There is no such run: what we have made for it goes."""
        if self._is_new:
            shutil.rmtree(self._directory, ignore_errors=True)

    def close(self) -> None:
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)
