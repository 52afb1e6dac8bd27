"""Handles and clients of Courier nodes, and what is made on a node's host."""

from __future__ import annotations

import datetime
import sys
from typing import Callable, Dict, Generic, List, Tuple, TypeVar, Union

from mesh.program.runtime.futures import Future
from mesh.program.runtime.handles import Handle as NodeHandle
from mesh.program.runtime.handles import restore

T = TypeVar("T", covariant=True)
Seconds = Union[int, float, datetime.timedelta, None]
DEPTH_LIMIT = 50
IGNORED = ("compress", "chunk_tensors", "load_balancing_policy")  # of a client; mesh's links have no such choice


class Dereferenceable(Generic[T]):
    """A value that is made on the host of the node that gets it."""

    def dereference(self) -> T:
        """Return the value."""
        raise NotImplementedError


class Handle(Dereferenceable[T], Generic[T]):
    """The way to a node, before its program runs."""


class NodePort:
    """The place of a node in its program, which the launch fills in."""

    def __init__(self) -> None:
        self.program, self.label, self.prefix = "", "", ""  # prefix: of a node within a colocation, as "1:"

    def handle(self) -> "NodeHandle[object]":
        """Return a handle for the process or thread that asks. Raises RuntimeError before the launch."""
        if not self.program:
            raise RuntimeError("this handle belongs to no program that was launched; add its node, and launch that")
        return restore(self.program, self.label, None, 16)


class DummyHandle(Handle[None]):
    """The handle of a node without methods."""

    def dereference(self) -> None:
        """Raise NotImplementedError: the node serves nothing."""
        raise NotImplementedError("a PyNode serves no calls; CourierNode does")


class CourierHandle(Handle["CourierClient"]):
    """The handle of a node that serves calls."""

    def __init__(self, port: NodePort, client_kwargs: "Dict[str, object] | None" = None) -> None:
        """client_kwargs: for CourierClient"""
        self._port, self._client_kwargs = port, dict(client_kwargs or {})

    def dereference(self) -> "CourierClient":
        """Return a client of the node. Raises RuntimeError before the launch."""
        return CourierClient(self._port, **self._client_kwargs)  # type: ignore[arg-type]


class _Futures:
    """The calls of a client that return futures at once."""

    def __init__(self, begin: "Callable[..., Future[object]]") -> None:
        self._begin = begin

    def __getattr__(self, name: str) -> "Callable[..., Future[object]]":
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._begin(name, args, kwargs)

    def __call__(self, *args: object, **kwargs: object) -> "Future[object]":
        return self._begin("__call__", args, kwargs)


class CourierClient:
    """Calls the methods of a node: ``client.method(3)`` waits, ``client.futures.method(3)`` returns a future."""

    def __init__(self, port: NodePort, call_timeout: Seconds = None, wait_for_ready: bool = True, **other: object):
        """call_timeout: seconds for every call, None: no limit; wait_for_ready: a call always waits for its node

        Raises TypeError for an option that Courier does not have.
        """
        unknown = [name for name in other if name not in IGNORED]
        if unknown:
            raise TypeError(f"a client has no option {unknown[0]!r}")
        if other:
            sys.stderr.write(f"mesh.launchpad: {', '.join(other)}: ignored, links have no such choice\n")
        self._port = port
        seconds = call_timeout.total_seconds() if isinstance(call_timeout, datetime.timedelta) else call_timeout
        self._timeout: "float | None" = seconds or None  # 0 means no limit, as in Courier
        handle = port.handle()
        self._handle = handle.options(timeout=self._timeout) if self._timeout else handle

    def _call(self, name: str, args: "Tuple[object, ...]", kwargs: "Dict[str, object]") -> "Future[object]":
        name = ":run" if name == "run" else name  # handles of mesh.program do not call run() of a node
        name = self._port.prefix + name
        if name == "__call__":
            return self._handle.futures(*args, **kwargs)  # type: ignore[return-value]
        return getattr(self._handle.futures, name)(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def futures(self) -> _Futures:
        """Calls that return a future at once."""
        return _Futures(self._call)

    @property
    def address(self) -> str:
        """The label of the node, as "actor/3"."""
        return self._port.label

    def __getattr__(self, name: str) -> "Callable[..., object]":
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _waited(self._call(name, args, kwargs))

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _waited(self._call("__call__", args, kwargs))

    def __reduce__(self) -> "Tuple[object, ...]":
        return CourierClient, (self._port, self._timeout)

    def __repr__(self) -> str:
        return f"<client of {self._port.label}>"


def _waited(future: "Future[object]") -> object:
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def list_methods(client: CourierClient) -> "List[str]":
    """Return the names of the methods that a node serves, in order."""
    return [str(one) for one in _waited(client._call(":methods", (), {}))]  # type: ignore[attr-defined]


class Deferred(Dereferenceable[T], Generic[T]):
    """An object that is made once, on the host of the node that gets it."""

    def __init__(self, constructor: "Callable[..., T]", *args: object, **kwargs: object) -> None:
        self._constructor, self._args, self._kwargs = constructor, args, kwargs
        self._made: List[T] = []

    def dereference(self) -> T:
        """Return the object. Raises RuntimeError if its constructor fails."""
        if not self._made:
            args, kwargs = arguments_of(self._args, self._kwargs)
            try:
                self._made.append(self._constructor(*args, **kwargs))
            except Exception as error:
                name = getattr(self._constructor, "__name__", "the constructor")
                raise RuntimeError(f"{name} of a Deferred failed: {error}") from error
        return self._made[0]


def arguments_of(
    args: "Tuple[object, ...]", kwargs: "Dict[str, object]"
) -> "Tuple[Tuple[object, ...], Dict[str, object]]":
    """Return arguments and keywords with the handles in them made usable."""
    return tuple(dereferenced(one) for one in args), {name: dereferenced(one) for name, one in kwargs.items()}


def maybe_dereference(value: object) -> object:
    """Return the value of a handle or Deferred; another value as it is."""
    return value.dereference() if isinstance(value, Dereferenceable) else value


def dereferenced(value: object, depth: int = 0) -> object:
    """Return a value with the handles in it made usable, also in lists, tuples and dictionaries."""
    if isinstance(value, Dereferenceable):
        return value.dereference()
    if depth < DEPTH_LIMIT:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            make: "Callable[..., object]" = type(value)
            return make(*[dereferenced(one, depth + 1) for one in value])
        if type(value) in (list, tuple):
            return type(value)([dereferenced(one, depth + 1) for one in value])  # type: ignore[call-arg, attr-defined]
        if isinstance(value, dict) and type(value).__init__ is dict.__init__:
            return type(value)((name, dereferenced(one, depth + 1)) for name, one in value.items())
    return value
