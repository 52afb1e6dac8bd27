"""The node that the current code runs in: its place, its stop, and the call that is being served."""

from __future__ import annotations

import dataclasses
import threading
from typing import Callable, Dict, List

from mesh.program.runtime.caller import Caller
from mesh.program.runtime.errors import NotLaunched
from mesh.program.runtime.exchange import exchange_of


@dataclasses.dataclass(frozen=True)
class Here:
    """The place of a node."""

    program: str  # its name
    label: str  # "actor/3"
    index: int  # in its group
    count: int  # nodes in its group
    host: str
    rank: int = 0
    attempt: int = 1


def _keep_here(kind: str, value: object) -> None:
    """Send nothing: a node in a thread of the client has no agent."""


class Context:
    """A node in this process: its place, its caller, and its stop."""

    def __init__(self, here: Here, caller: Caller, stop: "Callable[[int, str], None]") -> None:
        """stop: ends the whole program, with an exit status and a reason"""
        self.here, self.caller, self.stop_program = here, caller, stop
        # Sends a kind and a value to the client, behind all output that the agent has read; nothing in a thread.
        self.report: "Callable[[str, object], None]" = _keep_here
        self.stopped = threading.Event()
        self.reason = ""
        self._callbacks: List[Callable[[], object]] = []
        self._lock = threading.Lock()
        self.exchange = exchange_of((here.label, here.attempt), caller.hosts, caller.loss_of)
        caller.on_loss, caller.on_restart = self.exchange.lose, self.exchange.restart

    def on_stop(self, call: "Callable[[], object]") -> None:
        """Call a function once the program is stopped; at once if it is already."""
        with self._lock:
            if not self.stopped.is_set():
                self._callbacks.append(call)
                return
        call()

    def set_stopped(self, reason: str) -> None:
        """Note that the program is stopped, and call the functions of ``on_stop``."""
        with self._lock:
            if self.stopped.is_set():
                return
            self.reason = reason
            self.stopped.set()
            callbacks, self._callbacks = self._callbacks, []
        self.exchange.wake()
        self.caller.hasten()
        for call in callbacks:
            threading.Thread(target=call, name="mesh-on-stop", daemon=True).start()

    def set_signalled(self, timeout: float) -> None:
        """Note a signal to stop. timeout: seconds for the reason, which the agent sends before its signal"""
        if not self.stopped.wait(timeout):
            self.set_stopped("signal")


class Mark:
    """A mark that is set once, and that no thread waits for."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


class _Current(threading.local):
    """The node of a thread, and the call that it serves."""

    context: "Context | None" = None
    cancelled: "Mark | None" = None


CURRENT = _Current()
_CLIENTS: Dict[str, Caller] = {}  # of programs that this process has launched, by their ids
_PROCESS: List[Context] = []  # the only node of a process
_THREADED: Dict[str, Context] = {}  # of programs whose nodes are threads of this process, for threads of no node


def set_process_context(context: Context) -> None:
    """Set the only node of this process, for all of its threads."""
    _PROCESS[:] = [context]


def set_threaded(program: str, context: "Context | None") -> None:
    """Set the context of threads that nodes of a program have started, where nodes are threads; None: it has ended."""
    if context is None:
        _THREADED.pop(program, None)
    else:
        _THREADED[program] = context


def current_program() -> Context:
    """Return the node of this thread or, in a thread that is none of a node, the only program. Raises NotLaunched."""
    if CURRENT.context is None and not _PROCESS and len(_THREADED) == 1:
        return next(iter(_THREADED.values()))
    return current()


def set_client(program: str, caller: "Caller | None") -> None:
    """Set the caller of handles in the process that has launched a program; None: it has ended."""
    if caller is None:
        _CLIENTS.pop(program, None)
    else:
        _CLIENTS[program] = caller


def current_caller(program: str) -> "Caller | None":
    """Return the caller of a program for this thread."""
    context = CURRENT.context or (_PROCESS[0] if _PROCESS else None)
    if context is not None and context.caller.program == program:
        return context.caller
    return _CLIENTS.get(program)


def current() -> Context:
    """Return the node of this thread. Raises NotLaunched outside of nodes."""
    context = CURRENT.context or (_PROCESS[0] if _PROCESS else None)
    if context is None:
        raise NotLaunched("this code does not run in a node of a program")
    return context
