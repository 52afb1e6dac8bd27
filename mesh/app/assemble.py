"""How the parts of mesh are put together for one run. Concrete classes meet here, and only here."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from mesh.app.owner import Owners, owner_of
from mesh.config.project import FILE as PROJECT_FILE
from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import UsageError
from mesh.core.outcome import Outcome
from mesh.core.paths import runs_directory
from mesh.core.run import Kind, RunSpec
from mesh.core.typed import Typed

if TYPE_CHECKING:
    from mesh.backends.ssh.ahead import Begun
    from mesh.backends.ssh.kept import Stock
    from mesh.backends.ssh.passwords import Passwords
    from mesh.core.events import Event
    from mesh.core.interfaces import Backend, Sink
    from mesh.core.pull import Landing
    from mesh.engine.courier import Luggage
    from mesh.engine.launcher import Decider
    from mesh.remote.following import Place
    from mesh.rundir.resuming import Left
    from mesh.rundir.writer import StoreSink
    from mesh.screen.pause import Pause
    from mesh.screen.terminal import TerminalSink
    from mesh.verdict.verdict import Verdict

# Descriptors: of each host, by backend, and of all else (64 logs, what is packed, terminal, ...).
SEVERAL = "several"  # the backend of hosts of several clusters, see api/everywhere.py
PER_HOST, BESIDES = {"local": 3, "ssh": 1, SEVERAL: 3}, 128

LAST_WORDS = 1.0  # seconds for them, where one reader has stood still already

OUTPUTS, LABELS, FOLDS = ("all", "fold", "rank0", "none"), ("rank", "host"), ("numbers", "exact")


class Showing(Struct, frozen=True, kw_only=True):
    """What a command shows and keeps."""

    output: str = "all"  # one of OUTPUTS; "": "fold" on a terminal, else "all"
    label: str = "rank"  # one of LABELS
    fold: str = "numbers"  # one of FOLDS: whether lines that differ only in numbers are folded too
    json: bool = False  # events on stdout
    quiet: bool = False  # show nothing
    kept: bool = True  # in a run directory
    stdin_notice: bool = False  # say once if our standard input has data that no rank gets
    typed: Typed | None = None  # what the user typed; None: messages have no line to paste

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--output", self.output or "all", OUTPUTS),
            ("--label", self.label, LABELS),
            ("--fold", self.fold, FOLDS),
        ):
            if value not in known:
                raise UsageError(f"{name}: expected {', '.join(known)}, found {value!r}")

    @property
    def mode(self) -> str:
        """One of OUTPUTS."""
        if self.output:
            return self.output
        from mesh.screen.descriptor import replaced

        return "fold" if _is_terminal(1) and replaced(1) is None else "all"


class Attaching(Struct, frozen=True, kw_only=True):
    """What is here of a run that goes on by itself, and what is wanted of it."""

    directory: Path
    left: Left  # what is there already
    fetch: Place  # bytes of each rank's streams that need not come
    skip: Place  # bytes that come again, and are in the directory
    hide: Place  # bytes that come, and are not shown
    told: Path  # where the logs are said to be
    begin: str  # "now": nothing of what was there when we came is shown
    only_reads: bool = False  # end nothing there, not even what a lost agent has left
    only_end: bool = False  # no output is fetched, and the hosts keep it for those who fetch it later


def new_run_id() -> str:
    """An id that sorts by time, also within a second, and is unique for all who share a host."""
    now = time.time()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now % 1 * 4096):03x}{os.urandom(2).hex()[1:]}"


def placed(spec: RunSpec, cluster: Cluster) -> Placement:
    """Number the ranks of a run on the hosts of a cluster."""
    return spec.placed(cluster.hosts, cluster.slices)


def launch(
    spec: RunSpec,
    cluster: Cluster,
    showing: Showing,
    *more: Sink,
    supervisor: Decider | None = None,
    attaching: Attaching | None = None,
    landing: Callable[[int], Landing] | None = None,
    summary: Callable[[Outcome, Placement], tuple[Sequence[str], Sequence[str]]] | None = None,
    reach: float = math.inf,
    keeps: bool = False,
    opener: Opener | None = None,
) -> tuple[Outcome, Placement, StoreSink | None]:
    """Run it; return how it ended, which ranks were where, and what keeps its output, if anything does.

    attaching: the run is one that goes on by itself, and is not started
    landing: where what is pulled from the host of a rank is put
    summary: the last words where nothing is kept: what was done, and what was not
    reach: seconds after which a host that takes no connection is given up; math.inf: as long, and as often, as a run
    keeps: agents may wait on the hosts already, and wait there for the next command
    opener: makes the backend; None: the one that the cluster names
    Raises UsageError if this process may not have a descriptor for every host.
    """
    do_afterwards()
    _allow_descriptors(len(cluster.hosts), PER_HOST.get(cluster.backend, 0))
    with contextlib.ExitStack() as files:
        stock = _stock(cluster) if keeps else None
        begun = files.enter_context(_begun(cluster)) if stock is None else {}
        from mesh.backends.ssh.passwords import Passwords
        from mesh.engine.launcher import Launcher, Local
        from mesh.rundir.about import describe
        from mesh.screen.gate import Gate
        from mesh.screen.jsonl import JsonSink
        from mesh.screen.pause import Pause

        placement = placed(spec, cluster)
        terminal = None if showing.quiet else _terminal(spec, placement, showing)
        alone = terminal.hidden if terminal else contextlib.nullcontext
        passwords = Passwords(cluster.password_env, os.environ, alone=alone)
        if cluster.ask_password:
            _ask_first(passwords, cluster)
        store = _store(spec, cluster, placement, terminal, attaching) if showing.kept else None
        shown: list[Sink] = [terminal] if terminal else []
        shown += [JsonSink(placement=placement)] if showing.json else []
        pause = Pause()
        if attaching:
            is_open = attaching.begin != "now"
            shown = [Gate(sink, attaching.hide, placement, is_open=is_open, pause=pause) for sink in shown]
        sinks: list[Sink] = [*([store] if store else ()), *shown]
        if terminal and not attaching:
            _introduce(spec, cluster, terminal, showing)
        local = Local(
            owner=owner_of(spec, cluster),
            is_dead=Owners().is_dead,
            password=passwords.of,
            luggage=lambda tell: _luggage(spec, files, tell),
            landing=landing,
            choose=lambda is_over: _choose(spec, terminal, pause, is_over),
            plan=describe(spec, cluster.name, placement),
            have=attaching.fetch if attaching else None,
            only_reads=attaching.only_reads if attaching else False,
            only_end=attaching.only_end if attaching else False,
        )
        backend = (opener or BACKENDS[cluster.backend])(cluster, passwords, reach, stock, begun)
        verdict: Verdict | None = None

        def conclude(outcome: Outcome) -> None:
            nonlocal verdict
            verdict = store.finish(outcome) if store else None

        try:
            launcher = Launcher(spec, cluster, placement, backend, [*sinks, *more], local, supervisor, afterwards)
            outcome = launcher.run(conclude)
        finally:
            passwords.close()
    if cluster.tpu:
        from mesh.hosts.tpu.discovery import forget_if_wrong

        forget_if_wrong(cluster, outcome)
    if terminal:
        logs = attaching.told if attaching else None
        say = partial(_conclude, spec, cluster, placement, outcome, verdict, terminal, store, logs, showing, summary)
        if launcher.is_shown:
            say()
        else:  # there may still be somebody who reads these
            last = threading.Thread(target=say, name="mesh-last-words", daemon=True)
            last.start()
            last.join(LAST_WORDS)
    if stock:
        from mesh.keeper.server import fill

        fill(cluster, stock.keys, os.environ)
    return outcome, placement, store


def _terminal(spec: RunSpec, placement: Placement, showing: Showing) -> TerminalSink:
    from mesh.screen.terminal import TerminalSink

    return TerminalSink(
        placement=placement,
        mode="none" if showing.json else showing.mode,
        label=showing.label,
        exact=showing.fold == "exact",
        stdin_fd=0 if spec.rules.stdin == "none" else -1,
        unsent=_unsent_notice(spec) if showing.stdin_notice else "",
        typed_for_ranks=spec.rules.stdin != "none" and _is_terminal(0),
        noun="host" if spec.kind is Kind.SETUP else "rank",
        run=spec.run if spec.kind is Kind.RUN else "",
        environ=os.environ,
        progress=not showing.json,
        stacks=spec.stacks_on_timeout,
        title=spec.told,
        typed=showing.typed,
    )


def _unsent_notice(spec: RunSpec) -> str:
    hint = "" if spec.detach else "; use -i (rank 0) or --stdin all"
    return f"stdin is not sent to any rank{hint}"


def _introduce(spec: RunSpec, cluster: Cluster, terminal: TerminalSink, showing: Showing) -> None:
    """Say what is to be known of a cluster before it is used."""
    if spec.kind is Kind.RUN and len(set(cluster.slices)) > 1:
        sizes = ", ".join(map(str, cluster.slices))
        terminal.say(f"the slices have {sizes} hosts; a program that joins TPU slices (Multislice) needs equal ones")
    if cluster.note and showing.kept:
        terminal.say(cluster.note)
    if spec.kind is Kind.SETUP:
        terminal.say(f"Setting up cluster '{cluster.name}' ({len(cluster.hosts)} hosts)")  # MESH's own words
        if not spec.commands:
            terminal.say(f"nothing to run: there are no commands: in {spec.workspace / PROJECT_FILE}")


def _ask_first(passwords: Passwords, cluster: Cluster) -> None:
    """Ask for the passwords of a cluster's users. Raises UsageError where nobody gives one."""
    for user in dict.fromkeys(host.user for host in cluster.hosts):
        if not passwords.of(user):
            hint = "ask on a terminal, or put it into a variable and name that by password_env"
            raise UsageError(f"no password for {user}", hint=hint)


