"""A run as an iterator of its events."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from mesh.api.running import Listener
from mesh.core.events import Event
from mesh.rundir.results import RunResult

QUEUED_EVENTS = 16  # that wait for the caller; beyond them output waits on the hosts
LEFT_POLL_S = 0.1  # between two looks if the caller reads no more


class EventStream:
    """The events of a run, in their order, and then its result.

    The run waits while the caller reads no events. It ends on all hosts when the caller leaves the ``with`` block or
    calls ``close``. It also ends when nothing refers to the stream any more, as after ``break`` in a loop over it.
    """

    def __init__(self, run: Callable[[Listener], RunResult]) -> None:
        """run: runs to the end, with that listener"""
        self._feed = _Feed(run)
        # The thread refers to the feed alone, so that a stream without references ends its run.
        self._finalizer = weakref.finalize(self, self._feed.end)
        self._finalizer.atexit = False  # the end of this process ends the run as well

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        """Wait for an event. Raises whatever went wrong in mesh itself, after the last event."""
        event = self._next()
        if event is None:
            if self._feed.error is not None:
                raise self._feed.error
            raise StopIteration
        return event

    @property
    def result(self) -> RunResult:
        """The result of the run: drops events that were not read, and waits for the end. Raises as ``run`` does."""
        while self._next() is not None:
            pass
        return self._feed.wait()

    def close(self, number: int = signal.SIGTERM) -> None:
        """End the run on all hosts, as that signal would, and wait until it has ended. May be called again."""
        self._feed.end(number)
        self._feed.join()

    def _next(self) -> Event | None:
        """Wait for an event; return None after the last one. Ctrl-C ends the run."""
        try:
            return self._feed.next()
        except KeyboardInterrupt:
            self.close(signal.SIGINT)
            raise

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)


class _Feed:
    """The thread of a run, and the queue of its events."""

    def __init__(self, run: Callable[[Listener], RunResult]) -> None:
        self._run = run
        self._events: queue.Queue[Event | None] = queue.Queue(QUEUED_EVENTS)  # None: the last one
        self._listener = Listener(self._put)
        self._is_left = False  # the caller reads no more events
        self._is_over = False  # the caller has read the last one
        self._result: RunResult | None = None
        self.error: BaseException | None = None
        # Not Thread.join: before Python 3.13 one that a signal interrupts may take a thread for ended.
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="mesh-run", daemon=True).start()

    def next(self) -> Event | None:
        """Wait for an event; return None after the last one."""
        if self._is_over or self._is_left:
            return None
        event = self._events.get()
        self._is_over = event is None
        return event

    def wait(self) -> RunResult:
        """Wait for the result. Raises the error that ended the run."""
        self._ended.wait()
        if self.error is not None:
            raise self.error
        assert self._result is not None
        return self._result

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the run, if it is on, as that signal would. Waits for nothing."""
        if not self._ended.is_set():
            self._listener.end(number)
        self._is_left = True

    def join(self) -> None:
        """Wait until the run has ended. A KeyboardInterrupt meanwhile is a further signal for the run."""
        while not self._ended.is_set():
            try:
                self._ended.wait()
            except KeyboardInterrupt:
                self._listener.end(signal.SIGINT)

    def _put(self, event: Event | None) -> None:
        """Wait until the queue has room, or until the caller reads no more."""
        while not self._is_left:
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=LEFT_POLL_S)
                return

    def _work(self) -> None:
        try:
            self._result = self._run(self._listener)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()
            self._put(None)
