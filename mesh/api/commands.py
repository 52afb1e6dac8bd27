"""Runs, syncs and setups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from mesh.api import retrying
from mesh.api.choosing import (
    check_name,
    check_time,
    choose_cluster,
    make_spec,
    project_here,
    with_fetched,
    with_slurm_job,
)
from mesh.api.planning import plan_lines
from mesh.api.running import Beside, Listener, OnEvent, run_on
from mesh.api.streaming import EventStream as EventStream
from mesh.app.assemble import Parts, launch, new_run_id
from mesh.app.carriers import carrier_of
from mesh.app.modules import preparation_of
from mesh.app.screen import Showing
from mesh.app.secrets import secrets_of
from mesh.config import spares
from mesh.config.project import FILE, check_workspace
from mesh.config.selectors import assign_roles
from mesh.config.settings import Options
from mesh.core.cluster import Cluster
from mesh.core.errors import MeshError, UsageError
from mesh.core.events import Event, Synced
from mesh.core.look import Look as Look
from mesh.core.outcome import Outcome
from mesh.core.run import Kind, RunSpec
from mesh.core.typed import Typed
from mesh.hosts.interfaces import Purpose
from mesh.rundir.results import RunResult, SyncResult, failures

DEFAULTS, PLAIN = Options(), Look()


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
    look: Look = PLAIN,
    typed: Typed | None = None,
    on_event: OnEvent | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> RunResult:
    """Run a command on every rank of a cluster, with the working directory there.

    command: the words for execve, the program first; no shell reads them
    cluster: a selector: "pod", "pod:0-3", "a:0,b", "@host1,host2"; "": MESH_CLUSTER, else `default:` of mesh.yaml
    clusters_file: another file than the usual one
    output: "all", "fold", "rank0" or "none" of what ranks print, "": "fold" on a terminal, else "all"
    label: "rank" or "host"; fold: "numbers", "mean", or "exact" to fold only equal lines
    json: events as JSON lines on stdout; what is for people goes to stderr
    quiet: print nothing at all; the run directory has everything
    look: colours, and how many lines of mesh's own
    typed: the command line that the user typed, for messages with a line to paste; None: they have none
    on_event: called with each event of mesh.core.events, in a thread of its own; its error ends the run, and is raised
    report: called with a line before each further attempt of ``retries``; the result is that of the last one
    Raises UsageError for wrong arguments or files; whatever goes wrong later is in the result. In the main thread,
    SIGINT, SIGTERM and SIGHUP end the run as they do for the command line; in another one signals are the caller's.
    """
    showing = Showing(
        output=output,
        label=label,
        fold=fold,
        json=json,
        quiet=quiet,
        look=look,
        stdin_notice=options.stdin_notice,
        typed=typed,
    )

    def start(attempt: int) -> RunResult:
        found, spec = _run_spec(command, cluster, options, clusters_file, is_quiet=quiet or look.terse)
        listener = Listener(on_event) if on_event else None
        if options.detach and options.retries:
            from mesh.api import slurmattempts

            first = lambda own: _run(found, own, showing, options, listener)  # noqa: E731
            return slurmattempts.start(found, spec, options, first, report)
        return _run(found, retrying.with_attempt(spec, attempt), showing, options, listener)

    retrying.check_retries(options, cluster, clusters_file, os.environ)
    if options.detach:  # what follows is not started from here
        return start(0)
    return retrying.attempts(start, options, report)


def _run(
    cluster: Cluster,
    spec: RunSpec,
    showing: Showing,
    options: Options,
    listener: Listener | None,
    *,
    is_run: bool = True,
) -> RunResult:
    """Run it. is_run: with the modules and notifications of the project"""
    if not is_run:
        beside = Beside(forward=options.forward)
        return run_on(cluster, spec, showing, check_first=options.check, listener=listener, beside=beside)
    project = project_here()
    spec, preparation = preparation_of(spec, cluster, project.modules.descriptions)
    return run_on(
        cluster,
        spec,
        showing,
        check_first=options.check,
        listener=listener,
        beside=Beside(notify=project.notify, preparation=preparation, forward=options.forward),
    )


def _run_spec(
    command: Sequence[str], cluster: str, options: Options, clusters_file: str, *, is_quiet: bool
) -> tuple[Cluster, RunSpec]:
    """Return the cluster of ``run`` and what it runs there. Raises UsageError."""
    project = project_here()
    check_name(options.name, clusters_file)
    check_workspace(project, Path.home())
    make_spec(project, options, _words(command, options))  # raises for wrong options before any host is asked for
    found = choose_cluster(cluster, options, clusters_file, is_quiet=is_quiet)
    found, spare = spares.divide(found)
    spec, found = _with_roles(make_spec(project, options, _words(command, options)), found, options)
    check_time(found, spec)
    spec = with_fetched(found, with_slurm_job(found, spec))
    spec, found = spares.add(spec, found, spare)
    with_lock = carrier_of(found).locks
    return found, replace(spec, lock=with_lock and not spec.share, claim=with_lock)


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
    look: Look = PLAIN,
    typed: Typed | None = None,
    on_event: OnEvent | None = None,
) -> RunResult:
    """The same as ``run`` without sync, prerun and lock: safe while a run is on.

    Raises UsageError for options that are about those.
    """
    showing = Showing(
        output=output,
        label=label,
        fold=fold,
        json=json,
        quiet=quiet,
        look=look,
        stdin_notice=options.stdin_notice,
        typed=typed,
    )
    found, spec = _exec_spec(command, cluster, options, clusters_file, is_quiet=quiet or look.terse)
    listener = Listener(on_event) if on_event else None
    return _run(found, spec, showing, options, listener, is_run=False)


def _exec_spec(
    command: Sequence[str], cluster: str, options: Options, clusters_file: str, *, is_quiet: bool
) -> tuple[Cluster, RunSpec]:
    """Return the cluster of ``exec`` and what it runs there. Raises UsageError."""
    given = {"fresh": options.fresh, "no-fanout": not options.fan_out, "prerun": options.prerun, "share": options.share}
    given |= {"exclusive": options.exclusive, "role": bool(options.roles), "retries": options.retries > 0}
    given["retry-on"] = bool(options.retry_on)
    if any(given.values()):
        told = ", ".join(f"--{name}" for name, is_given in given.items() if is_given)
        raise UsageError(f"mesh exec syncs nothing, runs no prerun and takes no lock: {told} is for mesh run")
    project = project_here()
    check_name(options.name, clusters_file)
    make_spec(project, options, _words(command, options))  # raises for wrong options before any host is asked for
    found = choose_cluster(cluster, options, clusters_file, is_quiet=is_quiet)
    spec = make_spec(project, options, _words(command, options))
    check_time(found, spec)
    spec = with_slurm_job(found, spec)
    spec = replace(spec, project=found.workspace or spec.project)
    # A detached run needs all its hosts, as their agents end it together.
    skips = spec.rules.keep_going and not spec.detach
    rules = replace(spec.rules, skip_unreachable=skips)
    return found, replace(spec, sync=False, lock=False, prerun=(), rules=rules)


def stream(
    command: Sequence[str],
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    sync: bool = True,
    output: str = "all",
    quiet: bool = True,
) -> EventStream:
    """Start a run and return an iterator of its events, which ends with the run. Raises UsageError.

    sync: False for a run like that of ``exec``, without sync, prerun and lock
    quiet: print nothing, as the events have it all; the rest as with ``run``
    The run is in a thread of its own, so that signals are the caller's.
    """
    retrying.refuse_retries(options, "a stream of events")
    showing = Showing(output=output, quiet=quiet)
    found, spec = (_run_spec if sync else _exec_spec)(command, cluster, options, clusters_file, is_quiet=quiet)

    def start(listener: Listener) -> RunResult:
        return _run(found, spec, showing, options, listener, is_run=sync)

    return EventStream(start)


def sync(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    json: bool = False,
    quiet: bool = False,
    look: Look = PLAIN,
    typed: Typed | None = None,
) -> SyncResult:
    """Bring the workspace to every host of a cluster, and start nothing. Raises UsageError.

    json, quiet, look, typed: as with run
    """
    showing = Showing(json=json, quiet=quiet, look=look, typed=typed)
    return _sync(cluster, options, clusters_file, showing, watch=False)[0]


def watch(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    clusters_file: str = "",
    json: bool = False,
    look: Look = PLAIN,
    say: Callable[[str], None],
    complain: Callable[[MeshError], None],
) -> int:
    """Call ``sync`` now and after each change of the workspace; return the exit status once a signal has ended it.

    A busy host is waited for, unless options limit that; no sync has a run directory.
    json, look: as with run; the two functions show messages that are no events of a sync
    Raises UsageError, and MeshError if the workspace cannot be watched.
    """
    from mesh.api.watching import keep_synced

    def sync_once(options: Options) -> int:
        result, outcome = _sync(cluster, options, clusters_file, Showing(json=json, look=look, kept=False), watch=True)
        return 128 + outcome.signal if outcome.signal else result.exit_code

    return keep_synced(sync_once, options, say, complain)


def _sync(
    cluster: str, options: Options, clusters_file: str, showing: Showing, *, watch: bool
) -> tuple[SyncResult, Outcome]:
    found, project = (
        choose_cluster(cluster, options, clusters_file, is_quiet=showing.quiet or showing.look.terse),
        project_here(),
    )
    check_workspace(project, Path.home())
    if found.fetched:
        raise UsageError(f"{found.name}: its hosts fetch their workspace ({found.fetched})", hint="leave out source:")
    spec = replace(
        make_spec(project, options, ()), kind=Kind.SYNC, lock=carrier_of(found).locks, prerun=(), watch=watch
    )
    collected = _Synced()
    parts = Parts(spec=spec, cluster=found, showing=showing, sinks=(collected,), uses_kept=True)
    outcome, placement, _ = launch(parts)
    result = SyncResult(
        exit_code=outcome.exit_code,
        files=max((event.files for event in collected.events), default=0),
        sent=sum(event.bytes for event in collected.events),
        failures=failures(outcome, placement),
    )
    return result, outcome


def setup(
    *,
    cluster: str,
    options: Options = DEFAULTS,
    force: bool = False,
    undo: bool = False,
    clusters_file: str = "",
    json: bool = False,
    quiet: bool = False,
    look: Look = PLAIN,
) -> RunResult:
    """Run the ``commands:`` of mesh.yaml on every host, then set up its modules on hosts that lack them.

    A host stops at its first command that fails; modules are set up once all commands have succeeded.
    force: also commands that ``unless`` would skip, and modules that are in place
    undo: run no command, and undo what modules have set up, the last one first
    Rank i of the result is host i; what it printed is in logs/setup-HOST.log and logs/MODULE-HOST.log.
    Raises UsageError.
    """
    if options.nproc != 1 or options.launcher or options.stdin != "none":
        hint = "leave out nproc, launcher and stdin"
        raise UsageError("a setup is once for each host and has no standard input", hint=hint)
    showing = Showing(json=json, quiet=quiet, look=look)
    found, project = choose_cluster(cluster, options, clusters_file, is_quiet=quiet or look.terse), project_here()
    if not project.named:
        hint = "`mesh init` writes one; its `commands:` are what a setup runs"
        raise UsageError(f"{project.workspace / FILE}: there is no such file, here or above", hint=hint)
    modules = project.modules.descriptions
    spec = with_fetched(found, make_spec(project, options, ()))
    spec = replace(spec, lock=carrier_of(found).locks, prerun=(), force=force)
    if undo and not modules:
        raise UsageError(f"{project.path}: names no modules, so that there is nothing to undo")
    if not undo and (project.commands or not modules):
        rules = replace(spec.rules, keep_going=True)
        result = run_on(
            found, replace(spec, kind=Kind.SETUP, commands=project.commands, rules=rules, sync=False), showing
        )
        if result.exit_code or not modules:
            return result
    spec, preparation = preparation_of(
        replace(spec, run=new_run_id(), kind=Kind.MODULES, sync=not undo), found, modules, undo=undo
    )
    return run_on(found, spec, showing, beside=Beside(preparation=preparation))


def plan(
    command: Sequence[str], *, cluster: str, options: Options = DEFAULTS, clusters_file: str = ""
) -> Iterator[str]:
    """Describe a ``run`` in lines for people, and start nothing. Raises UsageError."""
    found, project = choose_cluster(cluster, options, clusters_file, purpose=Purpose.PLAN), project_here()
    check_workspace(project, Path.home())
    spec = make_spec(project, options, _words(command, options))
    secrets = secrets_of(spec, os.environ)
    return map(secrets.text, plan_lines(*_with_roles(secrets.spec(spec), found, options)))


class _Synced:
    """A sink that keeps the Synced events."""

    def __init__(self) -> None:
        self.events: list[Synced] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Synced):
            self.events.append(event)

    def idle(self) -> None: ...

    def close(self) -> None: ...


def _words(command: Sequence[str], options: Options) -> Sequence[str]:
    if options.roles:
        if command:
            raise UsageError("roles have their own commands", hint="leave out --role, or the command after CLUSTER")
        return ()
    if isinstance(command, str) or not command:
        raise UsageError("expected a command as a list of words", hint='for shell text: ["bash", "-c", TEXT]')
    return command


def _with_roles(spec: RunSpec, cluster: Cluster, options: Options) -> tuple[RunSpec, Cluster]:
    return assign_roles(spec, cluster, options.roles) if options.roles else (spec, cluster)
