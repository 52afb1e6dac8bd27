"""Decides what a run does next, and does none of it."""

from __future__ import annotations

import math
import signal
import zlib
from collections.abc import Iterable
from enum import IntEnum

from mesh.core.cluster import Placement
from mesh.core.events import (
    CONNECTING,
    Answered,
    Busy,
    Cleared,
    Connected,
    Detached,
    Ended,
    Event,
    Exited,
    Gone,
    HostNotice,
    Interrupted,
    Introduced,
    Locked,
    Lost,
    NoCommand,
    OtherRun,
    Output,
    PrepareFailed,
    PrerunDecided,
    Ready,
    Started,
    StaysAttached,
    StdoutClosed,
    Stopped,
    Synced,
    Tick,
    WorkspaceFailed,
)
from mesh.core.findings import few
from mesh.core.outcome import (
    EXIT_BUSY,
    EXIT_LOST,
    EXIT_NOT_FOUND,
    EXIT_OUTPUT_CLOSED,
    EXIT_PREPARE,
    EXIT_TIMEOUT,
    Cause,
    Outcome,
)
from mesh.core.ranks import told_ranks
from mesh.core.run import Kind, RunSpec
from mesh.engine.introduction import PATIENCE as INTRODUCTION
from mesh.engine.introduction import Introduction
from mesh.engine.naming import CLOCK_ERROR_S, NAMING_DELAY_S, alike, by_time
from mesh.engine.orders import Ask, Detach, Finish, Kill, Lock, Order, Prepare, Say, Signal, Start, Sync, Tell, Unlock
from mesh.engine.phases import Phase, Phases
from mesh.engine.skips import Skips
from mesh.engine.wrapping import host_program
from mesh.remote.telling import clock_time, told_other

SYNC_PATIENCE = 30.0  # seconds to wait for `push --watch`, which syncs as we save a file
AGAIN = 0.5  # seconds, at most twice that, before a host that was busy is tried again
QUIET = 0.5  # seconds without output after a failure: the others have nothing more to say
STACKS = 7.0  # seconds for the hosts to tell their stacks; an agent gives itself 5
AT_LOGOUT = {
    "login": "systemd-logind ends the run now, as it ends all that a login leaves there; `mesh check` tells what to do",
    "logins": "systemd ends the run with your last login there; `mesh check` tells what to do",
}
PATIENCE = 10.0  # seconds beyond grace for an agent's answer; it names what SIGKILL did not end after 5


class Ending(IntEnum):
    """How hard the run is being ended; each Ctrl-C goes one further."""

    NOT = 0
    STOPPING = 1  # signalled, grace is running
    KILLING = 2
    LEAVING = 3  # we go; the hosts finish by themselves


