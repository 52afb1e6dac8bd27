"""What mesh does, as functions: picks backend and sinks. Concrete classes meet here, and only here."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import resource
import secrets
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mesh.config.clusters import LOCAL, clusters_path, find_cluster, load_clusters
from mesh.config.project import FILE as PROJECT_FILE
from mesh.config.project import TEMPLATE, Project, check_workspace, load_project
from mesh.config.settings import Options, run_spec, select_hosts
from mesh.core.cluster import Cluster, HostKeys, Placement
from mesh.core.errors import UsageError
from mesh.core.events import Event, Notice, Synced
from mesh.core.outcome import Cause, Outcome
from mesh.core.run import Kind, RunSpec
from mesh.sinks.results import RankResult, RunResult, SyncResult, failures, run_result

if TYPE_CHECKING:
    from mesh.backends.passwords import Passwords
    from mesh.core.interfaces import Backend, Sink
    from mesh.engine.checkup import Finding
    from mesh.engine.launcher import Decider
    from mesh.sinks.store import StoreSink
    from mesh.sinks.terminal import TerminalSink

__all__ = [
    "ClusterLine",
    "HostReport",
    "Options",
    "RankResult",
    "RunResult",
    "SyncResult",
    "check",
    "exec",
    "init",
    "list_clusters",
    "plan",
    "run",
    "setup",
    "ssh_argv",
    "sync",
]

DEFAULTS = Options()
OUTPUTS, LABELS = ("all", "rank0", "none"), ("rank", "host")
LEASE_ON_A_TERMINAL = 900.0  # seconds: a laptop may be closed for a while
LEASE_OFF_IT = 60.0  # seconds: a script that is gone is gone


@dataclass(frozen=True, kw_only=True)
class ClusterLine:
    """One line of ``mesh clusters``."""

    name: str
    hosts: tuple[str, ...]  # their names; none if the cluster cannot be used
    problem: str  # why it cannot; "" if it can


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What ``check`` found on one host."""

    host: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing there is in the way of a run."""
        return all(finding.verdict.value != "failed" for finding in self.findings)


def run(
    command: Sequence[str],
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """Run a command on every rank of a cluster, with the working directory there.

    command: the words for execve, the program first; no shell reads them
    cluster: a name from cluster.yaml, or "local", or "local:N"; clusters_file: another file than the usual one
    output: "all", "rank0" or "none" of what ranks print; label: "rank" or "host"
    json: events as JSON lines on stdout; what is for people goes to stderr
    quiet: print nothing at all; the run directory has everything
    Raises UsageError for wrong arguments or files; whatever goes wrong later is in the result. In the main thread,
    SIGINT, SIGTERM and SIGHUP end the run as they do for the command line.
    """
    found, project = _cluster(cluster, options, clusters_file), load_project(_here())
    check_workspace(project, Path.home())
    spec = _spec(project, options, command)
    spec = dataclasses.replace(spec, lock=found.backend != "local")
    return _run(spec, found, Showing(output=output, label=label, json=json, quiet=quiet))


def exec(  # noqa: A001  (the command's name)
    command: Sequence[str],
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    json: bool = False,
    quiet: bool = False,
) -> RunResult:
    """The same as ``run`` without sync, prerun and lock: safe while a run is on."""
    found = _cluster(cluster, options, clusters_file)
    spec = _spec(load_project(_here()), options, command)
    spec = dataclasses.replace(spec, sync=False, lock=False, prerun=())
    return _run(spec, found, Showing(output=output, label=label, json=json, quiet=quiet))


def sync(*, cluster: str, options: Options = DEFAULTS, clusters_file: str = "", quiet: bool = False) -> SyncResult:
    """Bring the workspace to every host of a cluster, and start nothing. Raises UsageError."""
    found, project = _cluster(cluster, options, clusters_file), load_project(_here())
    check_workspace(project, Path.home())
    spec = dataclasses.replace(_spec(project, options, ()), kind=Kind.SYNC, lock=found.backend != "local", prerun=())
    collected = _Synced()
    outcome, placement, _ = _launch(spec, found, Showing(quiet=quiet), collected)
    return SyncResult(
        exit_code=outcome.exit_code,
        files=max((event.files for event in collected.events), default=0),
        sent=sum(event.bytes for event in collected.events),
        failures=failures(outcome, placement),
    )


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
    found, project = _cluster(cluster, options, clusters_file), load_project(_here())
    spec = dataclasses.replace(
        _spec(project, options, ()),
        kind=Kind.SETUP,
        commands=project.commands,
        force=force,
        keep_going=True,
        nproc=1,
        stdin="none",
        sync=False,
        lock=found.backend != "local",
        prerun=(),
    )
    return _run(spec, found, Showing(json=json, quiet=quiet))


def check(*, cluster: str, options: Options = DEFAULTS, clusters_file: str = "") -> list[HostReport]:
    """See whether every host of a cluster is fit for a run, all at once. Raises UsageError."""
    from mesh.engine import checkup
    from mesh.engine.inquiry import Inquiry

    found = _cluster(cluster, options, clusters_file)
    spec = dataclasses.replace(_spec(load_project(_here()), options, ()), sync=False, lock=False)
    inquiry = Inquiry(Placement(hosts=found.hosts), {"question": "check"})
    outcome, _, _ = _launch(spec, found, Showing(kept=False), supervisor=inquiry)
    if outcome.cause is Cause.SIGNAL:
        raise KeyboardInterrupt
    reports = []
    for node, host in enumerate(found.hosts):
        answer = inquiry.answers.get(node)
        findings = checkup.host(answer) if answer else checkup.failed_host(inquiry.failures[node])
        reports.append(HostReport(host=host.name, findings=tuple(findings)))
    return reports


def plan(
    command: Sequence[str], *, cluster: str, options: Options = DEFAULTS, clusters_file: str = ""
) -> Iterator[str]:
    """What ``run`` would do, in lines for people; does nothing. Raises UsageError."""
    found, project = _cluster(cluster, options, clusters_file), load_project(_here())
    check_workspace(project, Path.home())
    return _plan(_spec(project, options, command), found)


def list_clusters(clusters_file: str = "") -> list[ClusterLine]:
    """What cluster.yaml holds, in its order, and the built-in cluster. Raises UsageError if it cannot be read."""
    file = load_clusters(clusters_path(clusters_file, os.environ), required=bool(clusters_file))
    good = {LOCAL: find_cluster(LOCAL, file), **file.clusters}
    names = {name: tuple(host.name for host in cluster.hosts) for name, cluster in good.items()}
    problems = {name: "\n".join(lines) for name, lines in file.problems.items()}
    return [
        ClusterLine(name=name, hosts=names.get(name, ()), problem=problems.get(name, ""))
        for name in (LOCAL, *file.names)
    ]


def ssh_argv(target: str, words: Sequence[str], clusters_file: str = "") -> list[str]:
    """The system's ssh command for a host: ``pod:3``, or ``pod`` for its first one. Raises UsageError.

    words: what ssh is to run there, as it takes it; none for a login
    """
    name, colon, number = target.rpartition(":")
    if not colon or not number.isdecimal():
        name, number = target, "0"
    cluster = find_cluster(name, load_clusters(clusters_path(clusters_file, os.environ), required=False))
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
        ("-l", host.user),
    ):
        argv += [flag, value] if value else []
    return [*argv, host.address, *words]


def init(directory: Path) -> Path:
    """Write a commented mesh.yaml into a directory and return its path. Raises UsageError if there is one."""
    path = directory / PROJECT_FILE
    try:
        with path.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise UsageError(f"there is a {path} already") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return path


def runs_directory(environ: Mapping[str, str]) -> Path:
    """Where the run directories are."""
    base = environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "mesh" / "runs"


def new_run_id() -> str:
    """An id that sorts by time and is unique for all who share a host."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


