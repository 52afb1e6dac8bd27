"""What mesh does, as functions. docs/python.md shows how they are used."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh.api.attaching import attach, detach, signal
from mesh.api.checking import HostReport, check
from mesh.api.choosing import (
    NOT_NAMED,
    choose_cluster,
    cluster_file,
    here,
    hosted,
    make_spec,
    named_cluster,
    project_here,
)
from mesh.api.hangs import Stacks, stacks
from mesh.api.inquiries import Answers, Leftover, RunLine, clean, ps, stop
from mesh.api.logs import logs
from mesh.api.mad import mad, plan_mad
from mesh.api.multihost import SCP_TIMEOUT_SECS, multihost
from mesh.api.pulling import pull
from mesh.api.records import Removed, list_records, prune
from mesh.api.running import run_on
from mesh.api.wiring import Showing, launch, placed
from mesh.config.clusters import LOCAL, find_cluster
from mesh.config.project import FILE as PROJECT_FILE
from mesh.config.project import TEMPLATE, check_workspace
from mesh.config.settings import Options
from mesh.core.cluster import Cluster, HostKeys
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Event, Synced
from mesh.core.outcome import Outcome
from mesh.core.run import AUTO, Kind, Launch, RunSpec
from mesh.sinks.records import Record
from mesh.sinks.results import PullResult, RankResult, RunResult, SyncResult, failures

if TYPE_CHECKING:
    from mesh.workspace.ignore import Decision

__all__ = [
    "AUTO",
    "SCP_TIMEOUT_SECS",
    "Answers",
    "ClusterLine",
    "Explanation",
    "HostReport",
    "Leftover",
    "Listed",
    "Options",
    "PullResult",
    "RankResult",
    "Record",
    "Removed",
    "RunLine",
    "RunResult",
    "Stacks",
    "SyncResult",
    "attach",
    "check",
    "clean",
    "cluster_names",
    "detach",
    "exec",
    "explain",
    "init",
    "list_clusters",
    "list_records",
    "list_workspace",
    "logs",
    "mad",
    "multihost",
    "plan",
    "plan_mad",
    "prune",
    "ps",
    "pull",
    "run",
    "setup",
    "signal",
    "ssh_argv",
    "stacks",
    "stop",
    "sync",
    "watch",
]

DEFAULTS = Options()


@dataclass(frozen=True, kw_only=True)
class ClusterLine:
    """One line of ``mesh clusters``."""

    name: str
    hosts: tuple[str, ...]  # their names; none if the cluster cannot be used
    problem: str  # why it cannot; "" if it can
    slices: tuple[int, ...] = ()  # how many of the hosts each slice has; (): there are no slices
    note: str = ""  # how its hosts were found, for people; "": they stand in the file


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file or link of the workspace."""

    path: str  # relative to the workspace
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a path belongs to the workspace, or does not."""

    belongs: bool
    path: str  # relative to the workspace
    obstacle: str  # why it is not sent although no rule leaves it out, as "it is a FIFO"; "": nothing is in the way
    above: str  # the directory above it that is left out, relative to the workspace; "": none is
    rule: str  # the pattern that decides; "": none is about it
    place: str  # its file and line
    emptied: bool = (
        False  # the path is a directory that is sent without anything in it, for which ``rule`` is the reason
    )


def run(
    command: Sequence[str],
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    fold: str = "numbers",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run a command on every rank of a cluster, with the working directory there.

    command: the words for execve, the program first; no shell reads them
    cluster: a name from cluster.yaml, or "local", or "local:N"; clusters_file: another file than the usual one
    output: "all", "fold", "rank0" or "none" of what ranks print, "": "fold" on a terminal, else "all"
    label: "rank" or "host"; fold: "numbers", or "exact" to fold only equal lines
    json: events as JSON lines on stdout; what is for people goes to stderr
    quiet: print nothing at all; the run directory has everything
    Raises UsageError for wrong arguments or files; whatever goes wrong later is in the result. In the main thread,
    SIGINT, SIGTERM and SIGHUP end the run as they do for the command line.
    """
    found, project = choose_cluster(cluster, options, clusters_file), project_here()
    check_workspace(project, Path.home())
    spec = make_spec(project, options, _words(command))
    with_lock = found.backend != "local"
    spec = dataclasses.replace(spec, lock=with_lock and not spec.share, claim=with_lock)
    showing = Showing(output=output, label=label, fold=fold, json=json, quiet=quiet)
    return run_on(found, spec, showing, check_first=options.check)


