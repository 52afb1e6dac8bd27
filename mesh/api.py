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
from mesh.config.project import TEMPLATE, check_workspace, load_project
from mesh.config.settings import USAGE, RunFlags, run_spec, select_hosts
from mesh.core.cluster import Cluster, HostKeys, Placement
from mesh.core.errors import UsageError
from mesh.core.events import Notice
from mesh.core.run import RunSpec

if TYPE_CHECKING:
    from mesh.core.interfaces import Backend, Sink
    from mesh.sinks.terminal import TerminalSink

OUTPUTS, LABELS = ("all", "rank0", "none"), ("rank", "host")
LEASE_ON_A_TERMINAL = 900.0  # seconds: a laptop may be closed for a while
LEASE_OFF_IT = 60.0  # seconds: a script that is gone is gone


@dataclass(frozen=True, kw_only=True)
class ClusterLine:
    """One line of ``mesh clusters``."""

    name: str
    hosts: tuple[str, ...]  # their names; none if the cluster cannot be used
    problem: str  # why it cannot; "" if it can


def run(
    words: list[str],
    *,
    cluster: str,
    flags: RunFlags,
    clusters_file: str = "",
    output: str = "all",
    label: str = "rank",
    json: bool = False,
    dry_run: bool = False,
    bare: bool = False,
) -> int:
    """Run a command on every rank of a cluster and return the exit status that the README's table names.

    words: the command as it was typed after the cluster's name
    output: "all", "rank0" or "none"; label: "rank" or "host"
    json: events as JSON lines on stdout; what is for people goes to stderr in any case
    dry_run: tell what would be done, and do nothing
    bare: without sync, prerun and lock: safe while a run is on
    Raises UsageError for wrong flags or files; whatever goes wrong later is told, and is in the status.
    """
    for name, value, known in (("--output", output, OUTPUTS), ("--label", label, LABELS)):
        if value not in known:
            raise UsageError(f"{name}: expected {', '.join(known)}, found {value!r}")
    if not cluster:
        raise UsageError("no cluster was named", hint=f"{USAGE}; `mesh clusters` lists them")
    found = find_cluster(cluster, load_clusters(clusters_path(clusters_file, os.environ), required=False))
    found = select_hosts(found, flags)
    project = load_project(_here())
    lease = LEASE_ON_A_TERMINAL if sys.stderr.isatty() else LEASE_OFF_IT
    spec = run_spec(project, flags, words, new_run_id(), os.environ, _user(), socket.gethostname())
    if bare:
        spec = dataclasses.replace(spec, lease=lease, sync=False, lock=False, prerun=())
    else:
        check_workspace(project, Path.home())
        spec = dataclasses.replace(spec, lease=lease, lock=found.backend != "local")
    if dry_run:
        sys.stdout.writelines(f"{line}\n" for line in _plan(spec, found))
        return 0
    _allow_descriptors()
    return _launch(spec, found, output=output, label=label, json=json)


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


def _launch(spec: RunSpec, cluster: Cluster, *, output: str, label: str, json: bool) -> int:
    from mesh.engine.launcher import Launcher, Local
    from mesh.sinks.jsonl import JsonSink
    from mesh.sinks.store import StoreSink
    from mesh.sinks.terminal import TerminalSink

    placement = Placement(hosts=cluster.hosts, nproc=spec.nproc)
    directory = runs_directory(os.environ) / spec.run
    store = StoreSink(directory=directory, spec=spec, cluster_name=cluster.name, placement=placement)
    mode = "none" if json else output
    terminal = TerminalSink(placement=placement, mode=mode, label=label, environ=os.environ)
    sinks: list[Sink] = [store, terminal, *([JsonSink(placement=placement)] if json else [])]
    with tempfile.TemporaryFile() as pack:  # it has no name: nothing of it stays, whatever becomes of us
        owner = _owner(spec, cluster) if spec.lock else None
        local = Local(owner=owner, pack=lambda: _pack(spec, pack, terminal))
        outcome = Launcher(spec, cluster, placement, BACKENDS[cluster.backend](cluster), sinks, local).run()
    store.finish(outcome)
    terminal.conclude(outcome, store.said, store.prepared, store.logs)
    if store.problem:
        terminal.complain(f"the run directory is incomplete: {store.problem}")
    if terminal.problem:
        terminal.complain(f"not all output could be shown: {terminal.problem}")
    return outcome.exit_code


def _pack(spec: RunSpec, into: IO[bytes], terminal: TerminalSink) -> int:
    """Pack the workspace, and return the descriptor of what came of it."""
    from mesh.workspace.listing import list_workspace
    from mesh.workspace.pack import make

    listing = list_workspace(spec.workspace, spec.ignore)
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
        "command": shlex.join(spec.command)[:200],
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


def _local_backend(cluster: Cluster) -> Backend:
    from mesh.backends.local import LocalBackend

    return LocalBackend()


def _ssh_backend(cluster: Cluster) -> Backend:
    from mesh.backends.ssh import SshBackend

    return SshBackend(cluster, environ=os.environ)


BACKENDS: Mapping[str, Callable[[Cluster], Backend]] = {"local": _local_backend, "ssh": _ssh_backend}