@dataclass(frozen=True, kw_only=True)
class Showing:
    """What a command shows and keeps."""

    output: str = "all"  # "all", "rank0" or "none"
    label: str = "rank"  # "rank" or "host"
    json: bool = False  # events on stdout
    quiet: bool = False  # show nothing
    kept: bool = True  # in a run directory

    def __post_init__(self) -> None:
        for name, value, known in (("--output", self.output, OUTPUTS), ("--label", self.label, LABELS)):
            if value not in known:
                raise UsageError(f"{name}: expected {', '.join(known)}, found {value!r}")


class _Synced:
    """A sink that keeps what was synced."""

    def __init__(self) -> None:
        self.events: list[Synced] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Synced):
            self.events.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...


def _cluster(name: str, options: Options, clusters_file: str) -> Cluster:
    """The cluster less the hosts that were not picked."""
    if not name:
        raise UsageError("no cluster was named", hint="`mesh clusters` lists them")
    file = load_clusters(clusters_path(clusters_file, os.environ), required=False)
    return select_hosts(find_cluster(name, file), options)


def _spec(project: Project, options: Options, command: Sequence[str]) -> RunSpec:
    lease = LEASE_ON_A_TERMINAL if sys.stderr.isatty() else LEASE_OFF_IT
    spec = run_spec(project, options, command, new_run_id(), os.environ, _user(), socket.gethostname())
    return dataclasses.replace(spec, lease=lease)


