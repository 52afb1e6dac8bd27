"""Calls that are sent again after the loss of their node, for callers that allow it, and the wait for other nodes."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Callable, Sequence

from mesh.program.runtime.connection import CallOptions
from mesh.program.runtime.errors import ENDED, NodeLost, RemoteError
from mesh.program.runtime.futures import Future

if TYPE_CHECKING:
    from mesh.program.runtime.caller import Caller
    from mesh.program.runtime.here import Context

FIRST_DELAY_S, DELAY_MAX_S = 0.05, 1.0  # before the next attempt; doubled each time
ATTEMPTS_MAX = 1 << 60  # while the node may come back


class Retries:
    """A call with several attempts. ``future`` has the result of the last one."""

    def __init__(
        self, caller: "Caller", label: str, options: CallOptions, begin: "Callable[[CallOptions], Future[object]]"
    ) -> None:
        """begin: sends the call once and returns its future; may raise NodeLost"""
        self._caller, self._label, self._options, self._send = caller, label, options, begin
        self._left = options.retries
        self._deadline = None if options.timeout is None else time.monotonic() + options.timeout
        self._delay = FIRST_DELAY_S
        self._inner: "Future[object] | None" = None
        self._is_over = threading.Event()
        self.future: "Future[object]" = Future(self._give_up)

    def begin(self) -> "Future[object]":
        """Begin the first attempt; return the future. Raises CannotTravel, and NotLaunched after the program's end."""
        try:
            inner = self._send(self._remaining())
        except NodeLost as error:
            self._lost(error)
        else:
            self._follow(inner)
        return self.future

    def _remaining(self) -> CallOptions:
        """Return the options of one attempt: the time that is left of the whole."""
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        return CallOptions(timeout, self._options.buffer)

    def _follow(self, inner: "Future[object]") -> None:
        self._inner = inner
        inner.add_done_callback(lambda done: self._take(inner))
        if self._is_over.is_set():
            inner.cancel()

    def _take(self, inner: "Future[object]") -> None:
        """Take the end of an attempt."""
        if inner.cancelled():
            return
        error = inner.exception()
        if isinstance(error, NodeLost) and not isinstance(error, RemoteError):  # ours, not one that a method raised
            self._lost(error)
        elif error is not None:
            self.future.fail(error)
        else:
            self.future.give(inner.result())

    def _lost(self, error: NodeLost) -> None:
        """Begin another attempt in a thread of its own, unless the node never comes back."""
        if self._left <= 0 or self._caller.has_lost(self._label):
            self.future.fail(error)
            return
        self._left -= 1
        threading.Thread(target=self._again, name="mesh-retry", daemon=True).start()

    def _again(self) -> None:
        delay, self._delay = self._delay, min(DELAY_MAX_S, 2 * self._delay)
        if self._is_over.wait(delay):
            return
        try:
            inner = self._send(self._remaining())
        except NodeLost as error:
            self._lost(error)
        except Exception as error:
            self.future.fail(error)
        else:
            self._follow(inner)

    def _give_up(self) -> None:
        self._is_over.set()
        if self._inner is not None:
            self._inner.cancel()


def wait_for_others(context: "Context", labels: "Sequence[str]") -> None:
    """Wait until other nodes are ready, or have ended well. Raises NodeLost for one that never will be ready.

    The stop of the program ends the wait with NodeLost as well.
    """
    caller = context.caller
    options = CallOptions(retries=ATTEMPTS_MAX)
    for label in labels:
        attempts = Retries(caller, label, options, lambda once, label=label: caller.to(label).ready(once))  # type: ignore[misc]
        future = attempts.begin()
        context.on_stop(future.cancel)
        try:
            error = future.exception()
        except Exception:  # cancelled by the stop
            raise NodeLost(label, caller.hosts.get(label, ""), "the program is stopped") from None
        if error is not None and not (isinstance(error, NodeLost) and error.reason == ENDED):
            raise error
