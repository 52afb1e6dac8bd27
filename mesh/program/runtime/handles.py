"""Handles of nodes and groups: their methods are calls. They can be sent to other nodes."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Callable, Dict, Generic, Iterable, Iterator, List, Sequence, Tuple, TypeVar

from mesh.program.runtime import plain
from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions, Stream
from mesh.program.runtime.errors import GroupError, NotLaunched, RemoteError
from mesh.program.runtime.futures import Future
from mesh.program.runtime.here import current_caller
from mesh.program.runtime.retrying import Retries

T = TypeVar("T")
DEFAULT = CallOptions()


class _Methods:
    """Turns attributes into calls of one kind."""

    def __init__(self, make: "Callable[..., object]") -> None:
        self._make = make

    def __getattr__(self, name: str) -> "Callable[..., object]":
        if name.startswith("_"):
            raise AttributeError(name)
        make = self._make
        return lambda *args, **kwargs: make((name, args, kwargs))

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._make(("__call__", args, kwargs))


Call = Tuple[str, Tuple[object, ...], Dict[str, object]]


class Handle(Generic[T]):
    """The way to one node: ``handle.method(...)`` calls it there and waits for its result.

    Errors: the exception of the method, joined with RemoteError; NodeLost, CallTimeout, NotServed, CannotTravel.
    """

    def __init__(
        self, program: str, label: str, options: CallOptions = DEFAULT, caller: "Caller | None" = None
    ) -> None:
        """program: its id; caller: of the node that has received the handle, None: found at each call"""
        self._program, self._label, self._options, self._caller = program, label, options, caller

    @property
    def label(self) -> str:
        """The node's label, as "actor/3"."""
        return self._label

    @property
    def program(self) -> str:
        """The id of the node's program."""
        return self._program

    @property
    def host(self) -> str:
        """The name of the node's host."""
        return self._found().hosts.get(self._label, "")

    @property
    def futures(self) -> "_Methods":
        """Calls that return a Future at once."""
        return _Methods(self._begin)

    @property
    def tell(self) -> "_Methods":
        """Calls without an answer; a failure fails the node."""
        return _Methods(lambda call: self._found().to(self._label).one_way(call, self._options))

    @property
    def stream(self) -> "_Methods":
        """Calls of generator methods; they return an iterator of the items."""
        return _Methods(self._stream)

    @property
    def methods(self) -> T:
        """The handle as an instance of the node's class, for type checkers."""
        return self  # type: ignore[return-value]

    def options(self, timeout: "float | None" = None, buffer: int = 16, retries: int = 0) -> "Handle[T]":
        """Return a handle whose calls have other options. timeout: seconds; buffer: items of a stream that may wait

        retries: how often a call may be sent again after the loss of its node. The method may then run more than once,
        so it must be one whose repetition does no harm. Streams and calls without an answer are never repeated.
        """
        return Handle(self._program, self._label, CallOptions(timeout, buffer, retries), self._caller)

    def _found(self) -> Caller:
        found = self._caller or current_caller(self._program)
        if found is None:
            raise NotLaunched(f"{self._label}: its program is not launched, or has ended; call it after launch()")
        return found

    def _begin(self, call: Call) -> "Future[object]":
        caller, label, options = self._found(), self._label, self._options
        if options.retries:
            return Retries(caller, label, options, lambda once: caller.to(label).call(call, once)).begin()
        return caller.to(label).call(call, options)

    def _stream(self, call: Call) -> Stream:
        return self._found().to(self._label).stream(call, self._options)

    def __getattr__(self, name: str) -> "Callable[..., object]":
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _wait(self._begin((name, args, kwargs)))

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _wait(self._begin(("__call__", args, kwargs)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self._program, self._label) == (other._program, other._label)

    def __hash__(self) -> int:
        return hash((self._program, self._label))

    def __repr__(self) -> str:
        return f"<handle of {self._label}>"

    def __reduce__(self) -> "Tuple[object, ...]":
        options = self._options
        return restore, (self._program, self._label, options.timeout, options.buffer, options.retries)


class Group(Sequence["Handle[T]"], Generic[T]):
    """The handles of a group: ``group.method(...)`` calls all nodes at once and returns the results in order.

    If some calls fail, GroupError has the results of the others.
    """

    def __init__(self, handles: "Sequence[Handle[T]]") -> None:
        self._handles = tuple(handles)
        self._load = [0] * len(self._handles)  # calls of ``any`` that begin now
        self._lock = threading.Lock()

    @property
    def futures(self) -> "_Methods":
        """Calls of all nodes that return a list of futures at once."""
        return _Methods(lambda call: [handle._begin(call) for handle in self._handles])

    @property
    def tell(self) -> "_Methods":
        """Calls of all nodes without answers."""
        return _Methods(lambda call: [getattr(handle.tell, call[0])(*call[1], **call[2]) for handle in self._handles])

    @property
    def each(self) -> "_Methods":
        """Calls with one argument for each node, from a sequence."""
        return _Methods(self._each)

    @property
    def any(self) -> "_Methods":
        """Calls of the node with the fewest calls from here that are not answered."""
        return _Methods(lambda call: _wait(self._to_any(call)))

    @property
    def stream_done(self) -> "_Methods":
        """Calls of all nodes that yield pairs of handle and result, in order of arrival."""
        return _Methods(self._as_done)

    @property
    def methods(self) -> T:
        """The group as an instance of the nodes' class, for completion."""
        return self  # type: ignore[return-value]

    def options(self, timeout: "float | None" = None, buffer: int = 16, retries: int = 0) -> "Group[T]":
        """Return a group whose calls have other options, as those of a handle."""
        return Group([handle.options(timeout, buffer, retries) for handle in self._handles])

    def _each(self, call: Call) -> "List[object]":
        method, (arguments,), named = call
        values = list(arguments)  # type: ignore[call-overload]
        if len(values) != len(self._handles):
            raise ValueError(f"{method}: {len(values)} arguments for {len(self._handles)} nodes")
        pairs = zip(self._handles, values)
        return _gathered(self._handles, [handle._begin((method, (value,), named)) for handle, value in pairs])

    def _to_any(self, call: Call) -> "Future[object]":
        with self._lock:
            open_calls = [handle._found().open_calls(handle.label) for handle in self._handles]
            place = min(range(len(self._load)), key=lambda one: open_calls[one] + self._load[one])
            self._load[place] += 1
        try:
            return self._handles[place]._begin(call)
        finally:
            with self._lock:
                self._load[place] -= 1

    def _as_done(self, call: Call) -> "Iterator[Tuple[Handle[T], object]]":
        handles = {handle._begin(call): handle for handle in self._handles}
        for future in concurrent.futures.as_completed(handles):
            yield handles[future], future.result()  # type: ignore[index]

    def __getattr__(self, name: str) -> "Callable[..., List[object]]":
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._all((name, args, kwargs))

    def __call__(self, *args: object, **kwargs: object) -> "List[object]":
        return self._all(("__call__", args, kwargs))

    def _all(self, call: Call) -> "List[object]":
        return _gathered(self._handles, [_begun(handle, call) for handle in self._handles])

    def __len__(self) -> int:
        return len(self._handles)

    def __getitem__(self, place: "int | slice") -> "Handle[T] | Group[T]":  # type: ignore[override]
        return Group(self._handles[place]) if isinstance(place, slice) else self._handles[place]

    def __iter__(self) -> "Iterator[Handle[T]]":
        return iter(self._handles)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._handles == other._handles

    def __hash__(self) -> int:
        return hash(self._handles)

    def __repr__(self) -> str:
        return f"<group of {', '.join(handle.label for handle in self._handles)}>"

    def __reduce__(self) -> "Tuple[object, ...]":
        return Group, (self._handles,)


def _begun(handle: "Handle[T]", call: Call) -> "Future[object]":
    """Begin a call; a node that is lost already fails its own future only."""
    try:
        return handle._begin(call)
    except ConnectionError as error:
        future: "Future[object]" = Future()
        future.fail(error)
        return future


def _wait(future: "Future[object]") -> object:
    """Return the result; a Ctrl-C cancels the call."""
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def _gathered(handles: "Sequence[Handle[T]]", futures: "Sequence[Future[object]]") -> "List[object]":
    """Return all results in order. Raises GroupError if some have failed."""
    results: List[object] = []
    errors: Dict[int, BaseException] = {}
    for place, future in enumerate(futures):
        try:
            results.append(_wait(future))
        except Exception as error:
            errors[place] = error
            results.append(error)
        except KeyboardInterrupt:
            for other in futures:
                other.cancel()
            raise
    if errors:
        first = min(errors)
        names = ", ".join(handles[place].label for place in errors)
        cause = errors[first]
        where = f"{cause.label} on {cause.host}: " if isinstance(cause, RemoteError) else ""
        message = f"{len(errors)} of {len(handles)} calls failed ({names}); {where}{cause}"
        raise GroupError(message, results, errors) from cause
    return results


def restore(program: str, label: str, timeout: "float | None", buffer: int, retries: int = 0) -> "Handle[object]":
    """Return the handle that was sent; its calls come from the node that has received it."""
    return Handle(program, label, CallOptions(timeout, buffer, retries), current_caller(program))


def handles_in(value: object, depth: int = 0) -> "Iterable[Handle[object]]":
    """Yield the handles in a value: in lists, dicts, dataclasses."""
    if isinstance(value, Handle):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset, Group)) and depth < 20:
        for one in value:
            yield from handles_in(one, depth + 1)
    elif isinstance(value, dict) and depth < 20:
        yield from handles_in(list(value.items()), depth + 1)
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        yield from handles_in(dict(vars(value)) if hasattr(value, "__dict__") else {}, depth + 1)


plain.WRITERS[Handle] = ("handle", lambda value: value.__reduce__()[1])  # type: ignore[assignment, return-value]
plain.READERS["handle"] = restore
plain.WRITERS[Group] = ("group", lambda value: tuple(value))  # type: ignore[arg-type]
plain.READERS["group"] = lambda *handles: Group(handles)