def _choose(spec: RunSpec, terminal: TerminalSink | None, pause: Pause, is_over: Callable[[], bool]) -> str:
    """Ask whether Ctrl-C is meant for the run."""
    question = f"Run {spec.run[-6:]} keeps running if you leave.  [s]top  [l]eave  [Enter] keep watching "
    with pause.asking(), terminal.hidden() if terminal else contextlib.nullcontext():
        os.write(2, f"\n{question}".encode())
        while not select.select([0], [], [], 0.1)[0]:
            if is_over():
                os.write(2, b"\n")
                return "go on"
        answer = os.read(0, 100).decode("utf-8", "replace") or "l"
    return {"s": "stop", "l": "leave"}.get(answer.strip().lower()[:1], "go on")


def _store(
    spec: RunSpec,
    cluster: Cluster,
    placement: Placement,
    terminal: TerminalSink | None,
    attaching: Attaching | None,
) -> StoreSink:
    from mesh.rundir.writer import StoreSink

    def tell(problem: str) -> None:
        if terminal:
            terminal.say(f"the run goes on, but its logs are incomplete: {problem}")

    return StoreSink(
        directory=attaching.directory if attaching else runs_directory(os.environ) / spec.run,
        spec=spec,
        cluster_name=cluster.name,
        placement=placement,
        tell=tell,
        left=attaching.left if attaching else None,
        skip=attaching.skip if attaching else None,
    )


