"""The steward: looks after the jobs of one user in one store.

Its main thread owns all state. Each turn it takes what has arrived (answers of children, requests of commands, changes
that commands made in the store), records events, carries out the orders that follow, and asks the queue who is next.
An event is in the store before anything that follows from it is done.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from msgspec import Raw, Struct
from msgspec.structs import replace

import mesh
from mesh.core.errors import MeshError
from mesh.jobs import requests
from mesh.jobs.books import LOOK_S, URGENT_LOOK_S, Books
from mesh.jobs.children import Children, operation_of
from mesh.jobs.coding import encode
from mesh.jobs.database import StoreFailed
from mesh.jobs.decide import ends_starts
from mesh.jobs.events import AnyAnswer, AnyEvent, CostSeen, DependencyEnded, Granted, TakenOver, Timer
from mesh.jobs.interfaces import Request, event_of
from mesh.jobs.leases import LEASE_S, Lease, LeaseLost
from mesh.jobs.mailing import Mailing
from mesh.jobs.mirror import Mirror
from mesh.jobs.orders import AnyLook, AnyOrder, LookAtMachines, LookAtRun
from mesh.jobs.queue import Grant, Pools
from mesh.jobs.reading import Selection
from mesh.jobs.requests import About, AnyRequest, Reply
from mesh.jobs.rounds import RoundOptions, Rounds
from mesh.jobs.serving import Server, send_rows
from mesh.jobs.sockets import listen
from mesh.jobs.store import Decided, Store
from mesh.jobs.taskwatch import TaskWatch
from mesh.jobs.values import Job, OpenOrder, State, row_of

TURN_S = 0.5  # the longest turn: signals and writes of other processes are seen this soon
UNWRITTEN_RETRY_S = 5.0  # for answers that the store could not take, as its disk was full
TROUBLE_COUNT = 20  # errors of the steward that it keeps for `mesh serve status`
log = logging.getLogger(__name__)


class StewardOptions(Struct, frozen=True, kw_only=True):
    """A steward's program for children, and its pace."""

    user: str
    hand: tuple[str, ...]  # argv of the children, without the operation
    path: str  # of the socket
    limits: Mapping[str, float] = {}  # of makers' pools
    shares: Mapping[str, float] = {}  # of users
    rounds: RoundOptions = RoundOptions()
    look_s: float = LOOK_S
    urgent_look_s: float = URGENT_LOOK_S
    lease_s: float = LEASE_S  # after which another steward takes over; renewed three times as often
    deadlines: Mapping[str, float] = {}  # of children, by operation, where they are not the usual ones


