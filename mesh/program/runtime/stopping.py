"""The functions that code in a node calls: its place, and the end of the program."""

from __future__ import annotations

import threading
from typing import Callable

from mesh.program.runtime.handles import Handle
from mesh.program.runtime.here import CURRENT, Here, current, current_program


def here() -> Here:
    """Return the place of this node: program, label, index, host, rank, attempt. Raises NotLaunched elsewhere."""
    return current().here


def me() -> "Handle[object]":
    """Return a handle of this node."""
    context = current()
    return Handle(context.caller.program, context.here.label, caller=context.caller)


def peers() -> "list[Handle[object]]":
    """Return the handles of this node's group, in order, this node included."""
    context = current()
    group, slash, _ = context.here.label.partition("/")
    labels = [f"{group}/{index}" for index in range(context.here.count)] if slash else [group]
    return [Handle(context.caller.program, label, caller=context.caller) for label in labels]


def stop(code: int = 0, why: str = "") -> None:
    """End the whole program, from any thread of any node. code: its exit status; why: for people"""
    current_program().stop_program(code, why)


def wait_for_stop(timeout: "float | None" = None) -> bool:
    """Wait until the program is stopped; return False if that did not happen within so many seconds."""
    return current_program().stopped.wait(timeout)


def stop_event() -> threading.Event:
    """Return the event that is set once the program is stopped."""
    return current_program().stopped


def on_stop(call: "Callable[[], object]") -> None:
    """Call a function, in a thread of its own, once the program is stopped."""
    current_program().on_stop(call)


def stop_reason() -> str:
    """Return why the program was stopped: "stop", "failure", "signal", "preemption", "timeout"; "": it is not."""
    return current_program().reason


def cancelled() -> bool:
    """Return True within a method whose caller has cancelled the call."""
    mark = CURRENT.cancelled
    return mark is not None and mark.is_set