def _run(spec: RunSpec, cluster: Cluster, showing: Showing) -> RunResult:
    outcome, placement, directory = _launch(spec, cluster, showing)
    return run_result(outcome, placement, directory)


def _launch(
    spec: RunSpec, cluster: Cluster, showing: Showing, *more: Sink, supervisor: Decider | None = None
) -> tuple[Outcome, Placement, Path]:
    """Run it; return how it ended, which ranks were where, and the run directory."""
    from mesh.backends.passwords import Passwords
    from mesh.engine.launcher import Launcher, Local
    from mesh.sinks.jsonl import JsonSink
    from mesh.sinks.store import StoreSink
    from mesh.sinks.terminal import TerminalSink

    _allow_descriptors()
    placement = Placement(hosts=cluster.hosts, nproc=spec.nproc)
    directory = runs_directory(os.environ) / spec.run
    mode = "none" if showing.json else showing.output
    store = (
        StoreSink(directory=directory, spec=spec, cluster_name=cluster.name, placement=placement)
        if showing.kept
        else None
    )
    terminal = (
        None if showing.quiet else TerminalSink(placement=placement, mode=mode, label=showing.label, environ=os.environ)
    )
    sinks: list[Sink] = [sink for sink in (store, terminal) if sink is not None]
    sinks += [JsonSink(placement=placement)] if showing.json else []
    if terminal and spec.kind is Kind.SETUP:
        terminal.say(f"Setting up cluster '{cluster.name}' ({len(cluster.hosts)} hosts)")  # MESH's own words
    passwords = Passwords(cluster.password_env, os.environ)
    with tempfile.TemporaryFile() as pack:  # it has no name: nothing of it stays, whatever becomes of us
        owner = _owner(spec, cluster) if spec.lock else None
        local = Local(owner=owner, password=passwords.of, pack=lambda: _pack(spec, pack, terminal))
        backend = BACKENDS[cluster.backend](cluster, passwords)
        try:
            outcome = Launcher(spec, cluster, placement, backend, [*sinks, *more], local, supervisor).run()
        finally:
            passwords.close()
    if store:
        store.finish(outcome)
    if terminal and store:
        _conclude(spec, cluster, placement, outcome, terminal, store)
    return outcome, placement, directory


