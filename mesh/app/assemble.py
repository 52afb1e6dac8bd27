"""How the parts of mesh are put together for one run. Concrete classes meet here, and only here."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mesh.app.carriers import Carrier, Means, allow_descriptors, carrier_of, connections_ahead
from mesh.app.owner import Owners, owner_of
from mesh.app.screen import Conclusion, Screen, Showing, Summary
from mesh.app.secrets import secrets_of, unknown, unmasked_notice
from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import UsageError
from mesh.core.module import NO_PREPARATION, Preparation
from mesh.core.notify import Notification
from mesh.core.outcome import Outcome
from mesh.core.paths import runs_directory
from mesh.core.run import RunSpec
from mesh.hosts.sources import forget_wrong_hosts

if TYPE_CHECKING:
    from mesh.app.during import DuringRun
    from mesh.backends.ssh.passwords import Passwords
    from mesh.core.events import Event, Stream
    from mesh.core.forwarding import Forwarded
    from mesh.core.interfaces import Backend, Sink
    from mesh.core.masking import Secrets
    from mesh.core.nodes import Arrived
    from mesh.core.pull import Destination
    from mesh.core.typed import Typed
    from mesh.engine.courier import Luggage
    from mesh.engine.launcher import Launcher
    from mesh.engine.relaying import Relay
    from mesh.engine.run import Decider, Local
    from mesh.keeper.client import KeptBackend
    from mesh.remote.following import Place
    from mesh.rundir.resuming import Left
    from mesh.rundir.writer import StoreSink
    from mesh.verdict.verdict import Verdict


class Attaching(Struct, frozen=True, kw_only=True):
    """The part of a detached run that is here already, and the part that is wanted."""

    directory: Path
    left: Left  # written there before
    fetch: Place  # bytes of each rank's streams that need not come
    hide: Place  # bytes that come, and are not shown
    told: Path  # the directory of logs that messages name
    begin: str  # "now": nothing of what was there when we came is shown
    arrivals: tuple[Arrived, ...] = ()  # the moves of ranks between hosts so far
    only_reads: bool = False  # end nothing there, not even what a lost agent has left
    only_end: bool = False  # no output is fetched, and the hosts keep it for those who fetch it later


class Parts(Struct, frozen=True, kw_only=True):
    """Everything that a launch is made of."""

    spec: RunSpec
    cluster: Cluster
    showing: Showing
    sinks: tuple[Sink, ...] = ()  # beside the screen and the run directory
    decider: Decider | None = None  # None: the Supervisor of a run
    preparation: Preparation = NO_PREPARATION  # of the hosts, by modules
    attaching: Attaching | None = None  # the run goes on by itself, and is not started
    landing: Callable[[int], Destination] | None = None  # for files that are pulled from the host of a rank
    summary: Summary | None = None  # the last lines, where the run is not kept
    reach_limit_s: float = math.inf  # for a host to take a connection; math.inf: as long, and as often, as a run tries
    notify: tuple[Notification, ...] = ()  # at the end of the run
    uses_kept: bool = False  # agents may wait on the hosts already, and wait there for the next command
    carrier: Carrier | None = None  # None: the one that the cluster names
    payloads: Mapping[str, bytes] = {}
    forward: tuple[Forwarded, ...] = ()  # ports of the hosts that this machine reaches during the run
    relayed: Callable[[Relay], object] = lambda relay: None  # called with the relay to the nodes, before the start
    # Called with a function that ends the run as a signal does (its number), from any thread.
    started: Callable[[Callable[[int], None]], object] = lambda interrupt: None


def new_run_id() -> str:
    """Return an id that sorts by time, also within a second, and is unique for all who share a host."""
    now = time.time()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now % 1 * 4096):03x}{os.urandom(2).hex()[1:]}"


def placed(spec: RunSpec, cluster: Cluster) -> Placement:
    """Return which ranks run where."""
    return spec.placed(cluster.hosts, cluster.slices)


def launch(parts: Parts) -> tuple[Outcome, Placement, StoreSink | None]:
    """Run it; return how it ended, which ranks were where, and what keeps its output, if anything does.

    In any thread, and several at a time. Raises UsageError if this process may not have a descriptor for every host.
    """
    with contextlib.ExitStack() as files:
        assembled = assemble(parts, files)
        parts.started(assembled.launcher.interrupt)
        outcome = assembled.run()
        return outcome, assembled.placement, assembled.store


def assemble(parts: Parts, files: contextlib.ExitStack) -> Assembled:
    """Put everything together that one run needs; connections to its hosts may begin. files: closes what is opened"""
    spec, cluster, showing, attaching = parts.spec, parts.cluster, parts.showing, parts.attaching
    secrets = secrets_of(spec, os.environ)
    shown_spec = secrets.spec(spec)
    given, showing = showing.typed, replace(showing, typed=secrets.typed(showing.typed))
    from mesh.keeper.client import KeptBackend, can_keep

    carrier = parts.carrier or carrier_of(cluster)
    allow_descriptors(len(cluster.hosts), carrier)
    uses_kept = parts.uses_kept and carrier.keeps and can_keep(cluster)
    begun = {} if uses_kept else files.enter_context(connections_ahead(cluster, carrier))
    # Imported while connections begin.
    from mesh.backends.ssh.passwords import Passwords
    from mesh.engine.launcher import Launcher
    from mesh.engine.run import Run
    from mesh.engine.supervisor import Supervisor

    placement = placed(spec, cluster)
    screen = Screen(shown_spec, cluster, placement, showing)
    screen.check_terminal()
    passwords = Passwords(cluster.password_env, os.environ, alone=screen.hidden)
    if cluster.ask_password:
        _ask_first(passwords, cluster)
    store = _store(parts, shown_spec, screen) if showing.kept else None
    if store and given and given.again:
        _keep_command_line(store, screen, given, showing.typed or given)
    shown = screen.sinks() if attaching is None else _unseen(screen, attaching, placement)
    if attaching is None:
        screen.introduce()
    elif missing := unknown(spec, os.environ):
        screen.report(unmasked_notice(missing))
    kept = KeptBackend(cluster, passwords, parts.reach_limit_s, os.environ) if uses_kept else None
    means = Means(environ=os.environ, passwords=passwords, reach=parts.reach_limit_s, begun=begun)
    backend = kept or carrier.open(cluster, means)
    run = Run(
        spec=spec,
        cluster=cluster,
        placement=placement,
        backend=backend,
        local=_local(parts, screen, passwords, files, store),
        decider=parts.decider or Supervisor(spec, placement, parts.preparation, backend.client_return),
        preparation=parts.preparation,
    )
    sinks = [*([store] if store else ()), *shown, *parts.sinks]
    during = _during(parts, screen, lambda: carrier.open(cluster, means)) if parts.forward or spec.rules.debug else None
    launcher = Launcher(run, [*sinks, *([during] if during else ())])
    if during:
        during.notify = launcher.notice
    assembled = Assembled(parts, launcher, screen, store, passwords, kept)
    assembled.during = during
    return assembled


def _during(parts: Parts, screen: Screen, opened: Callable[[], Backend]) -> DuringRun:
    from mesh.app.during import DuringRun

    during, run = DuringRun(parts.cluster, parts.forward, parts.spec.run, opened), parts.spec.run
    if parts.spec.rules.debug:
        from mesh.app.console import Consoles

        placement = placed(parts.spec, parts.cluster)
        during.consoles = lambda forwarder: Consoles(
            forwarder, placement, run, lambda: (screen.pause.asking(), screen.hidden())
        )
    return during


class Assembled:
    """A run that is ready to start, with its screen and its directory."""

    def __init__(
        self,
        parts: Parts,
        launcher: Launcher,
        screen: Screen,
        store: StoreSink | None,
        passwords: Passwords,
        kept: KeptBackend | None,
    ) -> None:
        self.during: DuringRun | None = None
        self.launcher, self.store = launcher, store
        self.placement = placed(parts.spec, parts.cluster)
        self._parts, self._screen, self._passwords, self._kept = parts, screen, passwords, kept
        self._began = time.time()

    def run(self) -> Outcome:
        """Run it to its end, and show how it ended."""
        parts, store = self._parts, self.store
        verdict: Verdict | None = None
        line = ""

        def conclude(outcome: Outcome) -> None:
            nonlocal verdict, line
            if store:
                carrier, account = parts.carrier or carrier_of(parts.cluster), dict[str, object]()
                if outcome.started and not outcome.goes_on:
                    account, line = carrier.account(parts.cluster, os.environ)
                verdict = store.finish(outcome, account)

        try:
            outcome = self.launcher.run(conclude)
        finally:
            if self.during:
                self.during.end()
            self._passwords.close()
        self.placement = self.placement.moved(outcome.moved)
        forget_wrong_hosts(parts.cluster, outcome)
        ended = Conclusion(
            outcome=outcome,
            verdict=verdict,
            store=store,
            logs=parts.attaching.told if parts.attaching else None,
            summary=parts.summary,
            account=line,
            is_shown=self.launcher.is_shown,
        )
        self._screen.conclude(ended)
        if parts.notify and not outcome.goes_on:
            self._notify(ended)
        if self._kept:
            self._kept.fill()
        return outcome

    def _notify(self, ended: Conclusion) -> None:
        """Send the notifications of mesh.yaml. One that fails changes nothing about the run."""
        from mesh.app.notify import Ending, notify, told_duration
        from mesh.core.sending import one_line

        spec, outcome = self._parts.spec, ended.outcome
        ending = Ending(
            job=spec.name or spec.run,
            run=spec.run,
            name=spec.name,
            cluster=self._parts.cluster.name,
            command=one_line(secrets_of(spec, os.environ).spec(spec).told),
            state="failed" if outcome.exit_code else "done",
            exit_code=outcome.exit_code,
            duration=told_duration(outcome.ended - (outcome.started or self._began)),
            verdict=one_line(self._screen.headline(ended)) if outcome.exit_code else "",
        )
        for problem in notify(self._parts.notify, ending, os.environ):
            self._screen.report(problem)


def _local(
    parts: Parts, screen: Screen, passwords: Passwords, files: contextlib.ExitStack, store: StoreSink | None
) -> Local:
    from mesh.engine.run import Local
    from mesh.rundir.about import describe

    def luggage(post: Callable[[Event], None]) -> Luggage:
        from mesh.app.luggage import WorkspaceLuggage

        return WorkspaceLuggage(parts.spec, files, post)

    attaching, secrets = parts.attaching, secrets_of(parts.spec, os.environ)
    shown_spec = secrets.spec(parts.spec)
    plan = describe(shown_spec, parts.cluster.name, placed(parts.spec, parts.cluster))
    return Local(
        owner=owner_of(shown_spec, parts.cluster),
        is_dead=Owners().is_dead,
        password=passwords.of,
        luggage=luggage,
        landing=parts.landing,
        payloads=parts.payloads,
        relayed=parts.relayed,
        choose=screen.choose,
        terminal=_terminal_size,
        terminal_kind=os.environ.get("TERM", "dumb"),
        plan={name: secrets.json(value) for name, value in plan.items()},
        have=attaching.fetch if attaching else None,
        arrivals=attaching.arrivals if attaching else (),
        only_reads=attaching.only_reads if attaching else False,
        only_end=attaching.only_end if attaching else False,
        secrets=secrets,
        before=_before(attaching, store, secrets) if attaching and store else lambda rank, stream: b"",
    )


def _terminal_size() -> tuple[int, int]:
    from mesh.screen.descriptor import Descriptor

    return Descriptor(1, required=False).size()


def _before(attaching: Attaching, store: StoreSink, secrets: Secrets) -> Callable[[int, Stream], bytes]:
    """Return a function that reads the last bytes of the logs that an earlier client has left."""
    from mesh.rundir.resuming import last_bytes

    def before(rank: int, stream: Stream) -> bytes:
        log = store.log(rank, stream)
        return last_bytes(store.directory, log.name, secrets.longest) if attaching.fetch.get((rank, stream)) else b""

    return before


def _unseen(screen: Screen, attaching: Attaching, placement: Placement) -> list[Sink]:
    """Return the screen's sinks without the output that the user has seen before."""
    from mesh.screen.unseen import Unseen

    start = attaching.begin != "now"
    return [Unseen(sink, attaching.hide, placement, from_start=start, pause=screen.pause) for sink in screen.sinks()]


