"""The request of a client to end a program, which any of its nodes can carry out."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Sequence

from mesh.program.runtime.caller import Caller
from mesh.program.runtime.connection import CallOptions

FIRST_TIMEOUT_S = 2.0  # for the first node to take the request, before others are asked as well
STOP_TIMEOUT_S = 10.0  # for any node to take it
AT_ONCE_MAX = 64  # nodes that are asked together


def ask_to_stop(caller: Caller, labels: Sequence[str], code: int, why: str) -> bool:
    """End a program with a status; return True once a node has taken the request.

    The first node is asked alone. It may have ended, hang, or not be there yet: then others are asked beside it.
    """
    first = _requests(caller, labels[:1], code, why)
    if _is_taken(first, FIRST_TIMEOUT_S):
        return True
    return _is_taken(first | _requests(caller, labels[1 : AT_ONCE_MAX + 1], code, why), STOP_TIMEOUT_S)


def _requests(caller: Caller, labels: Sequence[str], code: int, why: str) -> set[concurrent.futures.Future[object]]:
    """Send the request to some nodes; return the answers that are to come."""
    asked: set[concurrent.futures.Future[object]] = set()
    for label in labels:
        with contextlib.suppress(Exception):  # there is no way to it
            asked.add(caller.to(label).stop_program(code, why, CallOptions(timeout=STOP_TIMEOUT_S)))
        if any(map(_has_taken, asked)):
            break
    return asked


def _is_taken(asked: set[concurrent.futures.Future[object]], seconds: float) -> bool:
    """Wait until a node has taken the request; return False once none will, or the time is over."""
    deadline = time.monotonic() + seconds
    while asked:
        if any(map(_has_taken, asked)):
            return True
        asked = {one for one in asked if not one.done()}
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        concurrent.futures.wait(asked, left, concurrent.futures.FIRST_COMPLETED)
    return False


def _has_taken(answer: concurrent.futures.Future[object]) -> bool:
    return answer.done() and answer.exception() is None
