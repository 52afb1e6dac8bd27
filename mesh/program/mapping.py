"""A function over many items on all hosts, and an executor of ``concurrent.futures`` over a cluster."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from msgspec import Struct

from mesh.api.choosing import choose_cluster
from mesh.config.settings import Options
from mesh.core.errors import MeshError, UsageError
from mesh.program.program import Program
from mesh.program.runtime import codec
from mesh.program.runtime.errors import NodeLost, RemoteError
from mesh.program.runtime.handles import Group, Handle

P = ParamSpec("P")
T = TypeVar("T")
ITEMS_AT_A_WORKER = 2  # items that are at a worker at the same time, so that it has the next one at once
WORKERS_LIMIT = 4096
JOIN_TIMEOUT_S = 5.0  # for the thread that sends calls


class ItemFailed(MeshError):
    """The function has failed for an item, or the worker of the item is lost."""

    def __init__(self, index: int, cause: BaseException) -> None:
        """index: of the item, from 0; cause: the exception of the function, or NodeLost"""
        kind = "" if isinstance(cause, NodeLost) else f"{type(cause).__name__}: "
        super().__init__(f"item {index}: {kind}{cause}")
        self.index, self.cause = index, cause


class Worker:
    """Calls functions on its host."""

    def __init__(self, function: Callable[..., object] | None, anchor: object) -> None:
        """function: of ``map``; anchor: has the host load the main module, where functions are defined"""
        self._function = function

    def call(
        self, function: Callable[..., object] | None, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Return the function's value. function: None for that of ``map``"""
        found = function or self._function
        assert found is not None
        return found(*args, **kwargs)


class Places(Struct, frozen=True, kw_only=True):
    """The workers of a map or an executor."""

    cluster: str = ""  # a selector; "": processes of this machine
    nproc: int = 1  # workers on each host
    where: str = ""  # "threads", "local" or "cluster"; "": by the cluster
    python: str = "python3"  # the interpreter on the hosts
    options: Options | None = None  # of the run

    def launched(self, name: str, function: Callable[..., object] | None) -> ProgramExecutor:
        """Start the workers. Raises UsageError, and MeshError if they do not start."""
        if not 1 <= self.nproc <= WORKERS_LIMIT:
            raise UsageError(f"nproc={self.nproc}: expected 1 to {WORKERS_LIMIT} workers on each host", hint="nproc=4")
        where = self.where or ("cluster" if self.cluster else "local")
        python = self.python if where == "cluster" else sys.executable
        program = Program(name, cluster=self.cluster, python=python, options=self.options)
        hosts = None
        if where == "cluster":
            hosts = [host.name for host in choose_cluster(self.cluster, self.options or Options(), "").hosts]
        count = self.nproc * len(hosts or [""])
        found = program.add(Worker, function, _anchor(), on=hosts, count=count, label="worker", on_failure="ignore")
        handles = list(found) if isinstance(found, Group) else [found]
        return ProgramExecutor(program, handles, where)


class _Task(Struct):
    """A call that waits for a worker."""

    future: concurrent.futures.Future[object]
    call: tuple[Callable[..., object] | None, tuple[object, ...], dict[str, object]]
    retries: int


