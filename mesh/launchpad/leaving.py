"""The end of the interpreter: it waits for programs that were launched, and exits with their status."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # imported before our hook is registered: hooks run in reverse order  # noqa: F401
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from mesh.core.errors import MeshError
from mesh.launchpad.exiting import at_end
from mesh.program.ledger import Stop
from mesh.program.running import ProgramResult

Handler = signal.Handlers | Callable[[int, FrameType | None], None]
FAILURE_STATUS = 1


class Ending(Protocol):
    """A program whose end the interpreter waits for."""

    run: str

    def wait(self) -> ProgramResult:
        """Wait until nothing of the program is left."""

    def end(self, stop: Stop) -> None:
        """Stop the program for a reason."""


_RUNNING: list[Ending] = []
_STATUS: list[int] = []
_ASKED: queue.SimpleQueue[Stop] = queue.SimpleQueue()  # its put may interrupt any other call


# A process that the main program forks, as multiprocessing does, waits for none of them.
os.register_at_fork(after_in_child=_RUNNING.clear)


def wait_at_exit(running: Ending) -> None:
    """Have the interpreter wait for the end of a program before it exits, and exit with its status."""
    if not _RUNNING:
        at_end(_wait)
        atexit.register(_leave)
    _RUNNING.append(running)


def _wait(error: BaseException | None) -> None:
    """Wait for all programs. The first signal stops them, the second ends this process."""
    if not _RUNNING:
        return
    try:
        threading.Thread(target=_end_when_asked, name="mesh-signal", daemon=True).start()
    except RuntimeError as refused:  # Python 3.12, after its own prompt
        sys.stderr.write(f"mesh: programs that still run are ended ({refused}); at this prompt, call wait() first\n")
        _STATUS.append(FAILURE_STATUS)
        return
    # Ctrl-C has ended the main program. An earlier one at Python's own prompt ends none.
    is_interrupted = isinstance(error, KeyboardInterrupt) and not hasattr(sys, "ps1")
    handler: Handler = signal.SIG_DFL if is_interrupted else _stop
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    if is_interrupted:
        _ASKED.put(_stop_by(signal.SIGINT))
    try:
        for running in _RUNNING:
            try:
                result = running.wait()
            except Exception as error:  # Python would report it, and exit with 0
                sys.stderr.write(f"mesh: {running.run or 'the program'}: {error}\n")
                _STATUS.append(error.exit_code if isinstance(error, MeshError) else FAILURE_STATUS)
                continue
            if not result.ok:
                cause = result.failures.get(result.label)
                if result.why or cause:
                    sys.stderr.write(f"mesh: {result.label or 'the program'}: {cause or result.why}\n")
                _STATUS.append(result.exit_code)
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _stop(number: int, frame: FrameType | None) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_DFL)
    _ASKED.put(_stop_by(number))


def _stop_by(number: int) -> Stop:
    return Stop(reason="signal", code=128 + number, why=signal.Signals(number).name)


def _end_when_asked() -> None:
    """Stop all programs once there is a reason. A handler that starts threads may wait for a lock of its own thread."""
    stop = _ASKED.get()
    for running in _RUNNING:
        threading.Thread(target=running.end, args=(stop,), name="mesh-end", daemon=True).start()


def _leave() -> None:
    """Exit with the status of the first program that has failed: Python's own exit would be 0."""
    if not _STATUS:
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    logging.shutdown()
    os._exit(_STATUS[0])
