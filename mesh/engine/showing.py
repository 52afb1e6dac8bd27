"""Events for the sinks. Each sink has a thread of its own, as a terminal may be paused while the log files go on."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence

from mesh.core.events import Event
from mesh.core.interfaces import Sink
from mesh.core.progress import Progress

QUEUED_EVENTS = 256  # of up to 128 KiB each, that wait for one sink; beyond it output waits on the hosts
IDLE_POLL_S = 0.05  # without an event; then ``idle`` of the sink is called
QUICK_IDLE_POLLS, SLOW_IDLE_POLL_S = 20, 0.2  # after so many in a row ``idle`` is called less often
SINK_WAIT_S = 0.1  # for a sink to take an event, or to end, between two looks at the clock
INTERRUPTED_WAIT_S = 2.0  # for a reader to take what is left after an interrupt


class Sinks:
    """All sinks of a run."""

    def __init__(self, sinks: Sequence[Sink], failed: Callable[[Exception], None]) -> None:
        """failed: called from a sink's thread when the sink raises; that sink gets no more events then"""
        self._sinks, self._failed = sinks, failed
        self._threads: list[SinkThread] = []
        self.is_interrupted = False  # since then, a sink whose reader stands still is not waited for

    def start(self) -> None:
        """Start the thread of each sink."""
        self._threads = [SinkThread(f"mesh-sink-{n}", sink, self._failed) for n, sink in enumerate(self._sinks)]

    def show(self, event: Event, wait: Callable[[], bool]) -> None:
        """Hand an event to every sink.

        wait: called again and again while a sink has no room; True: skip that sink, unless it has room meanwhile
        """
        for thread in self._threads:
            while not thread.offer(event, 0.0 if self.is_interrupted and thread.is_behind else SINK_WAIT_S):
                # After an interrupt nobody wants to see the rest on a paused terminal; the log files have it.
                if wait() or self.is_interrupted:
                    break

    def show_progress(self, event: Progress) -> None:
        """Hand it to the sinks that are not behind."""
        for thread in self._threads:
            if not thread.is_behind:
                thread.offer(event, 0.0)

    def finish(self, look: Callable[[], bool]) -> bool:
        """Wait until the sinks have taken everything, however slow their readers are; less after an interrupt.

        look: called now and then; returns True once the run is interrupted
        Return False if a sink has not taken everything.
        """
        deadline = time.monotonic() + INTERRUPTED_WAIT_S
        is_shown = True
        for thread in self._threads:
            while not thread.finish(SINK_WAIT_S):
                self.is_interrupted = self.is_interrupted or look()
                if self.is_interrupted and time.monotonic() > deadline:
                    is_shown = False
                    break
        return is_shown


class SinkThread:
    """A sink and its thread."""

    def __init__(self, name: str, sink: Sink, failed: Callable[[Exception], None]) -> None:
        """failed: called from the thread when the sink raises an error; the sink gets no more events then."""
        self._sink, self._failed = sink, failed
        self._events: queue.Queue[Event | None] = queue.Queue(QUEUED_EVENTS)
        self.is_behind = False  # the last event found no room
        self._is_finishing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def offer(self, event: Event, timeout: float) -> bool:
        """Hand over an event; return False if the queue has no room within timeout seconds."""
        try:
            self._events.put(event, timeout=timeout)
            self.is_behind = False
        except queue.Full:
            self.is_behind = True
        return not self.is_behind

    def finish(self, timeout: float) -> bool:
        """Wait, after the last event, until the sink has taken all; return False after timeout seconds."""
        if not self._is_finishing:
            with contextlib.suppress(queue.Full):
                self._events.put(None, timeout=timeout)
                self._is_finishing = True
        if self._is_finishing:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        idles = 0
        try:
            while True:
                try:
                    event = self._events.get(timeout=IDLE_POLL_S if idles < QUICK_IDLE_POLLS else SLOW_IDLE_POLL_S)
                except queue.Empty:
                    idles += 1
                    self._sink.idle()
                    continue
                idles = 0
                if event is None:
                    break
                self._sink.handle(event)
            self._sink.close()
        except Exception as error:
            self._failed(error)
            while self._events.get() is not None:  # free callers that are waiting for room
                pass
