"""The end of a program, as Launchpad's functions have it. They work in every thread of a node."""

from __future__ import annotations

import signal
import threading
from typing import Callable, Dict, List, Set

from mesh.program.runtime.errors import NotLaunched
from mesh.program.runtime.here import Context, current

_LOCK = threading.Lock()
_HANDLERS: Dict[Context, Set[Callable[..., object]]] = {}
_LIVE: List[Context] = []  # of the nodes of this process


def enter(context: Context) -> None:
    """Note that a node works in this process."""
    _LIVE.append(context)


def leave(context: Context) -> None:
    """Note that a node has ended."""
    _LIVE.remove(context)


def node_here() -> Context:
    """Return the node of this thread; in a thread that a node has started, any node of the only program here.

    Raises NotLaunched outside of nodes.
    """
    try:
        return current()
    except NotLaunched:
        live = list(_LIVE)
        if len({context.caller.program for context in live}) != 1:
            raise
        return live[0]


def stop() -> None:
    """End the whole program, from any thread of any node."""
    node_here().stop_program(0, "")


def make_program_stopper(launch_type: object = None) -> "Callable[[], None]":
    """Return the function that ends the program."""
    return stop


def wait_for_stop(timeout_secs: "float | None" = None) -> bool:
    """Wait until the program is stopped; return False if that did not happen within so many seconds."""
    return node_here().stopped.wait(timeout_secs)


def stop_event() -> threading.Event:
    """Return the event that is set once the program is stopped."""
    return node_here().stopped


def register_stop_handler(handler: "Callable[..., object]") -> None:
    """Call a function once the program is stopped, in a thread of its own."""
    context = node_here()
    with _LOCK:
        is_first = context not in _HANDLERS
        _HANDLERS.setdefault(context, set()).add(handler)
    if is_first:
        context.on_stop(lambda: _call_all(context))


def unregister_stop_handler(handler: "Callable[..., object]") -> None:
    """Take back a function that ``register_stop_handler`` has got. An unknown one is no error."""
    with _LOCK:
        _HANDLERS.get(node_here(), set()).discard(handler)


def _call_all(context: Context) -> None:
    with _LOCK:
        handlers = _HANDLERS.pop(context, set())
    for handler in handlers:
        try:
            handler(signal.SIGTERM, None)
        except TypeError:
            handler()
