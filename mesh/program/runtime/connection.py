"""The caller's end of a link to one node: it sends calls, matches answers, and fails them all if the node is lost."""

from __future__ import annotations

import math
import queue
import struct
import threading
import time
from typing import Callable, Dict, Iterator, Tuple

from mesh.program.runtime import codec, failures, frames, plain
from mesh.program.runtime.calls import Outgoing
from mesh.program.runtime.errors import CLIENT, Backlogged, CallTimeout, LinkRefused, NodeLost
from mesh.program.runtime.frames import Frame
from mesh.program.runtime.futures import CLOCK, Future
from mesh.program.runtime.links import Link

WELCOME_CALLS_LIMIT = 1 << 20
TIMEOUT = struct.Struct(">d")  # begins the body of a call: seconds in which it must begin


class CallOptions:
    """How one call is made. timeout: seconds, None: none; buffer: items of a stream that may wait, at least 1

    retries: how often the call may be sent again after the loss of its node
    """

    __slots__ = ("buffer", "retries", "timeout")

    def __init__(self, timeout: "float | None" = None, buffer: int = 16, retries: int = 0) -> None:
        self.timeout, self.buffer, self.retries = timeout, max(1, buffer), max(0, retries)


class _Flight:
    """A call that is not answered."""

    __slots__ = ("alarm", "future", "is_ready", "items", "ready")

    def __init__(self, future: "Future[object]") -> None:
        self.future = future
        self.is_ready = False  # credits for it are taken, or it has ended
        self.ready: "threading.Event | None" = None  # set then; only for a call that must wait
        self.alarm = -1  # its number at the clock
        self.items: "queue.SimpleQueue[Tuple[bool, object]] | None" = None  # of a stream

    def set_ready(self) -> None:
        """Let the sender go on. Called with the lock of the connection, or after the end of the call."""
        self.is_ready = True
        if self.ready is not None:
            self.ready.set()


