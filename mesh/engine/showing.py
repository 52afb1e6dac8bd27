"""Sinks, each in a thread of its own, because a terminal may be paused while the log files go on."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from mesh.core.events import Event
from mesh.core.interfaces import Sink

QUEUED_EVENTS = 256  # of up to 128 KiB each, that wait for one sink; beyond it output waits on the hosts
IDLE_S = 0.05  # without an event, after which the sink's idle() is called
SHORT_IDLES, LONG_IDLE_S = 20, 0.2  # after this many idle() in a row, seconds between two of them


class SinkThread:
    """A sink and its thread."""

    def __init__(self, name: str, sink: Sink, failed: Callable[[Exception], None]) -> None:
        """failed: called from the thread when the sink raises an error; the sink gets no more events then."""
        self._sink, self._failed = sink, failed
        self._events: queue.Queue[Event | None] = queue.Queue(QUEUED_EVENTS)
        self.is_behind = False  # the last event found no room
        self._finishing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def offer(self, event: Event, timeout: float) -> bool:
        """Hand over an event; return False if the sink has no room within timeout seconds."""
        try:
            self._events.put(event, timeout=timeout)
            self.is_behind = False
        except queue.Full:
            self.is_behind = True
        return not self.is_behind

    def finish(self, timeout: float) -> bool:
        """Wait until the sink has handled all events; return False if that takes longer than timeout seconds."""
        if not self._finishing:
            with contextlib.suppress(queue.Full):
                self._events.put(None, timeout=timeout)
                self._finishing = True
        if self._finishing:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        idles = 0
        try:
            while True:
                try:
                    event = self._events.get(timeout=IDLE_S if idles < SHORT_IDLES else LONG_IDLE_S)
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
