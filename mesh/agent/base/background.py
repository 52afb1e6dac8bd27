"""Work in a child process, for work that takes longer than the loop may wait."""

from __future__ import annotations

import gc
import os

from mesh.agent.base.errors import hint, why
from mesh.agent.base.light import dumps, loads, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Dict

    Answer = Dict[str, object]  # a JSON object

READ_BYTES = 1 << 16  # as much as a pipe of the default size holds
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILLED: Answer = {"error": "a process of mesh was killed there", "hint": "`mesh check CLUSTER` shows the free memory"}


class Background:
    """A child process that calls one function and answers with a JSON object; for a failure, one with "error"."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        """Fork the child. Raises OSError if there is no process to have. work: called in the child"""
        self._received = b""
        self.channel, answer_end = os.pipe()
        os.set_blocking(self.channel, False)
        try:
            self.pid = fork()
        except OSError:
            os.close(self.channel)
            os.close(answer_end)
            raise
        if not self.pid:
            try:
                gc.disable()  # the child soon ends; a collection takes a fifth of reading a large record
                write_all(answer_end, dumps(_answer(work)).encode())
            finally:
                os._exit(0)
        os.close(answer_end)

    def read(self) -> None:
        """Read a part of the answer: the child waits while the pipe is full."""
        try:
            self._received += os.read(self.channel, READ_BYTES)
        except BlockingIOError:
            pass

    def end(self) -> Answer:
        """Return the answer of a child that has ended."""
        self.read()
        self.close()
        try:
            answer: Answer = loads(self._received)
        except ValueError:
            return KILLED
        return answer

    def close(self) -> None:
        """Close the pipe; a child that still answers ends by SIGPIPE or an error."""
        os.close(self.channel)


def fork() -> int:
    """Fork a child that goes on as Python. Signals that end programs end it too; the agent handles or ignores them.

    They are blocked meanwhile, because the child would lose one that came before it has its own handlers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for number in ENDING_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a blocking descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def _answer(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except OSError as error:
        return {"error": why(error), "hint": hint(error), "errno": error.errno or 0}
    except Exception as error:  # input that breaks the rules
        return {"error": f"{type(error).__name__}: {error}", "hint": ""}