class ProgramExecutor(concurrent.futures.Executor):
    """Runs functions on the hosts of a cluster: ``with executor("pod") as e: e.submit(f, x)``."""

    def __init__(self, program: Program, handles: list[Handle[Worker]], where: str) -> None:
        self._running = program.launch(where)
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._load = dict.fromkeys(handles, 0)
        self._open: set[concurrent.futures.Future[object]] = set()
        self._is_shut = self._is_over = False
        self._feeder = threading.Thread(target=self._feed, name="mesh-feeder", daemon=True)
        self._feeder.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        """Call a function on a free worker. Raises RuntimeError after ``shutdown``."""
        return self.enter((fn, args, dict(kwargs)), 0)  # type: ignore[return-value]

    def enter(
        self, call: tuple[Callable[..., object] | None, tuple[object, ...], dict[str, object]], retries: int
    ) -> concurrent.futures.Future[object]:
        """Queue a call. retries: starts on another worker after the loss of one"""
        task = _Task(concurrent.futures.Future(), call, retries)
        with self._changed:
            if self._is_shut:
                raise RuntimeError("the executor is shut down")
            self._open.add(task.future)
            self._waiting.append(task)
            self._changed.notify_all()
        return task.future

    @property
    def capacity(self) -> int:
        """The calls that may be at workers at the same time."""
        return ITEMS_AT_A_WORKER * len(self._load)

    def _feed(self) -> None:
        """Send calls that wait to the workers with the fewest, until the end.

        In a thread of its own: a large call waits for the credits of its worker, which the thread that reads the
        worker's answers grants.
        """
        while (found := self._next()) is not None:
            handle, task = found
            if handle is None:
                self._settle(task, NodeLost("worker", "", "all workers are lost"))
                continue
            if not task.future.running() and not task.future.set_running_or_notify_cancel():
                self._end(handle, task, None)
                continue
            try:
                future = handle.futures.call(*task.call)
            except NodeLost as error:
                self._end(handle, task, error, was_sent=False)
            except BaseException as error:
                self._end(handle, task, error)
            else:
                future.add_done_callback(  # type: ignore[attr-defined]
                    lambda done, handle=handle, task=task: self._take(handle, task, done)
                )

    def _next(self) -> tuple[Handle[Worker] | None, _Task] | None:
        """Wait for a call and a worker that takes it; return them. A call without any worker left has None."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or (self._waiting and self._is_free()))
            if self._is_over:
                return None
            task = self._waiting.popleft()
            handle = min(self._load, key=self._load.__getitem__, default=None)
            if handle is not None:
                self._load[handle] += 1
            return handle, task

    def _is_free(self) -> bool:
        return min(self._load.values(), default=0) < ITEMS_AT_A_WORKER

    def _take(self, handle: Handle[Worker], task: _Task, done: concurrent.futures.Future[object]) -> None:
        error = done.exception() if not done.cancelled() else concurrent.futures.CancelledError()
        self._end(handle, task, error, None if error else done.result())

    def _end(
        self,
        handle: Handle[Worker],
        task: _Task,
        error: BaseException | None,
        value: object = None,
        *,
        was_sent: bool = True,
    ) -> None:
        """Settle a call that has left its worker; one whose worker is lost waits again if it may, or was not sent."""
        with self._changed:
            self._changed.notify_all()
            if isinstance(error, NodeLost) and not isinstance(error, RemoteError):  # not one that the function raised
                self._load.pop(handle, None)
                if (task.retries > 0 or not was_sent) and not self._is_over:
                    task.retries -= was_sent
                    self._waiting.appendleft(task)
                    return
            elif handle in self._load:
                self._load[handle] -= 1
        self._settle(task, error, value)

    def _settle(self, task: _Task, error: BaseException | None, value: object = None) -> None:
        with self._changed:
            self._open.discard(task.future)
        if task.future.cancelled():
            task.future.set_running_or_notify_cancel()  # wakes those that wait for it
            return
        try:
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(value)
        except concurrent.futures.InvalidStateError:
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all workers once their calls have ended. cancel_futures: calls that wait are cancelled

        wait: False to end the calls that run as well
        """
        with self._changed:
            self._is_shut = True
            waiting = list(self._waiting) if cancel_futures or not wait else []
            for task in waiting:
                self._waiting.remove(task)
            left = self._open - {task.future for task in waiting}
        for task in waiting:
            self._cancel(task)
        if wait:
            concurrent.futures.wait(left)
        self._finish()

    def _finish(self) -> None:
        """End the workers, and the calls that still wait for them."""
        with self._changed:
            self._is_over = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for task in waiting:
            self._cancel(task)
        self._running.stop()
        if self._feeder is not threading.current_thread():
            self._feeder.join(JOIN_TIMEOUT_S)

    def _cancel(self, task: _Task) -> None:
        """Cancel a call that waits; one that waits for another worker fails, as it has been begun."""
        task.future.cancel()
        self._settle(task, concurrent.futures.CancelledError())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(wait=kind is None)


def executor(cluster: str = "", **places: object) -> ProgramExecutor:
    """Return an executor of ``concurrent.futures`` whose workers are on the hosts of a cluster.

    cluster: a selector, as "pod"; "": this machine; places: ``nproc``, ``where``, ``python``, ``options`` of Places
    Raises UsageError, and MeshError if the workers do not start.
    """
    return Places(cluster=cluster, **places).launched("executor", None)  # type: ignore[arg-type]


def map(  # noqa: A001  (the name of Python's own)
    function: Callable[..., T],
    items: Iterable[object],
    *,
    cluster: str = "",
    ordered: bool = True,
    retries: int = 0,
    **places: object,
) -> Iterator[T]:
    """Yield the function's value for each item, computed on the hosts of a cluster.

    ordered: False to yield values as they come; retries: of an item whose worker is lost
    places: ``nproc`` (workers on each host), ``where``, ``python``, ``options`` of Places
    Raises ItemFailed for the first item that fails, UsageError, MeshError. Leaving the loop ends all workers.
    """
    found = Places(cluster=cluster, **places).launched("map", function)  # type: ignore[arg-type]
    try:
        yield from _results(found, items, ordered, retries)  # type: ignore[misc]
    finally:
        found.shutdown(wait=False)


def _results(workers: ProgramExecutor, items: Iterable[object], ordered: bool, retries: int) -> Iterator[object]:
    """Yield values while at most as many items are begun as the workers take."""
    begun: dict[concurrent.futures.Future[object], int] = {}
    source = enumerate(items)
    is_over = False
    while begun or not is_over:
        while not is_over and len(begun) < workers.capacity:
            index, item = next(source, (-1, None))
            if index < 0:
                is_over = True
            else:
                begun[workers.enter((None, (item,), {}), retries)] = index
        if not begun:
            return
        waited = [next(iter(begun))] if ordered else list(begun)
        done = concurrent.futures.wait(waited, return_when=concurrent.futures.FIRST_COMPLETED).done
        failed = next((one for one in begun if one.done() and one.exception()), None)
        for future in [failed] if failed else done:
            index = begun.pop(future)
            error = future.exception()
            if error is not None:
                raise ItemFailed(index, error) from error
            yield future.result()


def _anchor() -> object:
    """Return an argument by which hosts load the main module, for functions that are defined there."""
    if not codec.has_main_file():
        return lambda: None  # travels by value, and with it what reads such functions
    file = getattr(sys.modules.get("__main__"), "__file__", "") or ""
    return "__main__" if file and Path(file).resolve().is_relative_to(Path.cwd().resolve()) else ""
