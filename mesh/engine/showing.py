"""Feeding the sinks: each in a thread of its own, as a terminal may be paused while the log files go on."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from mesh.core.events import Event
from mesh.core.interfaces import Sink

QUEUED = 256  # events, of up to 128 KiB each, that wait for one sink; beyond it output waits on the hosts
IDLE = 0.05  # seconds without an event after which a sink may look around
IDLES, LONG_IDLE = 20, 0.2  # after so many of them in a row it looks around less often, with so many seconds in between


class SinkThread:
    """One sink and its thread."""

    def __init__(self, name: str, sink: Sink, failed: Callable[[Exception], None]) -> None:
        """failed: called from the thread when the sink raises; it gets no more events then."""
        self._sink, self._failed = sink, failed
        self._events: queue.Queue[Event | None] = queue.Queue(QUEUED)
        self.is_behind = False  # the last event found no room
        self._finishing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def offer(self, event: Event, timeout: float) -> bool:
        """Hand over an event; False if the sink is so far behind that there is no room within timeout seconds."""
        try:
            self._events.put(event, timeout=timeout)
            self.is_behind = False
        except queue.Full:
            self.is_behind = True
        return not self.is_behind

    def finish(self, timeout: float) -> bool:
        """After the last event: wait until the sink has seen all; False if that takes longer than timeout seconds."""
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
                    event = self._events.get(timeout=IDLE if idles < IDLES else LONG_IDLE)
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
            while self._events.get() is not None:  # let those who hand over go on
                pass
