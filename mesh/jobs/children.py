"""The steward's children: they carry out orders, at most so many at a time, each within its deadline."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from mesh.jobs import orders
from mesh.jobs.child import STEWARD_VARIABLE
from mesh.jobs.coding import decode, encode
from mesh.jobs.events import AnyAnswer, NotAsked
from mesh.jobs.interfaces import Request

CHILDREN_COUNT = 16
LONG = ("start", "prepare")  # operations that may take hours
SLOW = (*LONG, "undo")
SLOW_CHILDREN_COUNT = 12  # so that stops and looks never wait for starts
# Seconds for one order, from the start of its child. A start includes the sync and the user's prerun.
DEADLINES = {
    "prepare": 7200.0,
    "undo": 900.0,
    "start": 7200.0,
    "stop": 300.0,
    "fetch": 1800.0,
    "look": 60.0,
    "make": 300.0,
    "delete": 300.0,
    "look-machines": 60.0,
}
READ_BYTES = 1 << 16
REPEATED = ("stop", "fetch")  # operations of which a child carries out several, where they wait
LOOK_START_S = 30.0  # more for the first look of a child: its process has yet to begin, maybe on a busy machine
IDLE_LIMIT_S = 60.0  # a child that looks waits this long for the next look

Take = Callable[[Request, AnyAnswer | None], None]


def operation_of(order: orders.Order | type[orders.Order]) -> str:
    """Return the word for an order in a child's argv.

    >>> operation_of(orders.Stop(run="r", hosts=()))
    'stop'
    """
    return str(order.__struct_config__.tag)


class Work(Struct, kw_only=True):
    """Requests that a child carries out."""

    operation: str
    requests: list[Request]
    limit: float = 0.0  # seconds
    deadline: float = 0.0  # monotonic


class Child:
    """A child process and its pipes."""

    def __init__(self, argv: Sequence[str], operation: str, environ: Mapping[str, str], keep: Sequence[int]) -> None:
        """keep: descriptors that the child holds open"""
        self.operation = operation
        self.work: Work | None = None
        self.idle_since = 0.0
        self._rest = b""
        self.process = subprocess.Popen(
            [*argv, operation],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environ, STEWARD_VARIABLE: str(os.getpid())},
            pass_fds=tuple(keep),
            start_new_session=True,  # a Ctrl-C for the steward is not one for its orders
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def send(self, work: Work) -> None:
        """Give the child something to do. Raises OSError if it is gone."""
        assert self.process.stdin is not None
        self.work = work
        self.process.stdin.write(encode(work.requests).encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> list[AnyAnswer | None] | None:
        """Return the answers if they have come, [] at the child's end, None if more is to come."""
        assert self.process.stdout is not None
        try:
            data = os.read(self.process.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        if not data:
            return []
        self._rest += data
        line, found, rest = self._rest.partition(b"\n")
        if not found:
            return None
        self._rest = rest
        return decode(line, list[AnyAnswer | None])

    def end(self) -> None:
        """Kill the child, and wait until it is gone: only then its order may be given to another one."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # the rest of a request that nobody reads
                    pass


class Children:
    """The pool of children. It is used from one thread, which waits on the selector."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
        take: Take,
        keep: Sequence[int] = (),
    ) -> None:
        """argv: of the program, without the operation. take: is called with each request and its answer"""
        self._argv, self._environ, self._selector, self._take = list(argv), dict(environ), selector, take
        self._keep = keep
        self._children: list[Child] = []
        self._waiting: deque[Work] = deque()
        self.deadlines = dict(DEADLINES)
        self.look_start_s = LOOK_START_S

    def __len__(self) -> int:
        return len(self._children)

    def give(self, requests: Sequence[Request]) -> None:
        """Have requests carried out: one order, or looks of one kind."""
        work = Work(operation=operation_of(requests[0].order), requests=list(requests))
        if work.operation == "stop":  # people wait for it
            self._waiting.appendleft(work)
        else:
            self._waiting.append(work)
        self._start()

    def is_busy(self, job: int, op: int) -> bool:
        """Return True if an order is being carried out, or waits for a child."""
        return any(request.job.id == job and request.op == op for work in self._all() for request in work.requests)

    def has(self, operation: str) -> bool:
        """Return True if something of an operation is being carried out, or waits for a child."""
        return any(work.operation == operation for work in self._all())

    def stop_starts(self, job: int) -> None:
        """Kill the children that start or prepare a job which is to end, and drop its starts that wait for a child."""
        while (waiting := next((work for work in self._waiting if self._starts(work, job)), None)) is not None:
            self._waiting.remove(waiting)
            self._report(waiting, "was stopped")
        for child in list(self._children):
            if child.work and self._starts(child.work, job):
                self._lose(child, "was stopped")

    @staticmethod
    def _starts(work: Work, job: int) -> bool:
        return work.operation in LONG and work.requests[0].job.id == job

    def next_deadline(self) -> float:
        """Return the monotonic time of the next deadline; infinity without one."""
        return min((child.work.deadline for child in self._children if child.work), default=float("inf"))

    def look_at_the_clock(self) -> None:
        """Kill children that are past their deadlines, and those that have had nothing to do for long."""
        now = time.monotonic()
        for child in list(self._children):
            if child.work is not None and now >= child.work.deadline:
                self._lose(child, f"no answer within {child.work.limit:g} s")
            elif child.work is None and now >= child.idle_since + IDLE_LIMIT_S:
                self._drop(child)

    def end(self) -> None:
        """Kill all children."""
        self._waiting.clear()
        for child in list(self._children):
            self._drop(child)

    def _all(self) -> list[Work]:
        return [*self._waiting, *(child.work for child in self._children if child.work)]

    def _start(self) -> None:
        for _ in range(len(self._waiting)):
            work = self._waiting.popleft()
            if work.operation in SLOW and sum(one.operation in SLOW for one in self._children) >= SLOW_CHILDREN_COUNT:
                self._waiting.append(work)
                continue
            child = next((one for one in self._children if not one.work and one.operation == work.operation), None)
            if child is None and len(self._children) >= CHILDREN_COUNT:
                idle = next((one for one in self._children if not one.work), None)
                if idle is None:
                    self._waiting.append(work)
                    continue
                self._drop(idle)
            self._begin(child, work)

    def _begin(self, child: Child | None, work: Work) -> None:
        work.limit = self.deadlines[work.operation]
        if child is None and self._goes_on(work.operation):
            work.limit += self.look_start_s  # else a machine that is busy enough would never see an answer
        work.deadline = time.monotonic() + work.limit
        try:
            if child is None:
                child = Child(self._argv, work.operation, self._environ, self._keep)
                self._children.append(child)
                assert child.process.stdout is not None
                self._selector.register(child.process.stdout, selectors.EVENT_READ, lambda: self._read(child))
            child.send(work)
        except OSError as error:
            if child is not None:
                child.work = work
                self._lose(child, error.strerror or str(error))
                return
            for request in work.requests:
                self._take(request, NotAsked(what="mesh-hand", why=error.strerror or str(error)))

    def _read(self, child: Child) -> None:
        try:
            answers = child.read()
        except ValueError as error:
            self._lose(child, f"wrote no answer ({error})")
            return
        if answers is None:
            return
        work = child.work
        if work is None or len(answers) != len(work.requests):
            self._lose(child, "ended without an answer")
            return
        child.work, child.idle_since = None, time.monotonic()
        if not self._is_kept(child):
            self._drop(child)
        for request, found in zip(work.requests, answers, strict=True):
            self._take(request, found)
        self._start()

    def _is_kept(self, child: Child) -> bool:
        """Return True for a child that goes on with the next request; each start has a child of its own."""
        more = child.operation in REPEATED and any(work.operation == child.operation for work in self._waiting)
        return more or self._goes_on(child.operation)

    @staticmethod
    def _goes_on(operation: str) -> bool:
        return operation.startswith("look")

    def _lose(self, child: Child, why: str) -> None:
        """End a child, and report that its requests have no answer."""
        work = child.work
        self._drop(child)
        if work is not None:
            self._report(work, why)
        self._start()

    def _report(self, work: Work, why: str) -> None:
        for request in work.requests:
            self._take(request, NotAsked(what=f"mesh-hand {work.operation}", why=why))

    def _drop(self, child: Child) -> None:
        assert child.process.stdout is not None
        self._children.remove(child)
        self._selector.unregister(child.process.stdout)
        child.end()