def _is_terminal(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


def _conclude(
    spec: RunSpec,
    cluster: Cluster,
    placement: Placement,
    outcome: Outcome,
    verdict: Verdict | None,
    terminal: TerminalSink,
    store: StoreSink | None,
    logs: Path | None,
    showing: Showing,
    summary: Callable[[Outcome, Placement], tuple[Sequence[str], Sequence[str]]] | None,
) -> None:
    """Tell how it ended."""
    from mesh.core.amounts import told_bytes
    from mesh.core.ranks import told_ranks
    from mesh.screen.summary import run_summary, setup_summary, sync_summary

    if spec.kind is Kind.SYNC:
        lines = sync_summary(outcome, placement)
    elif outcome.goes_on and outcome.failures:
        lines = []  # it was none to attach to: that is an error
    elif store and spec.kind is Kind.SETUP:
        lines = setup_summary(outcome, placement, cluster.name, store.set_up, store.logs)
    elif store:
        lines = run_summary(outcome, placement, verdict, store.prepared, logs or store.logs, showing.typed)
    else:
        lines = []
    terminal.conclude(lines, failed=bool(outcome.exit_code))
    if store and store.left_out:
        size, ranks = told_bytes(sum(store.left_out.values())), told_ranks(store.left_out)
        terminal.say(f"left out of the logs: {size} of {ranks}, beyond `logs:` in mesh.yaml or for want of room")
    if store and store.problem:
        terminal.complain(f"the run directory is incomplete: {store.problem}")
    if terminal.problem:
        terminal.complain(f"not all output could be shown: {terminal.problem}")
    if summary:
        done, failed = summary(outcome, placement)
        terminal.conclude(done, failed=False)
        terminal.conclude(failed, failed=True)


def _luggage(spec: RunSpec, files: contextlib.ExitStack, tell: Callable[[Event], None]) -> Luggage:
    from mesh.app.luggage import WorkspaceLuggage

    return WorkspaceLuggage(spec, files, tell)


def _allow_descriptors(hosts: int, each: int) -> None:
    """Take as many descriptors as we may have: macOS begins with 256. Raises UsageError if those are too few."""
    needed = hosts * each + BESIDES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(65536, needed) if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        hint = f"`ulimit -n {needed}` before; where that is refused, root raises the limit (nofile in limits.conf)"
        raise UsageError(f"{hosts} hosts need {needed} open files, and this process may have {most}", hint=hint)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _local_backend(cluster: Cluster, passwords: Passwords, reach: float, stock: Stock | None, begun: Begun) -> Backend:
    from mesh.backends.local import LocalBackend

    return LocalBackend()


def _ssh_backend(cluster: Cluster, passwords: Passwords, reach: float, stock: Stock | None, begun: Begun) -> Backend:
    from mesh.backends.ssh.backend import SshBackend

    return SshBackend(cluster, environ=os.environ, passwords=passwords, reach=reach, stock=stock, begun=begun)


def _begun(cluster: Cluster) -> contextlib.AbstractContextManager[Begun]:
    """Connections that are begun before all is imported that makes use of them."""
    if cluster.backend != "ssh" or cluster.password_env or cluster.ask_password:  # sshd waits for nobody who thinks
        return contextlib.nullcontext({})
    from mesh.backends.ssh.ahead import begun

    return begun(cluster)


def _stock(cluster: Cluster) -> Stock | None:
    """What may be kept, if anything may: where a password is needed, nothing is."""
    if not cluster.keep or cluster.backend != "ssh" or cluster.password_env or cluster.ask_password:
        return None
    from mesh.backends.ssh.kept import Stock
    from mesh.keeper.server import socket_of
    from mesh.remote.blob import opening

    return Stock(socket_of(os.environ), opening())


# What is done once somebody has been told how the command ended; None: nobody sees to that, and it is done at once.
AFTERWARDS: list[Callable[[], object]] | None = None


def afterwards(work: Callable[[], object]) -> None:
    """Have something done that nobody need wait for."""
    if AFTERWARDS is None:
        work()
    else:
        AFTERWARDS.append(work)


def do_afterwards() -> None:
    """Do what was left for later, now."""
    while AFTERWARDS:
        AFTERWARDS.pop(0)()


Opener = Callable[[Cluster, "Passwords", float, "Stock | None", "Begun"], "Backend"]
BACKENDS: Mapping[str, Opener] = {"local": _local_backend, "ssh": _ssh_backend}
