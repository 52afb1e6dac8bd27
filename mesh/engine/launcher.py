"""Carries a run out: threads, the queue between them, signals and the clock. Every decision is the supervisor's.

One thread per host blocks on its channel and puts events on a queue; the main thread owns all state and blocks on
nothing else. One thread feeds each sink; one sends the beats; one opens the channels; one packs the workspace.
"""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from mesh.core.cluster import Cluster, Placement
from mesh.core.errors import HostUnreachable, MeshError, OutputClosed
from mesh.core.events import (
    AsksPassword,
    Chosen,
    Cleared,
    Connected,
    Ended,
    Event,
    Finished,
    Interrupted,
    Lacks,
    Locked,
    Notice,
    OtherTree,
    PrepareFailed,
    Progress,
    Ready,
    Sending,
    Serving,
    Silent,
    StdoutClosed,
    Stopped,
    Synced,
    Tick,
    Unfetched,
    WantsPassword,
    WorkspaceFailed,
)
from mesh.core.interfaces import Backend, Channel, Sink
from mesh.core.outcome import Outcome
from mesh.core.pull import Landing
from mesh.core.run import RunSpec
from mesh.core.text import one_line
from mesh.engine import orders
from mesh.engine.beats import Beats
from mesh.engine.courier import NEAR, Courier, Luggage, make_credentials
from mesh.engine.environment import Rendezvous, host_environment, ports_wanted, rank_environment
from mesh.engine.receiver import Receiver
from mesh.engine.showing import Shower
from mesh.engine.supervisor import Supervisor
from mesh.engine.wrapping import host_command, host_program
from mesh.remote.blob import library, start_command
from mesh.remote.following import Following, Place
from mesh.remote.session import Begin, Finds, Preparation, Rank, Session

TICK = 0.1  # seconds between two looks at the clock and at signals when nothing else happens
SHORTEST = 0.01  # seconds between two looks at the clock while much happens
PROGRESS = 0.2  # seconds between two Sending
BEAT = 5.0  # seconds between two beats
GREETING_LIMIT_S = 20.0  # for the login on a host to start the agent, where --connect-timeout does not say
SILENT = 15.0  # seconds without a byte after which a host is called silent
AGAIN = 1.0  # seconds between two attempts to reach a host again
STDIN_AHEAD = 1 << 18  # bytes of our standard input that a rank may be behind
LAST_LOOK = 2.0  # seconds for a reader to take what is left after an interrupt
GOOD_BYE = 0.5  # seconds for telling the hosts that we leave
OLDEST_RUN = 3650  # days that a run may go on without us
DEVICES_FREE = 30.0  # seconds in which a host's devices must be free again after a run
JOIN = 5.0  # seconds for a thread to end after its channel was closed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
NO_SUSPENSION = "not suspended: without us the hosts would end the run; Ctrl-C ends it"


class Local(Struct, frozen=True, kw_only=True):
    """What the launcher needs from this side."""

    owner: dict[str, object]  # what the lock, and the agent, tell others
    is_dead: Callable[[Mapping[str, Any]], bool]  # whether an owner, or the run of an id, is known to live no more
    luggage: Callable[[Callable[[Event], None]], Luggage]  # lists the workspace, tells; raises MeshError or OSError
    password: Callable[[str], str]  # what sudo wants of a user on the hosts; asked for once; "" if there is none
    stdin: int = 0  # the descriptor of our standard input
    # Asks the user whether to "stop" the run, to "leave" it, or to "go on"; ends when it is told that all is over.
    choose: Callable[[Callable[[], bool]], str] = lambda is_over: "leave"
    plan: Mapping[str, object] = field(default_factory=dict)  # what whoever comes back to the run must know
    have: Place | None = None  # attach to the run, of which there is so much here; None: start it
    only_reads: bool = False  # attach, and end nothing there, not even what a lost agent has left
    only_end: bool = False  # attach, and leave the output to those who fetch it later
    landing: Callable[[int], Landing] | None = None  # where what is pulled from the host of a rank is put


