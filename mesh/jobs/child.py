"""A child of the steward: carries out one order after another until its input ends, and writes each answer.

Requests and answers are lines of JSON, each a list: one order, or a batch of looks. A child never outlives its steward:
the kernel kills it (PR_SET_PDEATHSIG), and so does a thread that sees the end of its input.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

from mesh.core.errors import MeshError
from mesh.jobs import orders
from mesh.jobs.coding import decode, encode
from mesh.jobs.events import AnyAnswer, NotAsked
from mesh.jobs.interfaces import Hands, Maker, Request

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STEWARD_VARIABLE = "MESH_STEWARD_PID"
LOOKS = ("look", "look-machines")
log = logging.getLogger(__name__)

Answers = Sequence[AnyAnswer | None]


def serve(hands: Hands, maker: Maker | None = None) -> None:
    """Carry out the requests on standard input, and write answers to what was standard output.

    Whatever a hand prints goes to standard error, which is the steward's log.
    """
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    threading.Thread(target=_watch_input, name="mesh-hand-input", daemon=True).start()
    with answers:
        for line in sys.stdin.buffer:
            _write(answers, answer(decode(line, list[Request]), hands, maker))


def answer(requests: Sequence[Request], hands: Hands, maker: Maker | None) -> Answers:
    """Return the answer to each request of a line."""
    try:
        return _carry_out(requests, hands, maker)
    except MeshError as error:
        why = str(error)
    except Exception as error:
        log.exception("a hand failed")
        why = f"{type(error).__name__}: {error}"
    return [NotAsked(what=_subject(request), why=why) for request in requests]


def _carry_out(requests: Sequence[Request], hands: Hands, maker: Maker | None) -> Answers:
    request = requests[0]
    order = request.order
    if isinstance(order, orders.LookAtRun):
        return hands.look(requests)
    if isinstance(order, orders.Make | orders.Delete | orders.LookAtMachines):
        if maker is None:
            raise MeshError(f"no maker of machines {request.job.spec.machines.maker!r}")
        if isinstance(order, orders.LookAtMachines):
            return maker.look(requests)
        return [maker.make(request) if isinstance(order, orders.Make) else maker.delete(request)]
    match order:
        case orders.Prepare():
            return [hands.prepare(request)]
        case orders.Undo():
            return [hands.undo(request)]
        case orders.Start():
            return [hands.start(request)]
        case orders.Stop():
            return [hands.stop(request)]
        case orders.Fetch():
            return [hands.fetch(request)]


def _subject(request: Request) -> str:
    """Return what did not answer, for people."""
    machines = request.job.spec.machines
    return machines.maker or machines.cluster


def _write(answers: BinaryIO, found: Answers) -> None:
    data = memoryview(encode(list(found)).encode() + b"\n")
    while data:
        data = data[answers.write(data) :]


def die_with_parent() -> None:
    """Have the kernel kill this process when its steward dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    expected = os.environ.get(STEWARD_VARIABLE, "")
    if expected and os.getppid() != int(expected):  # it died before
        os.kill(os.getpid(), signal.SIGKILL)


def _watch_input() -> None:
    """Kill this process once nobody can write to its standard input any more."""
    poll = select.poll()
    poll.register(0, select.POLLHUP | select.POLLERR)
    while True:
        for _, happened in poll.poll():
            if happened & (select.POLLHUP | select.POLLERR):
                os.kill(os.getpid(), signal.SIGKILL)