class Supervisor:
    """Decides what a run does next: no thread, socket or clock. Time comes with each Tick."""

    def __init__(self, spec: RunSpec, placement: Placement) -> None:
        self._spec = spec
        self._placement = placement
        self._phase = Phases(len(placement.hosts))
        self._now = 0.0  # seconds, monotonic
        self._time = 0.0  # seconds since the epoch
        self._cause: Cause | None = None  # what decided that the run ends; the first one holds
        self._signal = 0  # that asked for it
        self._ending = Ending.NOT
        self._grace = spec.rules.grace
        self._started = 0.0  # seconds since the epoch
        self._deadlines: dict[str, float] = {}  # monotonic
        self._last_output = 0.0
        # When the ranks of each host were told to end, seconds since the epoch.
        self._ordered_ends = dict.fromkeys(range(len(placement.hosts)), float("inf"))
        self._exits: dict[int, Exited] = {}
        self._suspects: dict[tuple[str, int], Exited | Lost] = {}  # what failed by itself; the earliest one decides
        self._unnamed: list[int] = []  # ranks of which a line will say soon that they failed
        self._stopped: set[int] = set()
        self._lost: list[Lost] = []
        self._failures: list[PrepareFailed] = []
        self._skipped: dict[int, PrepareFailed] = {}  # hosts that the run goes on without; they have no ranks
        self._no_command: dict[int, NoCommand] = {}  # hosts that are prepared, and cannot execute the command
        # How many ranks of each host have not ended; a host that is not in it has none, or they will never end.
        self._running = {node: len(placement.ranks(node)) for node in range(len(placement.hosts))}
        self._homeless = False  # the first host has no place for a lock
        self._unverified: list[str] = []
        self._not_seen: dict[int, str] = {}  # hosts that have not told that all is gone there, and why
        self._known: set[int] = set()  # ranks that are known to have failed before their Exited comes
        self._cleared: set[int] = set()  # hosts that have told that all is gone there
        self._idle: set[int] = set()  # the same of hosts that hold nothing: all they wait for is that we leave
        self._prepared_at_once: set[int] = set()  # hosts that need no order
        self._telling: set[int] = set()  # hosts that are to tell their stacks before the run ends
        self._is_backing_off = False  # a host was busy, and we let go of the others for a while
        # Two who wait for each other's hosts must not try in step.
        self._pause = AGAIN * (1 + zlib.crc32(spec.run.encode()) % 100 / 100)
        self._beside: dict[tuple[str, str], list[tuple[float, int]]] = {}  # runs of other users: since when, and where
        self._is_setup = spec.kind is Kind.SETUP
        self._has_ranks = bool(spec.has_command or spec.commands)
        self._skips = Skips(spec.prerun, placement)
        self._not_started = set(range(placement.world_size)) if spec.detach else set()
        self._detached: set[int] | None = None  # hosts that keep the run without us; None: nobody has asked for it
        self._staying: set[int] = set()  # hosts that cannot, and have us stay
        self._introduction = Introduction(spec, placement)
        self._at_logout: dict[str, set[int]] = {}  # hosts whose system would end it then, by what ends it

    @property
    def done(self) -> bool:
        """True once every agent has left, or is not waited for."""
        if self._goes_on:
            return True
        return self._ending is Ending.LEAVING or self._all(Phase.OVER)

    def locks_at_once(self, node: int) -> bool:
        """Whether a host is to take its lock without waiting for an order: the first one, or where nobody waits."""
        return node == 0 or not self._spec.lock

    @property
    def prepares_at_once(self) -> bool:
        """Whether a host is to be prepared without waiting for an order: where that runs and holds nothing."""
        spec = self._spec
        return self._has_ranks and not (spec.commands or spec.sync or spec.lock or spec.prerun or spec.claim)

    def handle(self, event: Event) -> list[Order]:
        """Take note of an event; return what is to be done now, in this order."""
        match event:
            case Output():
                self._last_output = self._now
                return []
            case Tick():
                self._now, self._time = event.monotonic, event.time
                return self._look_at_the_clock()
            case Connected(node=node, is_locking=is_locking):
                self._prepared_at_once |= {node} if event.is_preparing else set()
                orders = self._move(node, Phase.CONNECTED)
                if is_locking and self._phase[node] is Phase.CONNECTED:
                    self._phase[node] = Phase.LOCKING
                return [*orders, *self._lock()]
            case Locked(node=node):
                return [*self._locked(node), *self._share_with(event)]
            case Synced(node=node):
                return self._move(node, Phase.SYNCED)
            case PrerunDecided():
                return self._skips.take(event)
            case Ready(node=node, status=status):
                if status:
                    self._no_command[node] = self._lacking(event)
                return self._move(node, Phase.READY)
            case Busy():
                return self._busy(event)
            case HostNotice(seconds=seconds):
                if "finish" in self._deadlines:
                    self._deadlines["finish"] = max(self._deadlines["finish"], self._now + seconds + PATIENCE)
            case PrepareFailed():
                if self._started and event.step != "start":  # the agent itself was told to end
                    lost = Lost(time=event.time, node=event.node, reason=event.message, killed_by=event.killed_by)
                    return self._lose(lost, Phase.RUNNING)
                return self._fail(event, Cause.PREPARE)
            case WorkspaceFailed(time=time, message=message, hint=hint):
                failure = PrepareFailed(time=time, node=0, step="workspace", message=message, hint=hint)
                return self._fail(failure, Cause.PREPARE)
            case Started(rank=rank):
                return self._have_started([rank])
            case Detached(node=node, ends_with=what):
                if what:
                    self._at_logout.setdefault(what, set()).add(node)
                return self._detach(node)
            case StaysAttached(node=node):
                return self._stay(node)
            case Introduced():
                return self._introduction.take(event)
            case Answered(node=node):
                self._telling.discard(node)
                if not self._telling and "stacks" in self._deadlines:
                    self._deadlines["stacks"] = self._now  # with the next Tick: then this answer has been shown
            case Ended(rank=rank):
                if (
                    event.status
                    and event.time <= self._ordered_ends[event.node] - CLOCK_ERROR_S
                    and rank not in self._known
                    and rank not in self._exits
                ):
                    self._known.add(rank)
                    return self._suspect(event)
            case Cleared(node=node):
                self._cleared.add(node)
                self._not_seen.pop(node, None)
            case Exited():
                return self._exit(event)
            case Lost(node=node):
                phase, self._phase[node] = self._phase[node], Phase.OVER
                return self._lose(event, phase)
            case Gone(node=node, left=left, stays=stays):
                self._unverified += [f"{self._name(node)}: {line}" for line in left]
                self._not_seen.pop(node, None)
                self._phase[node] = Phase.OVER
                said = [Say(text=f"[{self._name(node)}] stays in the background: {line}") for line in stays]
                return [*said, *self._introduce()]
            case Interrupted(signal=number):
                return self._interrupt(number)
            case Stopped():
                self._signal = self._signal or signal.SIGTERM
                orders = self._end(Cause.SIGNAL, signal.SIGTERM)
                for node, ordered in self._ordered_ends.items():  # its ranks may have ended by now
                    self._ordered_ends[node] = min(ordered, event.time)
                return orders
            case StdoutClosed():
                return self._end(Cause.OUTPUT_CLOSED, signal.SIGTERM)
        return []

    def outcome(self, ended: float) -> Outcome:
        """How it all ended; ended is in seconds since the epoch. Valid once ``done``."""
        if self._goes_on:
            return self._left(ended, Cause.DETACHED, 0)
        first = self._first()
        cause = self._cause
        if cause is None:
            cause = Cause.COMPLETED if first is None else Cause.RANK
        if self._skipped and self._started and cause in (Cause.COMPLETED, Cause.RANK, Cause.LOST):
            cause = Cause.LOST  # that came first
        elif cause in (Cause.RANK, Cause.LOST):
            cause = Cause.LOST if isinstance(first, Lost) else Cause.RANK
        else:
            first = None
        waited_for = [node for node in range(len(self._phase)) if self._phase[node] is not Phase.OVER]
        left_alone = [f"{self._name(node)}: not waited for; its agent ends the run there" for node in waited_for]
        return Outcome(
            run=self._spec.run,
            exit_code=self._exit_code(cause, first),
            cause=cause,
            started=self._started,
            ended=ended,
            first=first,
            alike=alike(first, self._failed_ranks()) if isinstance(first, Exited) else (),
            exits=tuple(self._exits[rank] for rank in sorted(self._exits)),
            stopped=tuple(sorted(self._stopped)),
            lost=tuple(sorted(self._lost, key=lambda lost: lost.node)),
            failures=tuple(sorted(self._all_failures(), key=lambda failure: failure.node)),
            unverified=(*self._unverified, *self._not_seen.values(), *left_alone),
            goes_on=self._is_kept and not self._failures,
            signal=self._signal,
        )

    def _first(self) -> Exited | Lost | None:
        """Return the failure that decides: the earliest one, and of ranks that end at once the lowest."""
        return min(self._suspects.values(), key=lambda one: (one.time, getattr(one, "rank", -1)), default=None)

    def _failed_ranks(self) -> list[Exited]:
        return [one for one in self._suspects.values() if isinstance(one, Exited)]

    def _all_failures(self) -> list[PrepareFailed]:
        return [*self._failures, *self._skipped.values(), *self._no_command.values()]

    def _exit_code(self, cause: Cause, first: Exited | Lost | None) -> int:
        if isinstance(first, Exited) and cause is Cause.RANK:
            return first.status
        if cause is Cause.RANK and self._no_command:  # the first host decides, as all reported it before the start
            return self._no_command[min(self._no_command)].status
        return {
            Cause.COMPLETED: 0,
            Cause.LOST: EXIT_PREPARE if self._is_setup else EXIT_LOST,
            Cause.PREPARE: EXIT_PREPARE,
            Cause.BUSY: EXIT_BUSY,
            Cause.TIMEOUT: EXIT_TIMEOUT,
            Cause.SIGNAL: 128 + self._signal,
            Cause.OUTPUT_CLOSED: EXIT_OUTPUT_CLOSED,
        }.get(cause, EXIT_PREPARE)

    # ---- detaching

    @property
    def _goes_on(self) -> bool:
        """The hosts have all of it, where it may have ended by now: whoever comes back is told how."""
        if self._cause is not None or not self._detached:
            return False
        return self._introduction.is_over or (self._is_kept and self._all(Phase.OVER))

    @property
    def _is_kept(self) -> bool:
        """What ranks have printed, and how it ended, is on the hosts: on all but those that are lost."""
        told = (self._detached or set()) | {lost.node for lost in self._lost}
        return bool(self._detached) and len(told) == len(self._phase)

    @property
    def _is_leaving(self) -> bool:
        """From now on it is the hosts that decide, and keep what ranks print."""
        return self._cause is None and not self._staying and (self._spec.detach or self._detached is not None)

    def _have_started(self, ranks: Iterable[int]) -> list[Order]:
        """These have, or never will."""
        awaited = bool(self._not_started)
        self._not_started.difference_update(ranks)
        return self._detach() if awaited and not self._not_started and self._is_leaving else []

    def _detach(self, node: int | None = None) -> list[Order]:
        """All ranks run and nobody is to wait for them, or somebody has told a host so: then so do all."""
        if self._detached is None:
            self._detached = set()
            others = [other for other in self._answering() if other != node and self._cause is None]
        else:
            others = []
        self._detached |= {node} if node is not None else set()
        self._staying -= self._detached  # once somebody has asked again
        return self._introduce() or [Detach(node=other) for other in others]

    def _stay(self, node: int) -> list[Order]:
        """A host cannot keep the run: it stays with us, and what has failed while we were leaving ends it."""
        is_news = self._cause is None and not self._staying
        self._staying.add(node)
        if not is_news:
            return []
        self._deadlines.pop("leaving", None)
        if self._suspects:
            self._blame(min(self._suspects.values(), key=lambda suspect: suspect.time))
        again = f"`mesh detach {self._spec.run}` tries again"
        text = (
            f"the run stays with this client; {again}, and until then hosts that can keep it keep what is printed there"
        )
        return [Say(text=text), *self._settle()]

    def _introduce(self) -> list[Order]:
        """Once all hosts have said that they keep the run, their agents are to meet."""
        detached = self._detached or set()
        if not self._is_leaving or not self._is_kept or not detached.issuperset(self._answering()):
            return []
        self._deadlines.pop("leaving", None)
        self._deadlines.setdefault("introduction", self._now + INTRODUCTION)
        return [*self._warnings(), *self._introduction.begin()]

    def _warnings(self) -> list[Order]:
        """Where it does not go on for long: once."""
        at_logout, self._at_logout = self._at_logout, {}
        names = {what: few([self._name(node) for node in sorted(nodes)]) for what, nodes in at_logout.items()}
        return [Say(text=f"{names[what]}: {AT_LOGOUT[what]}") for what in names]

    def _left(self, ended: float, cause: Cause, exit_code: int) -> Outcome:
        """The outcome of a run that goes on without us."""
        return Outcome(
            run=self._spec.run,
            exit_code=exit_code,
            cause=cause,
            started=self._started,
            ended=ended,
            exits=tuple(self._exits[rank] for rank in sorted(self._exits)),
            goes_on=True,
        )

    # ---- towards the start

    def _lock(self) -> list[Order]:
        """The first host's lock comes before all others: of two clients that start at once, one has all hosts."""
        if self._is_backing_off:
            return []
        if self._cause is not None and not self._homeless:
            return []
        # What keeps the first host from having a lock at all may be wrong on the others as well: they are to tell.
        if self._phase[0] > Phase.LOCKING or self._homeless:
            nodes = self._phase.of(Phase.CONNECTED)
        else:
            nodes = [0] if self._phase[0] is Phase.CONNECTED else []
        self._phase.put(nodes, Phase.LOCKING)
        return [Lock(node=node) for node in nodes]

    def _locked(self, node: int) -> list[Order]:
        """A host is ours. Whoever waits for busy hosts changes nothing on any of them before all are."""
        if self._is_backing_off:
            self._phase[node] = Phase.CONNECTED
            return [Unlock(node=node), *self._back_off()]
        moved = self._move(node, Phase.LOCKED)
        if self._phase[node] is not Phase.LOCKED:
            return [*moved, *self._lock()]
        orders: list[Order] = []
        if self._cause is None and (not self._spec.wait or self._all(Phase.LOCKED)):
            for other in self._phase.of(Phase.LOCKED):
                if self._spec.sync:
                    if self._spec.sync_timeout:
                        self._deadlines.setdefault("sync", self._now + self._spec.sync_timeout)
                    orders += [Sync(node=other), *self._move(other, Phase.SYNCING)]
                else:
                    orders += self._move(other, Phase.SYNCED)
        return [*orders, *self._lock()]

    def _share_with(self, event: Locked) -> list[Order]:
        """Say which other users have runs on the hosts, once all hosts are locked."""
        if self._phase[event.node] >= Phase.LOCKED:
            for other in event.others:
                self._beside.setdefault((other.user, other.run), []).append((other.since, event.node))
        if not self._all(Phase.LOCKED):
            return []
        beside, self._beside = self._beside, {}
        said: list[Order] = []
        for (user, run), places in beside.items():
            names = [self._name(node) for node in sorted({node for _, node in places})]
            told = told_other(OtherRun(user=user, run=run, since=min(places)[0]))
            said.append(Say(text=f"{few(names)} {'are' if names[1:] else 'is'} also used by {told}"))
        return said

    def _busy(self, event: Busy) -> list[Order]:
        """Another run has a host: the end, or a time to wait without keeping any other host."""
        wait = self._spec.wait or (SYNC_PATIENCE if event.is_brief else 0.0)
        if self._cause is not None or not wait or self._passed("wait"):
            message = f"busy with {event.owner}"
            hint = "`mesh ps` lists what runs, `mesh stop RUN` ends it; --wait waits for its end"
            if event.is_other_user:
                hint = "it is another user's run, and only --exclusive refuses that; --wait waits for its end"
            failure = PrepareFailed(time=event.time, node=event.node, step="lock", message=message, hint=hint)
            self._is_backing_off = False
            return self._fail(failure, Cause.BUSY)
        said: list[Order] = []
        if "wait" not in self._deadlines:
            self._deadlines["wait"] = self._now + wait
            most = f", for {wait:g} s at most" if wait < math.inf else ""
            said = [Say(text=f"waiting for {self._name(event.node)}{most}: it is busy with {event.owner}")]
        self._is_backing_off = True
        self._phase[event.node] = Phase.CONNECTED
        return [*said, *self._back_off()]

    def _back_off(self) -> list[Order]:
        """Let go of every host; once no answer is awaited any more, another attempt has its time."""
        ours = self._phase.of(Phase.LOCKED)
        self._phase.put(ours, Phase.CONNECTED)
        if not self._phase.of(Phase.LOCKING):
            self._deadlines["again"] = self._now + self._pause
        return [Unlock(node=node) for node in ours]

    def _move(self, node: int, phase: Phase) -> list[Order]:
        """One host is further; what all hosts wait for may be reached."""
        if self._phase[node] >= Phase.FINISHING:
            return []
        self._phase[node] = phase
        if self._all(Phase.SYNCED):
            self._deadlines.pop("sync", None)
        if self._cause is not None:
            return self._finish([node]) if self._ending >= Ending.STOPPING else []
        return self._advance()

    def _advance(self) -> list[Order]:
        """Begin the next step if all hosts have come so far."""
        # The environment names every host, so that prerun waits until all have answered.
        if self._has_ranks and self._all(Phase.SYNCING) and (synced := self._phase.of(Phase.SYNCED)):
            self._phase.put(synced, Phase.PREPARING)
            return [Prepare(node=node) for node in synced if node not in self._prepared_at_once]
        if self._all(Phase.SYNCED) and not self._has_ranks:
            self._cause = Cause.COMPLETED
            return self._finish(self._answering())
        if self._all(Phase.READY) and self._no_command:
            self._cause = Cause.RANK
            told: list[Order] = [Tell(event=self._no_command[one]) for one in sorted(self._no_command)]
            return [*told, *self._finish(self._answering())]
        if self._all(Phase.READY):  # gang start: all ranks or none
            self._started = self._time
            self._last_output = self._now
            if self._spec.rules.timeout:
                self._deadlines["timeout"] = self._now + self._spec.rules.timeout
            nodes = self._phase.of(Phase.READY)
            self._phase.put(nodes, Phase.RUNNING)
            return [*self._name_unreached(), *(Start(node=node) for node in nodes)]
        return []

    def _skip(self, failure: PrepareFailed) -> list[Order]:
        """Go on without a host that cannot be reached; if none can be, nothing starts."""
        node = failure.node
        self._skipped[node] = failure
        self._phase[node] = Phase.OVER
        self._running.pop(node, None)
        if len(self._skipped) < len(self._phase):
            return [*self._lock(), *self._advance()]
        self._cause = Cause.PREPARE
        return self._settle()

    def _name_unreached(self) -> list[Order]:
        """Name the hosts that have no ranks, as the ranks of the others start."""
        if not self._skipped:
            return []
        names = few([self._name(node) for node in sorted(self._skipped)])
        count = len(self._phase)
        return [Say(text=f"not reached: {names}; the ranks start on {count - len(self._skipped)} of {count} hosts")]

    def _lacking(self, event: Ready) -> NoCommand:
        program = host_program(self._spec, self._placement, event.node)
        what = "no such command" if event.status == EXIT_NOT_FOUND else "not executable"
        hint = f"the nearest name there is {event.nearest}" if event.nearest else ""
        return NoCommand(
            time=event.time,
            node=event.node,
            step="command",
            message=f"{program}: {what}",
            hint=hint,
            program=program,
            status=event.status,
            nearest=event.nearest,
        )

    def _give_up_syncing(self) -> list[Order]:
        orders: list[Order] = []
        for node in self._phase.of(Phase.SYNCING) if self._cause is None else ():
            message = f"the workspace is not there after {self._spec.sync_timeout:g} s"
            hint = "`mesh push --list` shows what is sent, the biggest first; give it more time, or less to send"
            failure = PrepareFailed(time=self._time, node=node, step="sync", message=message, hint=hint)
            orders += [Tell(event=failure), *self._fail(failure, Cause.PREPARE)]
        return orders

    def _all(self, phase: Phase) -> bool:
        return self._phase.have_all(phase)

    def _fail(self, failure: PrepareFailed, cause: Cause) -> list[Order]:
        """A host cannot take part. The others may still say what is wrong with them: all failures are told."""
        if self._spec.rules.skip_unreachable and self._cause is None and failure.step in CONNECTING:
            return self._skip(failure)
        self._failures.append(failure)
        if failure.step in CONNECTING:
            self._phase[failure.node] = Phase.OVER
        self._homeless = self._homeless or (failure.node == 0 and failure.step == "home")
        if failure.step == "start":
            self._running.pop(failure.node, None)
        if self._cause is None:
            self._cause = cause
            self._deadlines["drain"] = self._now + self._spec.rules.drain
        return [*self._lock(), *self._settle()]

    # ---- towards the end

    def _exit(self, event: Exited) -> list[Order]:
        if event.rank not in self._exits and event.node in self._running:
            self._running[event.node] -= 1
            if not self._running[event.node]:
                del self._running[event.node]
        self._exits[event.rank] = event
        if event.is_last:
            self._cleared.add(event.node)
            self._idle.add(event.node)
        if ("rank", event.rank) in self._suspects:
            self._suspects["rank", event.rank] = event
        done = f"[{self._name(event.node)}] setup completed"
        said: list[Order] = [Say(text=done)] if self._is_setup and not event.status else []
        if event.time > self._ordered_ends[event.node] - CLOCK_ERROR_S:
            self._stopped.add(event.rank)
        elif event.status and event.rank not in self._known:
            return [*self._suspect(event), *self._settle()]
        return [*said, *self._settle()]

    def _lose(self, event: Lost, phase: Phase) -> list[Order]:
        """A host is lost, or its agent has given it up; phase is how far it was."""
        node, name = event.node, self._name(event.node)
        ends = "lost; its agent ends the run there as soon as it notices"
        if event.is_cut:
            ends = f"connection lost. {self._end_of_lease('Its ranks', 'end')}"
        not_seen = f"{name}: {event.reason if event.killed_by else ends}"
        if event.is_clear:
            self._not_seen.pop(node, None)
        if phase is not Phase.FINISHING and not self._started:
            if phase is Phase.PREPARING and self._spec.prerun and not event.is_clear:
                self._not_seen[node] = not_seen
            step = CONNECTING[0] if self._spec.rules.skip_unreachable else phase.name.lower()
            by = event.killed_by
            failed = PrepareFailed(time=event.time, node=node, step=step, message=event.reason, killed_by=by)
            return self._fail(failed, Cause.PREPARE)
        if phase is Phase.FINISHING or self._ended(node) or event.time > self._ordered_ends[node]:
            if not event.is_clear and node not in self._cleared:
                self._not_seen[node] = f"{name}: lost before it could tell that all is gone there: {event.reason}"
                self._not_seen[node] += f". {self._end_of_lease('Anything left there', 'ends')}" if event.is_cut else ""
            self._running.pop(node, None)
            return self._settle()
        self._lost.append(event)
        if not event.is_clear:
            self._not_seen[node] = not_seen
        self._running.pop(node, None)
        suspected = self._suspect(event)
        return [*suspected, *self._have_started(self._placement.ranks(node)), *self._introduce(), *self._settle()]

    def _end_of_lease(self, what: str, ends: str) -> str:
        """Say when processes end on a host that does not answer from now on, and how to end them sooner.

        what, ends: subject and verb of the sentence
        """
        lease = self._spec.rules.lease
        told = f"{lease / 60:g} min" if lease >= 60 and lease % 60 == 0 else f"{lease:g} s"
        ends_by = clock_time(self._time + lease + self._spec.rules.grace)
        return f"{what} {ends} by {ends_by} (lease {told}); to end them sooner: mesh stop {self._spec.run}"

    def _suspect(self, event: Exited | Lost) -> list[Order]:
        """Something failed by itself. The first one ends the run, once the others have had their say."""
        self._suspects[("rank", event.rank) if isinstance(event, Exited) else ("host", event.node)] = event
        follows = False
        if self._is_leaving and isinstance(event, Exited):
            follows = len(self._suspects) > 1
        elif self._cause is None and not self._spec.rules.keep_going:
            self._blame(event)
        elif not self._spec.rules.keep_going:
            follows = True
        if isinstance(event, Lost):
            return []  # that is told as it comes
        if self._is_setup:
            text = f"[{self._name(event.node)}] setup failed in {event.during!r}: {event.told()}"
            return [] if follows else [Say(text=text)]
        if self._unnamed or not follows:
            self._unnamed.append(event.rank)
            self._deadlines.setdefault("naming", self._now + NAMING_DELAY_S)
        return self._name_failures() if self._is_leaving else []

    def _name_failures(self) -> list[Order]:
        """Name the ranks that failed first; where the run goes on, all that have failed since the last time."""
        failures = by_time(end for rank in self._unnamed if isinstance(end := self._suspects["rank", rank], Exited))
        self._unnamed = []
        self._deadlines.pop("naming", None)
        said: list[Order] = []
        while failures:
            first = failures[0]
            ranks = alike(first, failures)
            failures = [failure for failure in failures if failure.rank not in ranks and self._spec.rules.keep_going]
            if len(ranks) > 1:
                said.append(Say(text=f"{told_ranks(ranks)} failed alike: {first.told()}"))
            else:
                said.append(Say(text=f"rank {first.rank} on {self._name(first.node)}: {first.told()}"))
        return said

    def _blame(self, event: Exited | Lost) -> None:
        """It is why the run ends, unless that is to go on."""
        if not self._spec.rules.keep_going:
            self._cause = Cause.LOST if isinstance(event, Lost) else Cause.RANK
            self._last_output = self._now
            self._deadlines["drain"] = self._now + self._spec.rules.drain

    def _interrupt(self, number: int) -> list[Order]:
        self._signal = self._signal or number
        if self._ending is Ending.NOT:
            passed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            return self._end(Cause.SIGNAL, passed_on)
        if self._ending is Ending.STOPPING:
            self._ending = Ending.KILLING
            self._grace = 0.0
            self._deadlines.update(
                {name: self._now + PATIENCE for name in ("stop", "finish") if name in self._deadlines}
            )
            return [Say(text="killing"), *(Kill(node=node) for node in self._answering())]
        self._ending = Ending.LEAVING
        return []

    def _end(self, cause: Cause, number: int) -> list[Order]:
        """End the run now, whatever it is doing; the first cause holds."""
        self._cause = self._cause or cause
        if self._ending is not Ending.NOT:
            return []
        return [*self._stop(number), *self._settle()]

    def _stop(self, number: int) -> list[Order]:
        """Signal what runs; where nothing runs yet, release what was prepared."""
        self._ending = Ending.STOPPING
        self._deadlines.pop("drain", None)
        self._deadlines.pop("timeout", None)
        if not self._started:
            # Nothing is there yet; the launcher gives up opening it.
            self._phase.put(self._phase.of(Phase.CONNECTING), Phase.OVER)
            return self._finish(self._answering(), number)
        self._ordered_ends = {node: min(ordered, self._time) for node, ordered in self._ordered_ends.items()}
        self._deadlines["stop"] = self._now + self._grace + PATIENCE
        running = [node for node in self._answering() if not self._ended(node)]
        orders: list[Order] = [Signal(node=node, number=number, grace=self._grace) for node in running]
        named = self._name_failures()
        if orders:
            ranks = sum(rank not in self._exits for node in running for rank in self._placement.ranks(node))
            name = signal.Signals(number).name
            what = "setup" if self._is_setup else "rank"
            text = f"stopping {ranks} {what}{'s' * (ranks != 1)}: {name}, {self._grace:g} s of grace, then SIGKILL"
            orders.insert(0, Say(text=text))
        return [*named, *orders]

    def _settle(self) -> list[Order]:
        """See whether the ranks of all hosts have ended, or none will ever start."""
        if self._started:
            if self._running:
                return []
            if not self._is_leaving:
                return self._finish(self._answering())
            if "introduction" not in self._deadlines:  # some host may keep what its ranks have printed
                self._deadlines.setdefault("leaving", self._now + PATIENCE)
        elif self._cause is not None and self._all(Phase.OVER):
            self._ending = max(self._ending, Ending.STOPPING)
        return []

    def _ended(self, node: int) -> bool:
        return node not in self._running

    def _answering(self) -> list[int]:
        """Hosts that have an agent."""
        return self._phase.between(Phase.CONNECTING, Phase.OVER)

    def _finish(self, nodes: Iterable[int], number: int = signal.SIGTERM) -> list[Order]:
        orders: list[Order] = []
        named = self._name_failures()
        for node in nodes:
            if not Phase.CONNECTING < self._phase[node] < Phase.FINISHING:
                continue
            if node in self._idle:
                self._phase[node] = Phase.OVER
            else:
                self._phase[node] = Phase.FINISHING
                orders.append(Finish(node=node, number=number, grace=self._grace))
        if orders:
            self._ending = max(self._ending, Ending.STOPPING)
            self._deadlines.pop("drain", None)
            self._deadlines["finish"] = self._now + self._grace + PATIENCE
        return [*named, *orders]

    def _look_at_the_clock(self) -> list[Order]:
        orders: list[Order] = []
        if self._passed("again"):
            self._is_backing_off = False
            orders += self._lock()
        if self._passed("naming"):
            orders += self._name_failures()
        if self._passed("sync"):
            orders += self._give_up_syncing()
        if self._passed("timeout"):
            orders += [Say(text=f"the time is out after {self._spec.rules.timeout:g} s")]
            orders += self._take_stacks() if self._spec.stacks_on_timeout else self._end(Cause.TIMEOUT, signal.SIGTERM)
        if self._passed("leaving"):
            orders += self._finish(self._answering())
        if self._passed("introduction"):
            orders += self._introduction.give_up()
        if self._passed("stacks"):
            orders += self._end(Cause.TIMEOUT, signal.SIGTERM)
        if "drain" in self._deadlines and self._may_stop():
            orders += self._stop(signal.SIGTERM)
        if self._passed("stop"):
            orders += self._finish(self._answering())
        if self._passed("finish"):
            for node in self._answering():
                if node in self._cleared:  # what it has printed waits for a terminal that stands still
                    continue
                told = f"{self._name(node)}: did not answer whether all is gone there"
                self._unverified.append(f"{told}. {self._end_of_lease('Anything left there', 'ends')}")
                self._phase[node] = Phase.OVER
        return orders

    def _take_stacks(self) -> list[Order]:
        """The time is out: nothing that happens from now on is the cause of the end, which may wait a little."""
        self._cause = self._cause or Cause.TIMEOUT
        self._telling = {node for node in self._answering() if not self._ended(node)}
        self._deadlines["stacks"] = self._now + STACKS
        return [Ask(node=node, question={"question": "stacks"}) for node in self._telling]

    def _may_stop(self) -> bool:
        """After the first failure: have the others had their say?"""
        late = self._now >= self._deadlines["drain"]
        if not self._started:  # connecting has its own deadline, and each host that fails is to be named
            told = {failure.node for failure in self._failures}
            at_work = (Phase.LOCKING, Phase.SYNCING, Phase.PREPARING)
            open_phases = (Phase.CONNECTING, *(() if late else at_work))
            return all(self._phase.seen_in(phase) <= told for phase in open_phases)
        return late or self._now - self._last_output >= QUIET

    def _passed(self, name: str) -> bool:
        """True once, when the deadline has passed."""
        if name not in self._deadlines or self._now < self._deadlines[name]:
            return False
        del self._deadlines[name]
        return True

    def _name(self, node: int) -> str:
        return self._placement.hosts[node].name
