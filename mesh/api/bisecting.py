"""The difference between a good run and a bad one: ``mesh bisect``. Runs between the two show which change decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mesh.api.choosing import DEFAULTS, choose_cluster
from mesh.api.detached import with_hosts
from mesh.api.rerunning import Replayable, check_hosts, replayable, restored, spec_with
from mesh.api.running import Beside, run_on
from mesh.app.modules import preparation_of
from mesh.app.screen import Showing
from mesh.config.retries import BISECTION_RUNS_MAX
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.minimizing import smallest
from mesh.core.outcome import Cause
from mesh.core.paths import cache_directory, kept_trees_directory
from mesh.core.run import RunSpec
from mesh.rundir.results import RunResult
from mesh.workspace.listing import told
from mesh.workspace.manifest import Manifest
from mesh.workspace.mixing import differing, mixed
from mesh.workspace.rebuilding import of_directory, rebuild

CONFIRMING_RUNS = 2  # the good and the bad one again
EXIT_DISAGREES = 1  # where one of them does not end as it did


class Change(Struct, frozen=True, order=True):
    """A difference between two runs."""

    kind: str  # "file", "host added" or "host left out"
    name: str  # of the host, or the path as a manifest has it

    @property
    def shown(self) -> str:
        """The change in words."""
        return told(self.name.encode("latin-1")) if self.kind == "file" else f"{self.kind}: {self.name}"


class Found(Struct, frozen=True, kw_only=True):
    """The changes that make the difference."""

    changes: tuple[Change, ...]
    runs: int  # that it took
    is_smallest: bool  # False: the runs were used up


class Stopped(MeshError):
    """A trial was ended by the user."""

    exit_code = 130


def bisect(
    good: str,
    bad: str,
    *,
    runs: int = BISECTION_RUNS_MAX,
    env: Mapping[str, str] | None = None,
    clusters_file: str = "",
    report: Callable[[str], None] = lambda text: None,
) -> Found:
    """Find the files or hosts that make a run end as a bad one and not as a good one.

    good, bad: runs of this machine, as ``replay`` takes them
    runs: so many at most, each beside others and in a copy of the workspace that is removed; env: as with ``replay``
    report: called with a line about each run
    Raises UsageError for runs that cannot be compared, and MeshError if one of the two ends otherwise than before.
    """
    if runs < CONFIRMING_RUNS:
        text = f"--max-runs: expected at least {CONFIRMING_RUNS}, found {runs}"
        raise UsageError(text, hint=f"mesh bisect {good} {bad}")
    trials = Trials(replayable(good), replayable(bad), env or {}, clusters_file, report)
    trials.confirm()
    found = smallest(trials.changes, trials.is_bad, runs - CONFIRMING_RUNS)
    return Found(changes=tuple(sorted(found.changes)), runs=trials.count, is_smallest=found.is_smallest)


class Trials:
    """Runs between a good one and a bad one."""

    def __init__(
        self,
        good: Replayable,
        bad: Replayable,
        env: Mapping[str, str],
        clusters_file: str,
        report: Callable[[str], None],
    ) -> None:
        """Find what differs. Raises UsageError if nothing does, or more than files and hosts."""
        check_comparable(good, bad)
        self._good, self._bad, self._env, self._report = good, bad, env, report
        self.changes = changes_between(good, bad)
        self._order = merged(hosts_with_ranks(good), hosts_with_ranks(bad))
        self._cluster = _cluster_of(good, bad, clusters_file)
        self._places: list[Path] = []  # directories with the files of both
        self.count = 0

    def confirm(self) -> None:
        """Run both again. Raises MeshError if one of them does not end as it did."""
        self._places = [restored(found) for found in (self._good, self._bad)]
        for name, found, changes in (("good", self._good, []), ("bad", self._bad, self.changes)):
            now, before = self._run(found, found.manifest, changes).exit_code, found.record.exit_code
            self._report(f"run {self.count}: the {name} one again, exit {now}")
            if now != before:
                text = f"bisect: run {found.record.run} ended with {before}, and ends with {now} now"
                error = MeshError(text, hint=f"mesh replay {found.record.run}")
                error.exit_code = EXIT_DISAGREES
                raise error

    def is_bad(self, changes: Sequence[Change]) -> bool:
        """Return True if some of the changes suffice for a run to end as the bad one."""
        if not self._hosts(changes):
            return False
        paths = {change.name for change in changes if change.kind == "file"}
        code = self._run(self._bad, mixed(self._good.manifest, self._bad.manifest, paths), changes).exit_code
        is_bad = code == self._bad.record.exit_code
        told_end = "bad" if is_bad else "good" if code == self._good.record.exit_code else f"neither, exit {code}"
        self._report(f"run {self.count}: {len(changes)} of {len(self.changes)} changes: {told_end}")
        return is_bad

    def _hosts(self, changes: Sequence[Change]) -> list[str]:
        """Return the hosts of a run with some changes, in the order in which both runs had them."""
        added = {change.name for change in changes if change.kind == "host added"}
        left_out = {change.name for change in changes if change.kind == "host left out"}
        wanted = ({*hosts_with_ranks(self._good)} - left_out) | added
        return [name for name in self._order if name in wanted]

    def _slices(self, hosts: Sequence[str]) -> Sequence[int]:
        """Return the slices of the run that had exactly these hosts; () if neither had."""
        for found in (self._bad, self._good):
            if list(hosts) == hosts_with_ranks(found):
                return found.record.about.get("slices") or ()
        return ()

    def _run(self, found: Replayable, manifest: Manifest, changes: Sequence[Change]) -> RunResult:
        """Run it beside others, in a copy of the workspace. Raises MeshError if the user ends it."""
        place, sources = kept_trees_directory(os.environ), [of_directory(one) for one in self._places]
        directory, missing = rebuild(manifest, place, sources, cache_directory(os.environ))
        if missing:
            raise MeshError(f"bisect: {missing[0]} was removed meanwhile", hint="once more, without `mesh runs prune`")
        spec, project = spec_with(found, directory, self._env)
        prerun = project.prerun if project.named else spec.prerun
        tags = (f"bisect-{self._good.record.run}",)
        spec = replace(spec, share=True, lock=False, wait=0.0, spares=0, name="", tags=tags, prerun=prerun)
        hosts = self._hosts(changes)
        cluster = with_hosts(self._cluster, hosts, self._slices(hosts))
        spec, preparation = preparation_of(spec, cluster, project.modules.descriptions)
        self.count += 1
        result = run_on(cluster, spec, Showing(quiet=True), beside=Beside(preparation=preparation))
        check_decided(result)
        return result


def check_decided(result: RunResult) -> None:
    """Raise MeshError for a trial that the user has ended or detached: its status shows nothing."""
    is_detached = result.cause is Cause.DETACHED
    if not (result.was_stopped or is_detached):
        return
    end = "detached" if is_detached else "stopped"
    error = Stopped(f"bisect: run {result.run} was {end}", hint=f"mesh logs {result.run}")
    if result.cause is Cause.SIGNAL:  # else a rank had failed before the signal came
        error.exit_code = result.exit_code
    raise error


def check_comparable(good: Replayable, bad: Replayable) -> None:
    """Raise UsageError for two runs whose difference is not in files and hosts alone."""
    one, other = good.record, bad.record
    again = f"mesh bisect {one.run} OTHER"
    if one.run == other.run:
        raise UsageError(f"bisect: {one.run} is both the good and the bad run", hint="mesh runs")
    for record in (one, other):
        if record.exit_code is None:
            raise UsageError(f"bisect: the end of run {record.run} is not recorded", hint=f"mesh attach {record.run}")
    if one.exit_code == other.exit_code:
        raise UsageError(f"bisect: both runs ended with {one.exit_code}", hint=again)
    if _commands(one.spec) != _commands(other.spec):
        raise UsageError("bisect: the commands of the two runs differ, not only their files and hosts", hint=again)


def _commands(spec: RunSpec) -> list[tuple[object, ...]]:
    return [(group.label, group.command, group.nproc, spec.launcher) for group in spec.groups]


def hosts_with_ranks(found: Replayable) -> list[str]:
    """Return the hosts of a run, without its spare ones."""
    hosts = list(found.record.hosts)
    return hosts[: len(hosts) - found.record.spec.spares]


def changes_between(good: Replayable, bad: Replayable) -> list[Change]:
    """Return what differs between two runs: hosts, then files. Raises UsageError if nothing does."""
    ours, theirs = hosts_with_ranks(good), hosts_with_ranks(bad)
    of_hosts = [Change("host added", name) for name in theirs if name not in ours]
    of_hosts += [Change("host left out", name) for name in ours if name not in theirs]
    if of_hosts and any(group.hosts for record in (good, bad) for group in record.record.spec.groups):
        raise UsageError("bisect: runs with roles on different hosts cannot be compared", hint="mesh replay RUN")
    order = [name for name in theirs if name in ours]
    if order != [name for name in ours if name in theirs]:  # a rank has another number then
        text = f"bisect: the two runs had their hosts in different orders ({','.join(ours)}; {','.join(theirs)})"
        raise UsageError(text, hint=f"mesh replay {bad.record.run}")
    found = [*of_hosts, *(Change("file", path) for path in differing(good.manifest, bad.manifest))]
    if not found:
        raise UsageError("bisect: both runs had the same files and hosts", hint=f"mesh replay {bad.record.run}")
    return found


def merged(some: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names of two lists in one order that both have. What both have must be in the same order.

    >>> merged(["a", "b", "c"], ["x", "b", "y"])
    ['x', 'a', 'b', 'y', 'c']
    """
    rest, found = list(some), list[str]()
    for name in others:
        if name in rest:
            place = rest.index(name)
            found += rest[:place]
            rest = rest[place + 1 :]
        found.append(name)
    return found + rest


def _cluster_of(good: Replayable, bad: Replayable, clusters_file: str) -> Cluster:
    """Return a cluster with the hosts of both runs. Raises UsageError if it has one of them no more."""
    names = dict.fromkeys((bad.record.cluster, good.record.cluster))
    clusters = [choose_cluster(name, DEFAULTS, clusters_file) for name in names]
    if len({cluster.backend for cluster in clusters}) > 1:
        raise UsageError("bisect: the hosts of the two runs are reached in different ways", hint="mesh replay RUN")
    hosts = {host.name: host for cluster in reversed(clusters) for host in cluster.hosts}
    found = replace(clusters[0], hosts=tuple(hosts.values()), slices=(), spares=0)
    for one in (good, bad):
        check_hosts(one.record, found)
    return found
