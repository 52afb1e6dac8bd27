"""The guardian: the agent's parent. Should the agent be killed, it ends what the agent had started."""

from __future__ import annotations

import os
import time

from .lean import signal, socketpair
from .processes import become_subreaper, descendants, hear_of_parents_end, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .lean import Socket

SWEPT = 95  # exit status: the agent was killed, and everything that it had started is gone
NOT_SWEPT = 94  # the same, but something is left
PATIENCE = 5.0  # seconds for SIGKILL to take effect
MOST_SAID = 200  # bytes of what the agent says of its own error


def guard(serve: Callable[[Socket], None], clean_up: Callable[[], list[str]]) -> None:
    """Run the agent, ``serve``, as a child of this process; does not return.

    serve gets a socket: a descriptor that is sent through it stays open as long as one of the two processes lives
    clean_up: called when the agent was killed and our descendants are gone; returns what is left, one line each
    """
    guardian = os.getpid()
    ours, theirs = socketpair()
    heard, words = os.pipe()
    agent = os.fork()
    if not agent:
        status = 1
        try:
            ours.close()
            become_subreaper()
            hear_of_parents_end(guardian)
            serve(theirs)
            status = 0
        except BaseException as error:
            import traceback

            traceback.print_exc()
            last = traceback.format_exception_only(type(error), error)[-1]
            os.write(words, " ".join(last.split()).encode("utf-8", "replace")[:MOST_SAID])
        finally:
            os._exit(status)
    theirs.close()
    os.set_blocking(heard, False)
    _let_go_of_the_channel()
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(agent, number))
    status = _wait_for(agent)
    if status == 0:
        os._exit(0)  # it has looked itself, and what is still there is there on purpose or was named
    how = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else _failure(heard)
    left = [*end_all(), *clean_up()]
    done = f"{len(left)} processes of the run are left" if left else "its processes were ended"
    os.write(2, f"the agent is gone ({how}); {done}\n".encode())
    os._exit(NOT_SWEPT if left else SWEPT)


def _failure(heard: int) -> str:
    """What the agent has said of its own error, in one line."""
    try:
        said = os.read(heard, MOST_SAID).decode("utf-8", "replace")
    except BlockingIOError:
        said = ""
    return f"it failed: {said}" if said else "it failed"


def end_all() -> list[str]:
    """Kill everything below us; return what is left."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = descendants(os.getpid())
        if not found:
            return []
        foreign = send_signal(found, signal.SIGKILL)
        if time.monotonic() > deadline or len(foreign) == len(found):
            return [process.told() for process in found]
        _reap()
        time.sleep(0.005)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _wait_for(agent: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return status


def _let_go_of_the_channel() -> None:
    """The channel is the agent's: it must end with the agent."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