def exec(  # noqa: A001  (the command's name)
    command: Sequence[str],
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    fold: str = "numbers",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """The same as ``run`` without sync, prerun and lock: safe while a run is on."""
    found = choose_cluster(cluster, options, clusters_file)
    spec = make_spec(project_here(), options, _words(command))
    spec = dataclasses.replace(spec, sync=False, lock=False, prerun=())
    showing = Showing(output=output, label=label, fold=fold, json=json, quiet=quiet)
    return run_on(found, spec, showing, check_first=options.check)


def sync(
    *, cluster: str, options: Options = DEFAULTS, clusters_file: str = "", json: bool = False, quiet: bool = False
) -> SyncResult:
    """Bring the workspace to every host of a cluster, and start nothing. Raises UsageError.

    json, quiet: as with run
    """
    return _sync(cluster, options, clusters_file, Showing(json=json, quiet=quiet), watch=False)[0]


def watch(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    json: bool = False,
    say: Callable[[str], None],
    complain: Callable[[MeshError], None],
) -> int:
    """``sync`` now and after each change of the workspace; return the exit status once a signal has ended it.

    A busy host is waited for, unless options say how long; no sync has a run directory.
    json: as with run; say, complain: tell the user what is no event of a sync
    Raises UsageError, and MeshError if the workspace cannot be watched.
    """
    from mesh.api.watching import keep_synced

    def sync_once(options: Options) -> int:
        result, outcome = _sync(cluster, options, clusters_file, Showing(json=json, kept=False), watch=True)
        return 128 + outcome.signal if outcome.signal else result.exit_code

    return keep_synced(sync_once, options, say, complain)


def _sync(
    cluster: str, options: Options, clusters_file: str, showing: Showing, *, watch: bool
) -> tuple[SyncResult, Outcome]:
    found, project = choose_cluster(cluster, options, clusters_file), project_here()
    check_workspace(project, Path.home())
    spec = dataclasses.replace(
        make_spec(project, options, ()), kind=Kind.SYNC, lock=found.backend != "local", prerun=(), watch=watch
    )
    collected = _Synced()
    outcome, placement, _ = launch(spec, found, showing, collected)
    result = SyncResult(
        exit_code=outcome.exit_code,
        files=max((event.files for event in collected.events), default=0),
        sent=sum(event.bytes for event in collected.events),
        failures=failures(outcome, placement),
    )
    return result, outcome


def list_workspace() -> list[Listed]:
    """What a run would send, the biggest first. Raises MeshError."""
    from mesh.workspace import listing

    project = project_here()
    check_workspace(project, Path.home())
    found = listing.list_workspace(project.workspace, project.ignore, include_git=project.include_git)
    listed = [
        Listed(path=os.fsdecode(entry.path), size=entry.size)
        for entry in found.entries
        if entry.kind is not listing.Kind.DIRECTORY
    ]
    return sorted(listed, key=lambda one: (-one.size, one.path))


def explain(path: str) -> Explanation:
    """Whether a path belongs to the workspace, and which rule decides. Raises UsageError if it is outside."""
    from mesh.workspace.ignore import explain as decide
    from mesh.workspace.listing import obstacle

    project = project_here()
    inside = _inside(project.workspace, path)

    def decided(path: bytes) -> Decision:
        ignore, places = project.ignore, project.ignore_places
        return decide(project.workspace, path, ignore, include_git=project.include_git, places=places)

    decision = decided(inside)
    in_the_way = obstacle(project.workspace, inside) if decision.belongs else ""
    belongs = decision.belongs and not in_the_way
    below = [decided(child) for child in _children(project.workspace, inside)] if belongs else []
    emptied = bool(below) and not any(child.belongs for child in below)
    rule = below[0].rule if emptied else decision.rule
    return Explanation(
        belongs=belongs,
        path=os.fsdecode(inside),
        obstacle=in_the_way,
        above="" if decision.path == inside.strip(b"/") else os.fsdecode(decision.path),
        rule=os.fsdecode(rule.text) if rule else "",
        place=rule.place if rule else "",
        emptied=emptied,
    )


def _children(workspace: Path, path: bytes) -> list[bytes]:
    """What is in a directory of the workspace, in order; nothing if it is none, or cannot be read."""
    place = os.path.join(os.fsencode(workspace), path.strip(b"/"))
    try:
        return [] if os.path.islink(place) else [os.path.join(path, name) for name in sorted(os.listdir(place))]
    except OSError:
        return []


def _inside(workspace: Path, path: str) -> bytes:
    """A path as it is relative to the workspace; a slash at its end stays. Raises UsageError."""
    given = os.path.normpath(here() / path)
    # A link in it is not followed, unless the way to the workspace leads over one.
    for place in (given, os.path.join(os.path.realpath(os.path.dirname(given)), os.path.basename(given))):
        inside = os.path.relpath(place, workspace)
        if inside == os.curdir:
            raise UsageError(f"{path} is the workspace itself")
        if inside.split(os.sep)[0] != os.pardir:
            return os.fsencode(inside + "/" * path.endswith("/"))
    raise UsageError(f"{path} is not in the workspace, {workspace}")


def setup(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    force: bool = False,
    clusters_file: str = "",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run the ``commands:`` of mesh.yaml on every host; a host stops at its first command that fails.

    force: also those that ``unless`` would skip
    Rank i of the result is host i; what it printed is in logs/setup-HOST.log. Raises UsageError.
    """
    found, project = choose_cluster(cluster, options, clusters_file), project_here()
    if options.nproc != 1 or options.launcher or options.stdin != "none":
        hint = "leave out nproc, launcher and stdin"
        raise UsageError("a setup is once for each host and has no standard input", hint=hint)
    spec = dataclasses.replace(
        make_spec(project, options, ()),
        kind=Kind.SETUP,
        commands=project.commands,
        force=force,
        keep_going=True,
        sync=False,
        lock=found.backend != "local",
        prerun=(),
    )
    return run_on(found, spec, Showing(json=json, quiet=quiet))


def plan(
    command: Sequence[str], *, cluster: str, options: Options = DEFAULTS, clusters_file: str = ""
) -> Iterator[str]:
    """What ``run`` would do, in lines for people; does nothing. Raises UsageError."""
    found, project = choose_cluster(cluster, options, clusters_file), project_here()
    check_workspace(project, Path.home())
    return _plan(make_spec(project, options, _words(command)), found)


def list_clusters(clusters_file: str = "", *, refresh: bool = False) -> list[ClusterLine]:
    """What cluster.yaml holds, in its order, and the built-in cluster. Raises UsageError if it cannot be read.

    refresh: ask the TPU API for the hosts of all that are TPUs, whatever it has told lately
    """
    file = cluster_file(clusters_file)
    listed = []
    for name, lines in ((LOCAL, ()), *((name, file.problems.get(name, ())) for name in file.names)):
        try:
            if lines:
                raise UsageError("\n".join(lines))
            found = hosted(find_cluster(name, file), refresh=refresh)
        except MeshError as error:
            problem = f"{error}\n{error.hint}".strip()
            listed.append(ClusterLine(name=name, hosts=(), problem=problem))
        else:
            hosts = tuple(host.name for host in found.hosts)
            listed.append(ClusterLine(name=name, hosts=hosts, problem="", slices=found.slices, note=found.note))
    return listed


def cluster_names(clusters_file: str = "") -> list[str]:
    """The clusters that can be named, without a look at their hosts. Raises UsageError."""
    return [LOCAL, *cluster_file(clusters_file).clusters]


def ssh_argv(target: str, words: Sequence[str], clusters_file: str = "") -> list[str]:
    """The system's ssh command for a host: ``pod:3``, or ``pod`` for its first one. Raises UsageError.

    words: what ssh is to run there, as it takes it; none for a login
    """
    name, colon, number = target.rpartition(":")
    if not colon or not number.isdecimal():
        name, number = target, "0"
    if not name:
        raise NOT_NAMED
    cluster = hosted(named_cluster(name, clusters_file), all_ready=False)
    if cluster.backend != "ssh":
        raise UsageError(f"{name} is this machine", hint="mesh exec runs a command on every host of it")
    if int(number) >= len(cluster.hosts):
        raise UsageError(f"no host {number} in {name}: its hosts are 0-{len(cluster.hosts) - 1}")
    host = cluster.hosts[int(number)]
    checking = "yes" if cluster.host_keys is HostKeys.STRICT else "accept-new"
    argv = ["ssh", "-o", f"StrictHostKeyChecking={checking}"]
    for flag, value in (
        ("-p", str(host.port) if host.port else ""),
        ("-i", host.identity_file),
        ("-J", cluster.gateway),
        ("-o", f"ProxyCommand={host.proxy_command}" if host.proxy_command else ""),
        ("-o", f"HostKeyAlias={host.key_alias}" if host.key_alias else ""),
        ("-l", host.user),
    ):
        argv += [flag, value] if value else []
    return [*argv, host.address, *words]


def init() -> Path:
    """Write a commented mesh.yaml into the working directory and return its path. Raises UsageError if there is one."""
    path = here() / PROJECT_FILE
    try:
        with path.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise UsageError(f"there is a {path} already", hint="edit that one, or remove it first") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


class _Synced:
    """A sink that keeps what was synced."""

    def __init__(self) -> None:
        self.events: list[Synced] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Synced):
            self.events.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...


def _words(command: Sequence[str]) -> Sequence[str]:
    if isinstance(command, str) or not command:
        raise UsageError("expected a command as a list of words", hint='for shell text: ["bash", "-c", TEXT]')
    return command


def _plan(spec: RunSpec, cluster: Cluster) -> Iterator[str]:
    """What --dry-run tells."""
    from mesh.workspace import listing

    yield f"cluster    {cluster.name} ({cluster.backend})"
    placement = placed(spec, cluster)
    for node, host in enumerate(cluster.hosts):
        ranks = placement.ranks(node)
        login = f"{host.user}@{host.address}" if host.user else host.address
        where = "" if cluster.backend == "local" else f" ({login}{f':{host.port}' if host.port else ''})"
        number = f"rank {f'{ranks[0]}-{ranks[-1]}' if len(ranks) > 1 else ranks[0]!s:<5}" if ranks else "host      "
        of_slice = " slice {}".format(*placement.worker(ranks[0])) if ranks and cluster.slices else ""
        yield f"{number} {host.name}{where}{of_slice}"
    if spec.nproc == AUTO:
        yield "nproc      as many as each host has GPUs: the hosts will be asked"
    if spec.launcher is not Launch.NONE:
        yield f"launcher   {spec.launcher.value}, one on each host, for {spec.nproc or 'so many'} processes"
    found = listing.list_workspace(spec.workspace, spec.ignore, include_git=spec.include_git)
    files = [entry for entry in found.entries if entry.kind is not listing.Kind.DIRECTORY]
    yield f"workspace  {spec.workspace}: {len(files)} file(s), {sum(entry.size for entry in files)} bytes"
    places = dict.fromkeys(host.remote_dir or cluster.remote_dir for host in cluster.hosts)
    for place in places:
        yield f"on hosts   {place}/workspaces/{spec.project}"
    for entry in spec.prerun:
        unless = f"  (skipped where it succeeded with the same {', '.join(entry.inputs)})" if entry.inputs else ""
        yield f"prerun     {entry.run}{unless if not spec.force else ''}"
    if spec.env:
        yield f"env        {', '.join(sorted(spec.env))}"
    yield f"command    {shlex.join(spec.command)}"
