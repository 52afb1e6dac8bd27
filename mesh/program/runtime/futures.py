"""Futures of calls, which can be waited for and awaited, and the clock that ends calls whose time is out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import threading
import time
from typing import Callable, Dict, Generator, Generic, List, Tuple, TypeVar

T = TypeVar("T")


class Future(concurrent.futures.Future, Generic[T]):  # type: ignore[type-arg]
    """The result of a call that comes later. ``await`` works on it as well."""

    def __init__(self, give_up: "Callable[[], None]" = lambda: None) -> None:
        """give_up: asks the node to cancel the call"""
        super().__init__()
        self._give_up = give_up

    def cancel(self) -> bool:
        """End the wait at once and ask the node to cancel the call; return False if it has ended already."""
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._give_up()
        return True

    def __await__(self) -> "Generator[object, None, T]":
        return asyncio.wrap_future(self).__await__()

    def give(self, value: object) -> None:
        """Set the result, unless the future was cancelled."""
        try:
            self.set_result(value)
        except concurrent.futures.InvalidStateError:
            pass

    def fail(self, error: BaseException) -> None:
        """Set the exception, unless the future was cancelled or has a result."""
        try:
            self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass

    def leave(self, error: BaseException) -> None:
        """Fail in a process that was just forked, whichever thread of the parent holds the lock of the future."""
        self._condition = threading.Condition()
        self._give_up = lambda: None
        self.fail(error)


class Clock:
    """Calls functions at set times, from a thread that is there only while a time is set."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._times: List[Tuple[float, int]] = []
        self._calls: Dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._is_running = False

    def at(self, when: float, call: "Callable[[], None]") -> int:
        """Call a function at a time of time.monotonic(); return a number for ``forget``."""
        with self._changed:
            number = next(self._numbers)
            self._calls[number] = call
            heapq.heappush(self._times, (when, number))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._work, name="mesh-clock", daemon=True).start()
            self._changed.notify()
            return number

    def forget(self, number: int) -> None:
        """Take back a call that has not been made. number: of ``at``; -1: none"""
        if number < 0:
            return
        with self._changed:
            self._calls.pop(number, None)
            if not self._calls:
                self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._times and self._times[0][1] not in self._calls:
                    heapq.heappop(self._times)
                if not self._times:
                    self._is_running = False
                    return
                when, number = self._times[0]
                if when > time.monotonic():
                    self._changed.wait(when - time.monotonic())
                    continue
                heapq.heappop(self._times)
                call = self._calls.pop(number)
            call()


CLOCK = Clock()