class Connection:
    """Calls to one node over one link."""

    def __init__(
        self,
        link: Link,
        greeting: "dict[str, object]",
        place: "Tuple[str, str]",
        is_trusting: bool,
        explain: "Callable[[], str]" = lambda: "",
    ) -> None:
        """greeting: names the program, the caller and the label that is expected at the other end

        place: label and host of the node; is_trusting: answers may be pickles, else the plain codec reads them
        explain: returns why the link has ended, as soon as that is clear
        """
        label, host = place
        self._explain = explain
        self.label, self.host = label, host
        self._link, self._is_trusting = link, is_trusting
        self._lock = threading.Lock()
        self._outgoing = Outgoing()
        self._flights: Dict[int, _Flight] = {}
        self._loss: "BaseException | None" = None
        self._reason = self._parting = ""
        self.is_retired = False  # the process there has ended: new calls take another link
        body, _ = plain.dumps(greeting)
        try:
            link.send(Frame(frames.HELLO, body=body))
        except OSError:
            link.release()
            raise
        self._thread = threading.Thread(target=self._read, name=f"mesh-calls-{label}", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """True once the link has ended."""
        return self._loss is not None

    @property
    def open_calls(self) -> int:
        """The number of calls that are not answered."""
        return self._outgoing.open_calls

    def call(self, call: "Tuple[str, tuple[object, ...], dict[str, object]]", options: CallOptions) -> "Future[object]":
        """Send a call, once there are credits for it, and return its future. Raises CannotTravel for its arguments."""
        return self._begin(call, options, 0)[0]

    def stop_program(self, code: int, why: str, options: CallOptions) -> "Future[object]":
        """Have the node end the program at once, whatever it serves."""
        return self._begin((frames.STOP_CALL, (code, why), {}), options, frames.AT_ONCE)[0]

    def ready(self, options: CallOptions) -> "Future[object]":
        """Return a future that has a result once the node is ready for calls."""
        return self._begin((frames.READY_CALL, (), {}), options, frames.AT_ONCE)[0]

    def round(self, args: "Tuple[object, ...]", options: CallOptions) -> "Future[object]":
        """Send a call of a collective, and return its future."""
        return self._begin((frames.ROUND_CALL, args, {}), options, frames.AT_ONCE)[0]

    def one_way(self, call: "Tuple[str, tuple[object, ...], dict[str, object]]", options: CallOptions) -> None:
        """Send a call without an answer; a failure fails the node."""
        future, _ = self._begin(call, options, frames.ONE_WAY)
        if future.done():
            future.result()

    def stream(self, call: "Tuple[str, tuple[object, ...], dict[str, object]]", options: CallOptions) -> "Stream":
        """Call a method that is a generator; return an iterator of its items."""
        future, number = self._begin(call, options, frames.STREAM)
        flight = self._flights.get(number)
        return Stream(self, number, future, flight.items if flight else None, options.buffer)

    def _begin(
        self, call: "Tuple[str, tuple[object, ...], dict[str, object]]", options: CallOptions, flags: int
    ) -> "Tuple[Future[object], int]":
        deadline = None if options.timeout is None else time.monotonic() + options.timeout
        dumps = plain.dumps if self.host == CLIENT else codec.dumps  # the client reads no pickles
        body, buffers = dumps((call, options.buffer))
        body = TIMEOUT.pack(math.inf if options.timeout is None else options.timeout) + body
        frame = Frame(frames.CALL, 0, body, buffers, flags | (0 if self._is_trusting else frames.PLAIN))
        with self._lock:
            number = frame.call = self._outgoing.add(frame.size)
            future: "Future[object]" = Future(lambda: self._give_up(number))
            flight = _Flight(future)
            if flags & frames.STREAM:
                flight.items = queue.SimpleQueue()
            if self._loss is not None:
                future.fail(self._loss)
                self._outgoing.settle(number)
                return future, number
            self._flights[number] = flight
            self._grant()
            if not flight.is_ready:
                flight.ready = threading.Event()
        if deadline is not None and not flags & frames.STREAM:
            flight.alarm = CLOCK.at(deadline, lambda: self._time_out(number, options.timeout))
        if flight.ready is not None:
            flight.ready.wait()
        if flight.alarm >= 0 and future.done():  # the link was lost, perhaps before the alarm was set
            CLOCK.forget(flight.alarm)
        if not future.done() or flags & frames.STREAM:
            try:
                self._link.send(frame)
            except OSError as error:
                self.lose(str(error))
        else:
            with self._lock:  # its credits may have come just before it was given up
                self._flights.pop(number, None)
                self._outgoing.take_back(number)
                self._grant()
        return future, number

    def _grant(self) -> None:
        """Wake the senders whose calls may be sent now; they send in threads of their own."""
        for number in self._outgoing.sendable():
            self._flights[number].set_ready()

    def _give_up(self, number: int) -> None:
        """Settle a call whose caller no longer waits, and ask the node to cancel it."""
        with self._lock:
            flight = self._flights.pop(number, None)
            was_granted = self._outgoing.settle(number)
            if flight is None:
                return
            flight.set_ready()
        CLOCK.forget(flight.alarm)
        if was_granted:
            self._send_or_lose(Frame(frames.CANCEL, number))

    def _time_out(self, number: int, timeout: "float | None") -> None:
        flight = self._flights.get(number)
        if flight is None:
            return
        place = f"{self.label} on {self.host}" if self.host else self.label
        if flight.is_ready:
            flight.future.fail(CallTimeout(f"{place}: no answer within {timeout:g} s"))
        else:
            flight.future.fail(Backlogged(f"{place}: too many calls wait there, not sent within {timeout:g} s"))
        # In a thread: a node that reads nothing must not hold up the clock of all other calls.
        threading.Thread(target=self._give_up, args=(number,), name="mesh-give-up", daemon=True).start()

    def _send_or_lose(self, frame: Frame) -> None:
        try:
            self._link.send(frame)
        except OSError as error:
            self.lose(str(error))

    def want(self, number: int, count: int) -> None:
        """Let the generator of a stream send so many more items."""
        if number in self._flights:
            self._send_or_lose(Frame(frames.CREDIT, number, body=plain.dumps(count)[0]))

    def _read(self) -> None:
        try:
            while True:
                self._take(self._link.receive())
        except EOFError:
            self.lose(self._reason or self._parting or self._explain())
        except LinkRefused as error:
            self.lose(f"the link was refused: {error}")
        except Exception as error:  # a host may send anything
            self.lose(f"its answers cannot be read: {error}")
        finally:
            self._link.release()

    def _take(self, frame: Frame) -> None:
        if frame.kind == frames.WELCOME:
            limit = plain.loads(frame.body)
            with self._lock:
                self._outgoing.widen(min(int(str(limit)), WELCOME_CALLS_LIMIT))
                self._grant()
        elif frame.kind == frames.ITEM:
            flight = self._flights.get(frame.call)
            if flight is not None and flight.items is not None:
                flight.items.put((True, self._value(frame)))
        elif frame.kind in (frames.RESULT, frames.ERROR):
            with self._lock:
                is_open = self._outgoing.answer(frame.call)
                flight = self._flights.pop(frame.call, None)
                self._grant()
            if is_open and flight is not None:
                CLOCK.forget(flight.alarm)
                self._answer(flight, frame)
        elif frame.kind == frames.HELLO and frame.call == 0:  # the node refuses us
            raise LinkRefused(str(plain.loads(frame.body)))
        else:
            raise LinkRefused(f"an answer of kind {frame.kind}")

    def _answer(self, flight: _Flight, frame: Frame) -> None:
        """Give the answer of a call to its future. A value that cannot be read fails this call alone."""
        try:
            if frame.kind == frames.ERROR:
                flight.future.fail(failures.rebuild(plain.loads(frame.body, frame.buffers)))
            else:
                flight.future.give(self._value(frame))
        except Exception as error:
            flight.future.fail(error)
        if flight.items is not None:
            flight.items.put((False, None))

    def _value(self, frame: Frame) -> object:
        if frame.flags & frames.PLAIN:
            return plain.loads(frame.body, frame.buffers)
        if not self._is_trusting:
            raise LinkRefused("a pickle, which this process never reads")
        return codec.loads(frame.body, frame.buffers)

    def lose(self, reason: str) -> None:
        """End the link: every call in flight fails with NodeLost."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = NodeLost(self.label, self.host, self._reason or reason)
            flights = [self._flights[number] for number in self._outgoing.lose() if number in self._flights]
            self._flights.clear()
        for flight in flights:
            flight.future.fail(NodeLost(self.label, self.host, self._reason or reason))
            CLOCK.forget(flight.alarm)  # after the failure, which a call that sets its alarm just now looks at
            flight.set_ready()
            if flight.items is not None:
                flight.items.put((False, None))
        self._link.close()

    def close(self, reason: str = "") -> None:
        """End the link from here. reason: for the errors of calls in flight"""
        self._reason = reason
        self.lose(reason)

    def retire(self, reason: str) -> None:
        """Have new calls take another link, because the process there has ended. Answers on their way are still read.

        reason: for the errors of calls in flight
        """
        self._parting, self.is_retired = reason, True

    def leave(self, error: BaseException) -> None:
        """Leave the link to the parent, in a process that was just forked. error: of calls in flight, here alone"""
        self._link.leave()
        self._lock, self._loss = threading.Lock(), error
        for flight in self._flights.values():
            flight.future.leave(error)
        self._flights = {}

    def join(self, timeout: float) -> None:
        """Wait for the thread that reads."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


class Stream:
    """The items that a generator method of a node yields. Leaving the loop, or ``close``, ends the generator."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        future: "Future[object]",
        items: "queue.SimpleQueue[Tuple[bool, object]] | None",
        buffer: int,
    ) -> None:
        self._connection, self._number, self._future, self._items = connection, number, future, items
        self._buffer, self._taken, self._is_over = max(1, buffer), 0, items is None

    def __iter__(self) -> "Iterator[object]":
        return self

    def __next__(self) -> object:
        if self._is_over or self._items is None:
            if self._future.done() and not self._future.cancelled():
                self._future.result()
            raise StopIteration
        has_value, value = self._items.get()
        if not has_value:
            self._is_over = True
            if not self._future.cancelled():
                self._future.result()
            raise StopIteration
        self._taken += 1
        if self._taken >= (self._buffer + 1) // 2:
            self._connection.want(self._number, self._taken)
            self._taken = 0
        return value

    def close(self) -> None:
        """End the generator at its node."""
        if not self._is_over:
            self._is_over = True
            self._future.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
