"""Batches: calls of one method that wait for each other and run together."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from typing import Callable, Dict, List, Sequence, Tuple, TypeVar

Method = TypeVar("Method", bound=Callable[..., object])
Arguments = Tuple[Tuple[object, ...], Dict[str, object]]


class _Waiting:
    """A call that waits for its batch."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.done = threading.Event()  # set at its result, or once it leads the next batch
        self.leads = False
        self.value: object = None
        self.error: "BaseException | None" = None


class _Batcher:
    """Gathers the calls of one method of one object."""

    def __init__(self, run: "Callable[..., object]", size: int, wait: float, pad: bool) -> None:
        self._run, self._size, self._wait, self._pad = run, size, wait, pad
        self._changed = threading.Condition()
        self._waiting: List[_Waiting] = []
        self._has_leader = False  # a call waits for others to come

    def call(self, arguments: Arguments) -> object:
        """Wait until the batch of this call has run, and return this call's part of the result."""
        own = _Waiting(arguments)
        with self._changed:
            self._waiting.append(own)
            self._changed.notify_all()
            own.leads, self._has_leader = not self._has_leader, True
        if not own.leads:
            own.done.wait()
        if own.leads:
            self._lead()
            own.done.wait()
        if own.error is not None:
            raise own.error
        return own.value

    def _lead(self) -> None:
        """Wait for more calls, hand the lead to one that is left over, and run the batch in this thread."""
        deadline = time.monotonic() + self._wait
        with self._changed:
            while len(self._waiting) < self._size and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            batch, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
            self._has_leader = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].done.set()
        for one in batch:
            one.done.clear()
        _run_batch(self._run, batch, self._size if self._pad else 0)


def _run_batch(run: "Callable[..., object]", batch: "Sequence[_Waiting]", padded: int) -> None:
    """Run a batch and share out its results. If the batch fails, every call in it gets the exception."""
    try:
        calls = [one.arguments for one in batch]
        calls += [calls[-1]] * (padded - len(calls))
        args = [stacked([call[0][place] for call in calls]) for place in range(len(calls[0][0]))]
        kwargs = {name: stacked([call[1][name] for call in calls]) for name in calls[0][1]}
        values = parted(run(*args, **kwargs), len(calls))
        for one, value in zip(batch, values):
            one.value = value
    except BaseException as error:
        for one in batch:
            one.error = error
    for one in batch:
        one.done.set()


def stacked(values: "Sequence[object]") -> object:
    """Return one value for many: arrays are stacked, containers member by member, other values become a list."""
    first = values[0]
    if type(first).__module__.partition(".")[0] == "numpy":
        import numpy

        found: object = numpy.stack(values)  # type: ignore[arg-type]
        return found
    if isinstance(first, dict):
        return {name: stacked([one[name] for one in values]) for name in first}  # type: ignore[index]
    if isinstance(first, tuple):
        members = [stacked([one[place] for one in values]) for place in range(len(first))]  # type: ignore[index]
        make: "Callable[..., object]" = type(first)
        return make(*members) if hasattr(first, "_fields") else tuple(members)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first)]
        return dataclasses.replace(first, **{name: stacked([getattr(one, name) for one in values]) for name in names})
    return list(values)


def parted(value: object, count: int) -> "List[object]":
    """Return the parts of the value of a batch. Raises ValueError if it does not have one for each call."""
    if isinstance(value, dict):
        parts = {name: parted(one, count) for name, one in value.items()}
        return [{name: one[place] for name, one in parts.items()} for place in range(count)]
    if isinstance(value, tuple):
        members = [parted(one, count) for one in value]
        made: "Callable[..., object] | None" = type(value) if hasattr(value, "_fields") else None
        rows = [[one[place] for one in members] for place in range(count)]
        return [made(*row) if made else tuple(row) for row in rows]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: parted(getattr(value, field.name), count) for field in dataclasses.fields(value)}
        return [dataclasses.replace(value, **{name: one[at] for name, one in named.items()}) for at in range(count)]
    found: List[object] = list(value)  # type: ignore[call-overload]
    if len(found) < count:
        raise ValueError(f"a batch of {count} calls returned {len(found)} results")
    return found[:count]


def batched(size: int = 32, wait: float = 0.005, pad: bool = False) -> "Callable[[Method], Method]":
    """Have calls of a method run together: it gets stacked arguments, and its result is shared out.

    size: calls in a batch at most; wait: seconds that the first call waits for others
    pad: repeat the last call so that every batch has ``size``
    The node needs ``concurrency`` of at least ``size``, because a call that waits for its batch holds a thread.
    """

    def decorate(method: Method) -> Method:
        name = f"_mesh_batcher_{method.__name__}"
        making = threading.Lock()

        @functools.wraps(method)
        def call(self: object, *args: object, **kwargs: object) -> object:
            with making:
                batcher = self.__dict__.get(name)
                if batcher is None:
                    batcher = self.__dict__[name] = _Batcher(functools.partial(method, self), size, wait, pad)
            return batcher.call((args, kwargs))

        return call  # type: ignore[return-value]

    return decorate