def _conclude(
    spec: RunSpec, cluster: Cluster, placement: Placement, outcome: Outcome, terminal: TerminalSink, store: StoreSink
) -> None:
    """Tell how it ended."""
    from mesh.sinks.summary import run_summary, setup_summary

    if spec.kind is Kind.SETUP:
        lines = setup_summary(outcome, placement, cluster.name, store.set_up, store.logs)
    elif spec.kind is Kind.RUN or outcome.exit_code:
        lines = run_summary(outcome, placement, store.said, store.prepared, store.logs)
    else:
        lines = []  # a sync was told as it came
    terminal.conclude(lines, failed=bool(outcome.exit_code))
    if store.problem:
        terminal.complain(f"the run directory is incomplete: {store.problem}")
    if terminal.problem:
        terminal.complain(f"not all output could be shown: {terminal.problem}")


def _pack(spec: RunSpec, into: IO[bytes], terminal: TerminalSink | None) -> int:
    """Pack the workspace, and return the descriptor of what came of it."""
    from mesh.workspace.listing import list_workspace
    from mesh.workspace.pack import make

    listing = list_workspace(spec.workspace, spec.ignore)
    if terminal:
        for skipped in listing.skipped:
            terminal.handle(Notice(time=time.time(), text=f"not sent: {skipped}"))
    make(listing, into)
    into.flush()
    return into.fileno()


def _plan(spec: RunSpec, cluster: Cluster) -> Iterator[str]:
    """What --dry-run tells."""
    from mesh.workspace.listing import Kind, list_workspace

    placement = Placement(hosts=cluster.hosts, nproc=spec.nproc)
    yield f"cluster    {cluster.name} ({cluster.backend})"
    for node, host in enumerate(cluster.hosts):
        ranks = placement.ranks(node)
        login = f"{host.user}@{host.address}" if host.user else host.address
        where = "" if cluster.backend == "local" else f" ({login}{f':{host.port}' if host.port else ''})"
        yield f"rank {f'{ranks[0]}-{ranks[-1]}' if len(ranks) > 1 else ranks[0]!s:<5} {host.name}{where}"
    listing = list_workspace(spec.workspace, spec.ignore)
    files = [entry for entry in listing.entries if entry.kind is not Kind.DIRECTORY]
    yield f"workspace  {spec.workspace}: {len(files)} file(s), {sum(entry.size for entry in files)} bytes"
    places = dict.fromkeys(host.remote_dir or cluster.remote_dir for host in cluster.hosts)
    for place in places:
        yield f"on hosts   {place}/workspaces/{spec.project}"
    for line in spec.prerun:
        yield f"prerun     {line}"
    if spec.env:
        yield f"env        {', '.join(sorted(spec.env))}"
    yield f"command    {shlex.join(spec.command)}"


def _owner(spec: RunSpec, cluster: Cluster) -> dict[str, object]:
    """What the lock on the hosts tells those who find it."""
    return {
        "run": spec.run,
        "cluster": cluster.name,
        "user": _user(),
        "machine": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.time(),
        "command": shlex.join(spec.command or ("mesh", spec.kind.value))[:200],
    }


def _user() -> str:
    """Who we are; a number where the machine has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory is gone", hint="cd into a directory that exists") from None


def _allow_descriptors() -> None:
    """Take as many descriptors as we may have: a host needs two or three, and macOS begins with 256."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 65536 if hard == resource.RLIM_INFINITY else hard
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _local_backend(cluster: Cluster, passwords: Passwords) -> Backend:
    from mesh.backends.local import LocalBackend

    return LocalBackend()


def _ssh_backend(cluster: Cluster, passwords: Passwords) -> Backend:
    from mesh.backends.ssh import SshBackend

    return SshBackend(cluster, environ=os.environ, passwords=passwords)


BACKENDS: Mapping[str, Callable[[Cluster, Passwords], Backend]] = {"local": _local_backend, "ssh": _ssh_backend}
