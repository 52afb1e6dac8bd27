"""The request of a client to end a program, which any of its nodes can carry out."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Sequence

from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions

STOP_TIMEOUT_S = 5.0  # for a node to take the request
AT_ONCE_MAX = 64  # nodes that are asked together


def ask_to_stop(caller: Caller, labels: Sequence[str], code: int, why: str) -> bool:
    """End a program with a status; return True once a node has taken the request.

    The first node is asked alone. It may have ended, hang, or not be there yet: then others are asked together.
    """
    return _ask(caller, labels[:1], code, why) or _ask(caller, labels[1 : AT_ONCE_MAX + 1], code, why)


def _ask(caller: Caller, labels: Sequence[str], code: int, why: str) -> bool:
    options = CallOptions(timeout=STOP_TIMEOUT_S)
    asked: set[concurrent.futures.Future[object]] = set()
    for label in labels:
        with contextlib.suppress(Exception):  # there is no way to it
            asked.add(caller.to(label).stop_program(code, why, options))
        if any(one.done() and one.exception() is None for one in asked):
            return True
    while asked:
        done, asked = concurrent.futures.wait(asked, STOP_TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
        if any(one.exception() is None for one in done):
            return True
        if not done:
            return False
    return False