class _Arrival(Struct, frozen=True):
    """An event, and how far the host's stream is told by then."""

    event: Event
    session: Session | None = None
    place: int = 0


class Decider(Protocol):
    """Decides what happens next: the Supervisor of a run, or an Inquiry."""

    @property
    def done(self) -> bool:
        """True once every agent has left, or is not waited for."""

    def locks_at_once(self, node: int) -> bool:
        """Whether a host is to take its lock without waiting for an order. The same at all times, from any thread."""

    @property
    def prepares_at_once(self) -> bool:
        """Whether a host is to be prepared then, without waiting for an order. The same at all times."""

    def handle(self, event: Event) -> list[orders.Order]:
        """Take note of an event; return what is to be done now, in this order."""

    def outcome(self, ended: float) -> Outcome:
        """How it all ended, in seconds since the epoch. Valid once ``done``."""


class Launcher:
    """Runs one run to its end."""

    def __init__(
        self,
        spec: RunSpec,
        cluster: Cluster,
        placement: Placement,
        backend: Backend,
        sinks: Sequence[Sink],
        local: Local,
        supervisor: Decider | None = None,
        afterwards: Callable[[Callable[[], object]], object] = lambda work: work(),
    ) -> None:
        """supervisor: who decides; default: the Supervisor of a run.

        afterwards: sees to something that nobody need wait for
        """
        self._spec, self._cluster, self._placement = spec, cluster, placement
        self._backend, self._sinks, self._local = backend, sinks, local
        self._supervisor = supervisor or Supervisor(spec, placement)
        # It has no limit: the hosts send no more than a window ahead of what has been acknowledged.
        self._arrived: queue.SimpleQueue[_Arrival | None] = queue.SimpleQueue()  # None: nothing, but look at the clock
        self._urgent: collections.deque[Event | BaseException] = collections.deque()  # passes every queue
        self._sessions: dict[int, Session] = {}
        self._connected: dict[int, Connected] = {}
        self._locked: dict[int, Locked] = {}  # what the hosts have told of their workspaces
        self._interfaces: dict[int, Mapping[str, str]] = {}  # variables of NCCL and gloo, as the hosts have told them
        self._ports: tuple[int, ...] = ()  # that are kept for the ranks on the first host
        self._credentials = ""  # by which the agents of a detached run know each other
        self._rendezvous: Rendezvous | None = None  # None: not all hosts have answered
        self._luggage: Future[Luggage] = Future()
        self._courier = Courier(
            self._luggage,
            self._address_of,
            self._spawn,
            self._workspace_failed,
            count=len(placement.hosts),
            fresh=spec.fresh,
            fan_out=spec.fan_out,
        )
        self._showers: list[Shower] = []
        self.is_shown = True  # False after a run whose reader stood still when it was interrupted
        self._stdin = _StdinCredit()
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self._afterwards = afterwards
        self._interrupted = False
        self._ticked_at = 0.0  # monotonic: the last Tick
        self._progress_at = 0.0  # monotonic: when progress is told next

    def run(self, conclude: Callable[[Outcome], object] = lambda outcome: None) -> Outcome:
        """Run until every process of the run is gone, or cannot be reached. Call it from the main thread.

        conclude: called with what is returned; signals that come from then on are too late
        Raises whatever went wrong in mesh itself; the channels are closed then, and the agents end the run.
        """
        with _noted_signals(self._interrupt):
            self._showers = [Shower(f"mesh-sink-{n}", sink, self._sink_failed) for n, sink in enumerate(self._sinks)]
            hang_up: Callable[[], object] = self._hang_up
            try:
                self._spawn("mesh-connect", self._connect)
                self._spawn("mesh-watchdog", self._watch)
                if self._spec.sync:
                    self._spawn("mesh-pack", self._list_workspace)
                    self._courier.start()
                self._drive()
                outcome = self._supervisor.outcome(time.time())
                end = outcome.ended
                code, cause = outcome.exit_code, outcome.cause.value
                self._show(Finished(time=end, exit_code=code, cause=cause, run=self._spec.run))
                self._settle_down()
                # Whoever reads our standard input must be seen to have stopped.
                if not (self._interrupted or outcome.goes_on or self._spec.rules.stdin != "none"):
                    hang_up = partial(self._afterwards, self._hang_up)
            finally:
                hang_up()
                self._finish_showing()
            self._raise_errors()
            late = next((item.signal for item in list(self._urgent) if isinstance(item, Interrupted)), 0)
            outcome = replace(outcome, signal=outcome.signal or late)
            conclude(outcome)
        return outcome

    # ---- the main thread

    def _drive(self) -> None:
        """Run until every agent has left; the only loop that touches state."""
        while not self._supervisor.done:
            self._pass_time()
            passed = time.monotonic()
            with contextlib.suppress(queue.Empty):
                arrival = self._arrived.get(timeout=TICK)
                while arrival is not None:
                    if self._urgent:  # it may explain what has arrived
                        self._pass_time()
                    self._handle(arrival)
                    if time.monotonic() - passed > TICK:
                        break
                    arrival = self._arrived.get_nowait()

    def _pass_time(self) -> None:
        """Look at the clock and at what passes the queue."""
        now = time.monotonic()
        if now >= self._ticked_at + SHORTEST:
            self._ticked_at = now
            self._decide(Tick(time=time.time(), monotonic=now))
        while self._urgent:
            item = self._urgent.popleft()
            if isinstance(item, BaseException):
                raise item
            self._decide(item)
            if isinstance(item, Notice):
                self._show(item)
        if time.monotonic() >= self._progress_at:
            self._progress_at = time.monotonic() + PROGRESS
            if sending := self._courier.sending():
                self._show_progress(Sending(time=time.time(), sent=sending[0], of=sending[1]))

    def _handle(self, arrival: _Arrival) -> None:
        event = arrival.event
        if isinstance(event, Progress):
            self._show_progress(event)
            return
        if isinstance(event, Connected):
            self._connected[event.node] = event
        elif isinstance(event, Locked):
            self._locked[event.node] = event
            self._ports = event.ports or self._ports
        elif isinstance(event, Ready):
            self._interfaces[event.node] = event.interfaces
        elif isinstance(event, Lacks | OtherTree | Serving | Synced | Unfetched):
            if isinstance(event, Synced) and not self._courier.accepts(event):
                return  # a file has changed meanwhile: it is synced once more
            self._courier.handle(event)
            event = self._checked(event)
        elif isinstance(event, WantsPassword):  # the user is asked now, and the host gets it when its command runs
            self._spawn(f"mesh-password-{event.node}", partial(self._expect_password, event))
        elif isinstance(event, AsksPassword):
            self._spawn(f"mesh-password-{event.node}", partial(self._give_password, event))
        self._decide(event)
        self._show(event)
        if arrival.session is not None:
            arrival.session.acknowledge(arrival.place)

    def _checked(self, event: Event) -> Event:
        """No rank starts on a tree that is not ours."""
        if isinstance(event, Synced) and event.tree != self._luggage.result().tree:
            message = "what is there now is not what was sent"
            return PrepareFailed(time=event.time, node=event.node, step="sync", message=message)
        return event

    def _decide(self, event: Event) -> None:
        ordered = self._supervisor.handle(event)
        if isinstance(event, Interrupted):
            # While the user is asked, readers stand still on purpose and miss nothing.
            is_question = any(isinstance(order, orders.AskUser) for order in ordered)
            self._interrupted = self._interrupted or not is_question
        elif isinstance(event, Chosen):
            self._interrupted = self._interrupted or event.answer != "go on"
        for order in ordered:
            if isinstance(order, orders.HostOrder):
                self._carry_out(order)
            elif isinstance(order, orders.AskUser):
                self._spawn("mesh-ask", self._ask_user)
        # Not before the last host has its order to start: what came earlier would be for nobody.
        started = [order.node for order in ordered if isinstance(order, orders.Start)]
        if self._spec.rules.stdin != "none" and started:
            self._spawn("mesh-stdin", lambda: self._feed_stdin(started))
        for order in ordered:  # the hosts come first, as showing may take its time
            if isinstance(order, orders.Say):
                self._show(Notice(time=time.time(), text=order.text))
            elif isinstance(order, orders.Tell):
                self._show(order.event)

    def _carry_out(self, order: orders.HostOrder) -> None:
        session = self._sessions[order.node]
        match order:
            case orders.Lock():
                session.lock()
            case orders.Unlock():
                session.unlock()
            case orders.Sync(node=node):
                session.beat()  # how far it is decides how the workspace is packed
                locked = self._locked[node]
                self._courier.begin(node, session, locked.tree, is_bare=locked.is_bare)
            case orders.Prepare(node=node):
                session.prepare(self._preparation(node), self._finds(node))
            case orders.Start(node=node) if self._spec.commands:
                session.setup(self._placement.ranks(node)[0], self._spec.commands, self._spec.force)
            case orders.Start(node=node):
                env = {**self._environment(node), **self._interfaces[node]}
                command = host_command(self._spec, self._placement, node, env)
                finds = self._finds(node) if self._connected[node].is_preparing else None
                session.start(command, self._ranks(node), finds=finds, detach=self._spec.detach)
            case orders.Ask(question=question, enclosed=enclosed) if enclosed:
                self._spawn(f"mesh-ask-{order.node}", partial(session.ask_with, question, enclosed))
            case orders.Ask(question=question, lasting=lasting):
                session.ask(question, lasting=lasting)
            case orders.Detach():
                session.detach()
            case orders.Introduce(port=port):
                self._introduce(session, port)
            case orders.Signal(number=number, grace=grace, why=why):
                session.signal(number, grace, why)
            case orders.Kill():
                session.kill()
            case orders.Finish(number=number, grace=grace):
                session.finish(number, grace)

    def _introduce(self, session: Session, port: int) -> None:
        self._credentials = self._credentials or make_credentials(OLDEST_RUN)
        place = (self._address_of(0), port) if port else ()
        session.introduce(self._spec.rules.host_grace, self._credentials, *place)

    def _show(self, event: Event) -> None:
        """Hand an event to every sink. Behind a reader that is slow or paused, time and signals go on."""
        for shower in self._showers:
            while not shower.offer(event, 0.0 if self._interrupted and shower.is_behind else TICK):
                # Notices that come of it are shown from within; there are only as many as a user can cause.
                self._pass_time()
                if self._supervisor.done or self._interrupted:
                    break  # whoever interrupts a paused terminal does not want to see the rest; the log files have it

    def _show_progress(self, event: Progress) -> None:
        """Hand it to the sinks that have nothing else to do."""
        for shower in self._showers:
            if not shower.is_behind:
                shower.offer(event, 0.0)

    def _preparation(self, node: int) -> Preparation:
        spec = self._spec
        brought = library() if spec.has_command else b""
        return Preparation(
            prerun=spec.prerun,
            force=spec.force,
            claim=spec.claim,
            evict=spec.evict,
            library=brought,
            program=host_program(spec, self._placement, node),
        )

    def _finds_alone(self, node: int) -> Finds:
        """Return the part of it that is known before: enough to find a named interface and the command on PATH."""
        return Finds(env=self._spec.groups[self._placement.group(node)].env, interface=self._cluster.interface)

    def _finds(self, node: int) -> Finds:
        """What the first rank of a host does, once all hosts have answered."""
        env = self._environment(node)
        if not self._spec.has_command:
            return Finds(env=env)
        # On the first host itself its own name may say little; then the way to another one tells the interface.
        targets = [env["MASTER_ADDR"], *([self._address_of(1)] if not node and len(self._placement.hosts) > 1 else [])]
        return Finds(env=env, interface=self._cluster.interface, targets=targets)

    def _environment(self, node: int) -> dict[str, str]:
        if self._rendezvous is None:  # once for all hosts: all have answered
            addresses = [self._address_of(node) for node in range(len(self._placement.hosts))]
            # The first host keeps none where the run goes on without it.
            ports = self._ports or ports_wanted(self._spec, self._placement)
            self._rendezvous = Rendezvous(addresses=addresses, ports=ports)
        found = host_environment(self._spec, self._placement, self._rendezvous, node)
        return {**self._luggage.result().env, **found} if self._spec.sync else found

    def _address_of(self, node: int) -> str:
        """By which the other hosts reach it; for a host that was not reached, the address of cluster.yaml."""
        host, connected = self._placement.hosts[node], self._connected.get(node)
        return host.internal_ip or (connected.address if connected else host.address)

    def _ranks(self, node: int) -> list[Rank]:
        ranks = []
        for rank in self._placement.ranks(node):
            env = rank_environment(self._spec, self._placement, rank)
            stdin = self._spec.rules.stdin == "all" or (self._spec.rules.stdin == "rank0" and rank == 0)
            ranks.append(Rank(rank=rank, env=env, stdin=stdin))
        return ranks

    def _settle_down(self) -> None:
        """Begin nothing more."""
        self._over.set()
        self._stdin.close()
        self._courier.stop()

    def _hang_up(self) -> None:
        """Close every channel and end every thread but those that show."""
        self._settle_down()
        # Where an agent has not taken its leave; a dead connection may block whoever sends.
        self._spawn("mesh-bye", self._say_good_bye).join(GOOD_BYE)
        for session in list(self._sessions.values()):
            session.close()
        self._backend.close()
        deadline = time.monotonic() + JOIN
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _say_good_bye(self) -> None:
        for session in list(self._sessions.values()):
            session.leave()

    def _finish_showing(self) -> None:
        """Wait until the sinks have seen everything, however slow their reader is; less once we were interrupted."""
        enough = time.monotonic() + LAST_LOOK
        for shower in self._showers:
            while not shower.finish(TICK):
                self._interrupted = self._interrupted or any(
                    isinstance(item, Interrupted) for item in list(self._urgent)
                )
                if self._interrupted and time.monotonic() > enough:
                    self.is_shown = False
                    break

    def _sink_failed(self, error: Exception) -> None:
        self._urgent.append(StdoutClosed(time=time.time()) if isinstance(error, OutputClosed) else error)

    def _raise_errors(self) -> None:
        for item in list(self._urgent):  # a signal may add to it meanwhile
            if isinstance(item, BaseException):
                raise item

    # ---- the other threads

    def _spawn(self, name: str, function: Callable[[], None]) -> threading.Thread:
        """Start a thread; an error in it is the main thread's."""

        def work() -> None:
            try:
                function()
            except Exception as error:
                self._urgent.append(error)

        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _interrupt(self, event: Event) -> None:
        """Tell the main thread what a signal means, in the signal's handler."""
        self._urgent.append(event)
        self._arrived.put(None)

    def _put(self, event: Event) -> None:
        """Queue an event from another thread."""
        self._arrived.put(_Arrival(event))

    def _connect(self) -> None:
        hosts = self._placement.hosts
        for opened in self._backend.open(hosts, start_command(self._cluster.python)):
            if isinstance(opened.result, HostUnreachable):
                error = opened.result
                message = one_line(str(error))  # the server may have written some of it
                failed = PrepareFailed(
                    time=time.time(), node=opened.node, step=error.step, message=message, hint=error.hint
                )
                self._put(failed)
            else:
                self._begin(opened.node, opened.result)

    def _begin(self, node: int, channel: Channel) -> None:
        host = self._placement.hosts[node]
        first = self._placement.ranks(node)[0]
        session = (Session if self._local.have is None else Following)(
            node,
            first,
            channel,
            self._stdin.taken,
            lambda: self._reopen(node, session),
            self._local.is_dead,
            lambda data: receiver.take(data) if receiver else (),
        )
        receiver = self._receiver(node, session)
        self._sessions[node] = session
        begin = Begin(
            run=self._spec.run,
            project=self._spec.project,
            remote_dir=host.remote_dir or self._cluster.remote_dir,
            about=self._local.owner,
            owner=self._local.owner if self._spec.lock else None,
            lock=self._supervisor.locks_at_once(node),
            node=node,
            announce=self._spec.is_announced,
            exclusive=self._spec.exclusive,
            share=self._spec.share,
            existing=self._spec.existing,
            workspace_links=self._cluster.workspace_links,
            needs_home=self._spec.needs_home,
            devices=self._cluster.devices,
            device_patience=DEVICES_FREE,
            spool=self._spec.rules.spool,
            lease=self._spec.rules.lease,
            grace=self._spec.rules.grace,
            ports=() if node else ports_wanted(self._spec, self._placement),
            stacks=self._spec.stacks,
            drain=self._spec.rules.drain,
            timeout=self._spec.rules.timeout,
            keep_going=self._spec.rules.keep_going,
            plan=self._local.plan,
        )

        def serve() -> None:
            if isinstance(session, Following):
                ranks = self._placement.ranks(node)
                session.follow(
                    begin,
                    ranks,
                    self._local.have or {},
                    only_reads=self._local.only_reads,
                    only_end=self._local.only_end,
                )
            elif self._supervisor.prepares_at_once:
                session.begin(begin, self._preparation(node), self._finds_alone(node))
            else:
                session.begin(begin)
            try:
                for event in session.events():
                    if isinstance(event, Ended | Cleared | Stopped):
                        self._urgent.append(event)
                    else:
                        self._arrived.put(_Arrival(event, session, session.place))
            finally:
                if receiver:
                    receiver.close()

        self._spawn(f"mesh-host-{host.name}", serve)

    def _receiver(self, node: int, session: Session) -> Receiver | None:
        """Who takes what is pulled from a host, if anything is."""
        if self._local.landing is None:
            return None
        landing = self._local.landing(self._placement.ranks(node)[0])
        return Receiver(node, landing, session.reply, lambda: session.round_trip < NEAR)

    def _reopen(self, node: int, session: Session) -> Channel | None:
        """Another channel to a host whose agent goes on; None once the host is lost."""
        while time.monotonic() < session.heard + self._spec.rules.host_grace:
            if self._over.wait(AGAIN if session.opened > session.heard else 0.0):
                return None
            try:
                session.opened = time.monotonic()
                return self._backend.reopen(node, start_command(self._cluster.python))
            except HostUnreachable:
                continue
        return None

    def _ask_user(self) -> None:
        self._urgent.append(Chosen(time=time.time(), answer=self._local.choose(self._over.is_set)))

    def _expect_password(self, event: WantsPassword) -> None:
        self._ask_password(event.node)

    def _give_password(self, event: AsksPassword) -> None:
        self._sessions[event.node].password(event.step, self._ask_password(event.node))

    def _ask_password(self, node: int) -> str:
        """Return the password of the user whom we logged in as, whatever the host calls that user."""
        return self._local.password(self._backend.user(node))

    def _list_workspace(self) -> None:
        try:
            self._luggage.set_result(self._local.luggage(self._hear_of_workspace))
        except (MeshError, OSError) as error:
            self._workspace_failed(error)
            self._luggage.set_exception(error)
        except BaseException as error:
            self._luggage.set_exception(error)
            raise

    def _hear_of_workspace(self, event: Event) -> None:
        """Called now and then while all is listed, hashed and packed; raises MeshError once nobody needs that."""
        if self._over.is_set():
            raise MeshError("the run is over")
        self._put(event)

    def _workspace_failed(self, error: Exception) -> None:
        hint = error.hint if isinstance(error, MeshError) else ""
        self._put(WorkspaceFailed(time=time.time(), message=str(error), hint=hint))

    def _watch(self) -> None:
        """Renew the leases; tell who is silent; hang up when the main thread is no more."""
        silent: set[int] = set()
        # Several beats fit into what silence may cost, on either side.
        beat = min(BEAT, self._spec.rules.host_grace / 4, self._spec.rules.lease / 4)
        beat_at = time.monotonic() + beat
        beats = Beats(partial(self._spawn, "mesh-beat"))
        while not self._over.wait(min(1.0, beat / 2)):
            # Before Python 3.13 a signal at the end of SimpleQueue.get's timeout has it wait for ever.
            self._arrived.put(None)
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + beat
                beats.renew(self._sessions.copy())
            else:
                beats.advance()
            limit = self._cluster.connect_timeout or GREETING_LIMIT_S
            for node, session in list(self._sessions.items()):
                if session.awaits_login and now - session.opened > limit:
                    session.end_login(limit)
                quiet = now - session.heard if session.waiting else 0.0
                if quiet > self._spec.rules.host_grace:
                    session.give_up(f"silent for {self._spec.rules.host_grace:g} s")
                if quiet > SILENT and now - session.opened > SILENT:
                    session.try_another(f"silent for {quiet:.0f} s")
                if (quiet > SILENT) != (node in silent):
                    silent ^= {node}
                    self._put(Silent(time=time.time(), node=node, seconds=quiet if quiet > SILENT else 0.0))
            if not threading.main_thread().is_alive():
                for session in list(self._sessions.values()):
                    session.close()
        beats.close()

    def _feed_stdin(self, started: Sequence[int]) -> None:
        """Give our standard input to the ranks that want it, as fast as the slowest takes it.

        started: the hosts whose ranks were started; a host that was skipped takes nothing
        """
        nodes = {rank.rank: self._sessions[node] for node in started for rank in self._ranks(node) if rank.stdin}
        data = b"?"
        while data and self._stdin.wait_for_room(nodes):
            data = self._read_stdin()
            for rank, session in nodes.items():
                self._stdin.give(rank, len(data))
                session.stdin(rank, data)

    def _read_stdin(self) -> bytes:
        while not self._over.is_set():
            ready, _, _ = select.select([self._local.stdin], [], [], TICK)
            if ready:
                try:
                    return os.read(self._local.stdin, 65536)
                except OSError:  # the terminal is gone
                    return b""
        return b""


class _StdinCredit:
    """How far each rank is behind our standard input."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._behind: collections.Counter[int] = collections.Counter()
        self._closed = False

    def give(self, rank: int, count: int) -> None:
        with self._changed:
            self._behind[rank] += count

    def taken(self, rank: int, count: int) -> None:
        with self._changed:
            self._behind[rank] -= count
            self._changed.notify_all()

    def wait_for_room(self, ranks: Sequence[int] | dict[int, Any]) -> bool:
        """Wait until every one of them has taken enough; False once closed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or all(self._behind[rank] < STDIN_AHEAD for rank in ranks), timeout=None
            )
            return not self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@contextlib.contextmanager
def _noted_signals(tell: Callable[[Event], None]) -> Iterator[None]:
    """Within: a signal that asks us to end becomes an event. A SIGHUP that was ignored (nohup) stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            tell(Notice(time=time.time(), text=NO_SUSPENSION))
        else:
            tell(Interrupted(time=time.time(), signal=number))

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if not (number in (signal.SIGHUP, signal.SIGTSTP) and handler is signal.SIG_IGN):
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
