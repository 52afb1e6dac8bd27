"""Signals of the user and the system, as events of a run."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from mesh.core.events import Event, Interrupted, Notice

NOTED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
LEFT_IF_IGNORED = (signal.SIGHUP, signal.SIGTSTP)  # as nohup and a shell without job control leave them
NO_SUSPENSION = "not suspended: without us the hosts would end the run; Ctrl-C ends it"


@contextlib.contextmanager
def noted_signals(post: Callable[[Event], None]) -> Iterator[None]:
    """Within: post an event for each signal that asks for the end. Before and after, the handlers are the caller's.

    Only the main thread can have handlers: in another one this does nothing, and signals stay the caller's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            post(Notice(time=time.time(), text=NO_SUSPENSION))
        else:
            post(Interrupted(time=time.time(), signal=number))

    found = {number: signal.getsignal(number) for number in NOTED_SIGNALS}
    # None: a handler that was not installed from Python, and could not be restored.
    before = {
        number: handler
        for number, handler in found.items()
        if handler is not None and not (number in LEFT_IF_IGNORED and handler is signal.SIG_IGN)
    }
    try:
        for number in before:
            signal.signal(number, note)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