class Steward:
    """The steward. The caller holds the lock of the store, so that no child of an earlier steward is alive."""

    def __init__(
        self, store: Store, options: StewardOptions, environ: Mapping[str, str], keep: Sequence[int] = ()
    ) -> None:
        """keep: descriptors of the store's lock, which the children hold too"""
        self._store, self._options = store, options
        self._books = Books(options.look_s, options.urgent_look_s)
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._woken = socket.socketpair()
        self._children = Children(options.hand, environ, self._selector, self._take, keep)
        self._children.deadlines |= options.deadlines
        self._mirror = Mirror(store)
        self._mailing = Mailing(store, environ, self._wake)
        self._tasks = TaskWatch(store, self._record, self._took, self._note, self._wake)
        self._rounds = Rounds(store, options.rounds, self._selector, self._record)
        self._server: Server | None = None
        self._lease: Lease | None = None
        self._renew_at = 0.0
        self._unwritten: deque[tuple[int, AnyEvent]] = deque()
        self._unwritten_at = 0.0
        self._changes = -2
        self._changed: set[int] = set()  # jobs whose rows watchers have not seen
        self._mirrored: dict[int, Job] = {}  # jobs whose files may lack events
        self._trouble: deque[str] = deque(maxlen=TROUBLE_COUNT)
        self._ends = False
        self._started = time.time()

    # ---- life

    def run(self) -> None:
        """Look after jobs until a signal or a command ends the steward. Raises LeaseLost if another one took over."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        try:
            self._prepare()
            while not self._ends:
                self._turn()
        finally:
            self._children.end()
            self._rounds.end()
            if self._server is not None:
                self._server.close()
            self._selector.close()
            self._wake_up.close()
            self._woken.close()
        if self._lease is not None:
            self._store.leases.give_back(self._lease)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ends = True
        self._wake()

    def _wake(self) -> None:
        """End the present wait. May be called from any thread."""
        try:
            self._wake_up.send(b"x")
        except OSError:  # it is awake enough, or over
            pass

    def _prepare(self) -> None:
        """Take the lease, then the jobs as they are in the store, and repeat the orders that are open."""
        for way in (self._wake_up, self._woken):
            way.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        self._take_lease()
        listener = listen(self._options.path)
        self._server = Server(listener, self._selector, self._handle)
        self._changes = self._store.change_count()
        for job in self._store.jobs(active_only=True):
            self._books.put(job, is_ours=self._is_ours(job))
        for job in list(self._books.jobs.values()):
            if self._is_ours(job) and (job.open or job.retry_at):
                decided = self._store.record(job.id, self._taken_over(), self._lease)
                self._follow(replace(decided, orders=decided.job.open))
        self._check_dependencies()

    def _take_lease(self) -> None:
        """Wait for the lease. On SQLite the store's lock has shown that no other steward lives."""
        name = f"steward:{self._options.user}"
        holder = f"{socket.gethostname()} pid {os.getpid()}"
        while self._lease is None and not self._ends:
            self._lease = self._store.leases.take(name, holder, self._options.lease_s, force=not self._store.place.url)
            if self._lease is None:
                time.sleep(TURN_S)
        self._renew_at = time.monotonic() + self._options.lease_s / 3

    def _taken_over(self) -> TakenOver:
        epoch = self._lease.epoch if self._lease else 0
        return TakenOver(time=time.time(), epoch=epoch, steward=f"{socket.gethostname()} pid {os.getpid()}")

    # ---- the turn

    def _turn(self) -> None:
        try:
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._children.look_at_the_clock()
            self._renew()
            self._write_rest()
            self._mailing.collect()
            self._read_changes()
            now = time.time()
            for number in self._books.due(now):
                self._record(number, Timer(time=now))
            self._tasks.give(filter(self._is_ours, self._books.workers()), now, self._lease)
            self._rounds.go(filter(self._is_ours, self._books.limited()), now)
            self._start_jobs(now)
            self._look(now)
            self._mailing.send()
            self._show_changes()
        except LeaseLost:
            raise
        except Exception as error:  # it is no state of any job: open orders stay in the store
            if not isinstance(error, MeshError):
                log.exception("the steward failed")
            self._note(str(error) if isinstance(error, MeshError) else f"{type(error).__name__}: {error}")
            time.sleep(TURN_S)

    def _pause(self) -> float:
        now = time.time()
        until = self._books.next_event() - now
        deadline = self._children.next_deadline() - time.monotonic()
        return max(0.0, min(TURN_S, until, deadline))

    def _drain(self) -> None:
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            pass

    def _renew(self) -> None:
        if self._lease is None or time.monotonic() < self._renew_at:
            return
        if not self._store.leases.renew(self._lease, self._options.lease_s):
            self._lease = None
            raise LeaseLost("another steward looks after these jobs now")
        self._renew_at = time.monotonic() + self._options.lease_s / 3

    def _read_changes(self) -> None:
        """Take what commands have written to the store."""
        count = self._store.change_count()
        if count == self._changes and count >= 0:
            return
        self._changes = count
        known = self._books.jobs
        seqs = self._store.seqs()
        for number in set(seqs) | set(known):
            before = known.get(number)
            if before is not None and before.seq == seqs.get(number, -1):
                continue
            if (job := self._store.job(number)) is None:
                self._books.drop(number)
            else:
                self._took(job)
        self._check_dependencies()

    def _start_jobs(self, now: float) -> None:
        is_due = self._books.is_turn_due(now)
        if not (is_due or self._books.has_changed):
            return
        usage = self._store.usage(now)
        for user, seconds in self._books.held_seconds(now).items():
            usage[user] = usage.get(user, 0.0) + seconds
        pools = Pools(limits=self._options.limits, usage=usage, shares=self._options.shares)
        for grant in self._books.turns(now, pools).grants:
            self._grant(grant, now)

    def _is_ours(self, job: Job) -> bool:
        """Return True for a job that this steward looks after: in a store for a team, those of its user."""
        return not self._store.place.url or job.spec.user == self._options.user

    def _grant(self, grant: Grant, now: float) -> None:
        if not self._is_ours(self._books.jobs[grant.job]):
            return  # its own steward grants it
        if grant.keeper:
            for decided in self._store.hand_over(grant.keeper, grant.job, now, self._lease):
                self._follow(decided)
            return
        self._record(grant.job, Granted(time=now, hosts=grant.hosts, keys=grant.keys, pool=grant.pool))

    def _look(self, now: float) -> None:
        """Ask how runs and machines are, all that are due at once."""
        for kind in (LookAtRun, LookAtMachines):
            due = self._books.due_looks(now, kind, is_busy=self._children.has(operation_of(kind)))
            if due:
                self._children.give([self._request(job, 0, look) for job, look in due])

    # ---- events and orders

    def _record(self, number: int, event: AnyEvent) -> Decided | None:
        """Write an event, then carry out what follows; None if the store cannot take it now."""
        try:
            decided = self._store.record(number, event, self._lease)
        except LeaseLost:
            raise
        except MeshError as error:
            self._note(str(error))
            if isinstance(error, StoreFailed) and not isinstance(event, Timer | Granted | CostSeen | TakenOver):
                self._unwritten.append((number, event))
                self._unwritten_at = time.monotonic() + UNWRITTEN_RETRY_S
            return None
        self._follow(decided)
        return decided

    def _follow(self, decided: Decided) -> None:
        """Take a job after its event, and the job that keeps its machines from now on."""
        self._took(decided.job, decided.orders)
        if decided.keeper is not None:
            self._took(decided.keeper)

    def _write_rest(self) -> None:
        """Write answers that the store could not take before."""
        if not self._unwritten or time.monotonic() < self._unwritten_at:
            return
        waiting, self._unwritten = self._unwritten, deque()
        for number, event in waiting:
            self._record(number, event)

    def _took(self, job: Job, orders: Iterable[OpenOrder] = ()) -> None:
        """Take a job as the store has it now, let others see it, and carry out orders: also those that are new to us.

        A command may have written an event, and an order with it, just before an event of ours.
        """
        before = self._books.jobs.get(job.id)
        self._books.put(job, is_ours=self._is_ours(job))
        self._changed.add(job.id)
        self._mirrored[job.id] = job
        self._mailing.has_more = True
        if not self._is_ours(job):
            return
        repeated = {one.op for one in orders}
        ops = before.ops if before is not None else 0
        self._carry_out(job, [one for one in job.open if one.op > ops or one.op in repeated])
        if ends_starts(before, job):
            self._children.stop_starts(job.id)
        if job.state.is_final:
            self._release_dependents({job.id: job.state.value})

    def _check_dependencies(self) -> None:
        """Let jobs go on whose dependencies ended while nobody looked."""
        waited = [number for number in self._books.dependencies() if number not in self._books.jobs]
        if waited:
            states = self._store.states(waited)
            self._release_dependents({number: states.get(number, State.FAILED.value) for number in waited})

    def _release_dependents(self, ended: Mapping[int, str]) -> None:
        for other, state in ended.items():
            if not State(state).is_final:
                continue
            succeeded = state == State.SUCCEEDED.value
            for number in self._books.dependents(other):
                self._record(number, DependencyEnded(time=time.time(), job=other, succeeded=succeeded))

    def _carry_out(self, job: Job, orders: Iterable[OpenOrder]) -> None:
        for one in orders:
            if not self._children.is_busy(job.id, one.op):
                self._children.give([self._request(job, one.op, one.order)])

    def _request(self, job: Job, op: int, order: AnyLook | AnyOrder) -> Request:
        return Request(op=op, order=order, job=job, directory=self._store.place.of_job(job.id))

    def _take(self, request: Request, answer: AnyAnswer | None) -> None:
        """Record the answer to an order or a look. None: the hosts of a look did not answer"""
        self._record(request.job.id, event_of(request, answer, time.time()))

    def _note(self, text: str) -> None:
        """Keep an error of the steward's own, for `mesh serve status`."""
        if not self._trouble or self._trouble[-1] != text:
            log.error("%s", text)
            self._trouble.append(text)

    # ---- commands

    def _handle(self, request: AnyRequest) -> Reply:
        now = time.time()
        match request:
            case requests.AskAbout():
                return Reply(about=self._about())
            case requests.AskRows(selection=selection) | requests.Watch(selection=selection):
                return Reply(rows=self._rows(selection))
            case requests.Submit(specs=specs):
                made = self._store.submit(specs, now)
                for job in made:
                    self._took(job)
                return Reply(rows=[self._row(job) for job in made])
            case requests.Record(jobs=numbers, event=event):
                found = self._store.record_all([(number, event) for number in sorted(set(numbers))], self._lease)
                for decided in found:
                    self._follow(decided)
                return Reply(rows=[self._row(decided.job) for decided in found])
            case requests.StopSteward():
                self._ends = True
        return Reply(about=self._about())

    def _about(self) -> About:
        return About(
            pid=os.getpid(),
            version=mesh.__version__,
            store=self._store.place.name,
            started=self._started,
            epoch=self._lease.epoch if self._lease else 0,
            jobs=len(self._books.jobs),
            children=len(self._children),
            trouble=tuple(self._trouble),
        )

    def _rows(self, selection: Selection) -> list[Raw]:
        found = self._store.rows(selection)
        waiting = {number: job for number in self._books.waits if (job := self._books.jobs.get(number)) is not None}
        return [self._row(waiting[number]) if number in waiting else Raw(text.encode()) for number, text in found]

    def _row(self, job: Job) -> Raw:
        row = row_of(job)
        reason = self._books.waits.get(job.id, "") if job.state is State.QUEUED else ""
        return Raw(encode(replace(row, reason=reason) if reason else row).encode())

    def _show_changes(self) -> None:
        """Write events of jobs that have changed to their files, and send rows to the commands that watch."""
        changed, self._changed = self._changed, set()
        self._mirror.write(self._mirrored.values())
        self._mirrored.clear()
        if not changed or self._server is None or not self._server.watchers:
            return

        def reply(watch: requests.Watch) -> Reply | None:
            ids = tuple(changed & set(watch.selection.ids)) if watch.selection.ids else tuple(changed)
            rows = self._rows(replace(watch.selection, ids=ids, states=(), active_only=False)) if ids else []
            return Reply(rows=rows) if rows else None

        send_rows(self._server, self._server.watchers, reply)
