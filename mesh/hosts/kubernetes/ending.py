"""Clean up after SIGTERM and SIGHUP, which would otherwise end a command at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise SystemExit within the block. A second one ends the process at once.

    Changes nothing outside of the main thread, which alone can set handlers, nor for a signal that has a handler.
    """

    def end(number: int, frame: object) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
        raise SystemExit(128 + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [one for one in SIGNALS if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