def _ask_first(passwords: Passwords, cluster: Cluster) -> None:
    """Ask for the passwords of a cluster's users. Raises UsageError where the user gives none."""
    for user in dict.fromkeys(host.user for host in cluster.hosts):
        if not passwords.of(user):
            hint = "ask on a terminal, or put it into a variable and name that by password_env"
            raise UsageError(f"no password for {user}", hint=hint)


def _keep_command_line(store: StoreSink, screen: Screen, given: Typed, shown: Typed) -> None:
    """Write the command line to the run directory, so that ``mesh again`` can repeat it. shown: with masked texts"""
    from mesh.rundir.commandline import CommandLine, write_command_line

    masked = shown.again != given.again
    line = CommandLine(directory=os.path.realpath(os.curdir), words=shown.again, env=given.env, is_masked=masked)
    try:
        write_command_line(store.directory, line)
    except OSError as error:
        screen.report(f"`mesh again` will not find this command ({error.strerror})")


def _store(parts: Parts, spec: RunSpec, screen: Screen) -> StoreSink:
    """spec: that of the run, with masked texts"""
    from mesh.rundir.writer import StoreSink

    attaching = parts.attaching
    return StoreSink(
        directory=attaching.directory if attaching else runs_directory(os.environ) / parts.spec.run,
        spec=spec,
        cluster_name=parts.cluster.name,
        placement=placed(parts.spec, parts.cluster),
        report=screen.report_incomplete_logs,
        left=attaching.left if attaching else None,
    )
