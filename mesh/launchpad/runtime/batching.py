"""Launchpad's batched handlers: calls that run together. A call that waits for its batch holds no thread."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import datetime
import functools
import threading
import time
from typing import Callable, Deque, Dict, List, Tuple, Union

from mesh.program.runtime.batching import parted, stacked
from mesh.program.runtime.futures import CLOCK
from mesh.program.runtime.here import CURRENT, Context

Seconds = Union[int, float, datetime.timedelta, None]
DEFAULT_WAIT = datetime.timedelta(milliseconds=200)
Waiting = Tuple[Tuple[object, ...], Dict[str, object], "concurrent.futures.Future[object]"]


class Batcher:
    """The calls of one function that wait for others."""

    def __init__(
        self, function: "Callable[..., object]", size: int, parallel: int, wait: "float | None", pad: bool
    ) -> None:
        """size: calls in a batch at most; parallel: batches at the same time; wait: seconds, None: for a full batch"""
        self._function, self._size, self._parallel, self._wait, self._pad = function, size, parallel, wait, pad
        self._lock = threading.Lock()
        self._waiting: Deque[Waiting] = collections.deque()
        self._running = 0
        self._is_due = False  # calls have waited long enough
        self._alarm = -1

    def submit(self, args: "Tuple[object, ...]", kwargs: "Dict[str, object]") -> "concurrent.futures.Future[object]":
        """Add a call, and return the future of its part of the result."""
        future: "concurrent.futures.Future[object]" = concurrent.futures.Future()
        with self._lock:
            self._waiting.append((args, kwargs, future))
            if len(self._waiting) == 1:
                self._set_alarm()
            self._begin(CURRENT.context)
        return future

    def _set_alarm(self) -> None:
        if self._wait is not None:
            context = CURRENT.context
            self._alarm = CLOCK.at(time.monotonic() + self._wait, lambda: self._take_alarm(context))

    def _take_alarm(self, context: "Context | None") -> None:
        with self._lock:
            self._is_due = bool(self._waiting)
            self._begin(context)

    def _begin(self, context: "Context | None") -> None:
        """Start batches that are full or due, while fewer than ``parallel`` run. The lock is held."""
        while self._running < self._parallel and (len(self._waiting) >= self._size or (self._is_due and self._waiting)):
            batch = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            CLOCK.forget(self._alarm)
            self._is_due = False
            if self._waiting:
                self._set_alarm()
            self._running += 1
            threading.Thread(target=self._run, args=(batch, context), name="mesh-batch", daemon=True).start()

    def _run(self, batch: "List[Waiting]", context: "Context | None") -> None:
        CURRENT.context = context
        try:
            calls = [(args, kwargs) for args, kwargs, _ in batch]
            if self._pad:
                calls += [calls[-1]] * (self._size - len(calls))
            args = [stacked([call[0][place] for call in calls]) for place in range(len(calls[0][0]))]
            kwargs = {name: stacked([call[1][name] for call in calls]) for name in calls[0][1]}
            values = parted(self._function(*args, **kwargs), len(calls))
            for (_, _, future), value in zip(batch, values):
                _give(future, value)
        except BaseException as error:
            for _, _, future in batch:
                _give(future, error)
        finally:
            with self._lock:
                self._running -= 1
                self._begin(context)


def _give(future: "concurrent.futures.Future[object]", value: object) -> None:
    """Set the result or exception of a future, unless its caller has cancelled it."""
    try:
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)
    except concurrent.futures.InvalidStateError:
        pass


class Batched:
    """A function or method whose calls run together. Called here, it waits; a node serves it without a thread."""

    def __init__(self, function: "Callable[..., object]", make: "Callable[[Callable[..., object]], Batcher]") -> None:
        self._function, self._make = function, make
        self._batcher = make(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._batcher.submit(args, kwargs).result()

    async def serve(self, *args: object, **kwargs: object) -> object:
        """Wait for the result on the node's loop."""
        return await asyncio.wrap_future(self._batcher.submit(args, kwargs))

    def __get__(self, instance: object, owner: object = None) -> "Batched":
        if instance is None:
            return self
        name = f"_lp_batched_{self._function.__name__}"
        bound = instance.__dict__.get(name)
        if bound is None:
            made = Batched(functools.partial(self._function, instance), self._make)
            bound = instance.__dict__.setdefault(name, made)  # atomic: the first of two threads counts
        assert isinstance(bound, Batched)
        return bound


def batched_handler(
    batch_size: int, max_parallelism: int = 1, timeout: Seconds = DEFAULT_WAIT, pad_batch: bool = False
) -> "Callable[[Callable[..., object]], Batched]":
    """Have calls of a function or method run together: it gets stacked arguments, and its result is shared out.

    batch_size: calls in a batch at most; max_parallelism: batches that run at the same time
    timeout: seconds or timedelta that a call waits for others; None: until the batch is full
    pad_batch: repeat the last call so that every batch has ``batch_size``
    """
    wait = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout

    def decorate(function: "Callable[..., object]") -> Batched:
        return Batched(function, lambda found: Batcher(found, batch_size, max_parallelism, wait, pad_batch))

    return decorate
