"""The end of `mesh repl` on a rank: a namespace, and the cells that run in it one after another."""

from __future__ import annotations

import ast
import builtins
import fcntl
import linecache
import os
import queue
import rlcompleter
import signal
import struct
import sys
import termios
import threading
import time
import traceback
import types
from types import CodeType, FrameType
from typing import Callable, Dict, Iterator, List, Tuple, Union

from mesh.program.runtime import workspace
from mesh.program.runtime.here import Context, current

DRAIN_INTERVAL_S = 0.001  # between two looks whether the agent has read what was printed
DRAIN_LIMIT_S = 10.0  # then the cell is reported all the same: a process of it may print without an end
COMPLETIONS_MAX = 200
OK, ERROR, INTERRUPTED = "ok", "error", "interrupted"
Handler = Union[Callable[[int, "FrameType | None"], object], int, None]


class Shell:
    """A rank of the prompt. Cells run in the main thread of its process, where a signal can interrupt them."""

    def __init__(self) -> None:
        """Begin with an empty module ``__main__``, in the directory of the workspace."""
        self._cells: "queue.SimpleQueue[Tuple[int, str] | None]" = queue.SimpleQueue()
        self._number = 0  # of the cell that runs now
        self._cancelled = 0  # cells up to this one are interrupted
        self._is_interrupting = False  # the next SIGINT is for a cell
        self._before: Handler = None  # the handler of SIGINT for the process
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._names: Dict[str, object] = vars(module)
        self._names["__builtins__"] = builtins
        self._home = os.getcwd()
        workspace.begin(self._home)
        sys.path.insert(0, "")
        sys.argv = [""]

    def run(self) -> None:
        """Run cells until the program is stopped, and report each after all that it has printed."""
        context = current()
        context.on_stop(self._leave)
        self._before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self._on_signal)
        while True:
            cell = self._cells.get()
            if cell is None:
                return
            context.report("cell", self._work(context, *cell))

    # ---- calls of the client

    def submit(self, number: int, source: str) -> None:
        """Run a cell in its turn."""
        self._cells.put((number, source))

    def interrupt(self, number: int) -> None:
        """Interrupt a cell as Ctrl-C does, and one before it that still runs, with the processes of both."""
        self._cancelled = max(self._cancelled, number)
        if 0 < self._number <= number:
            for pid in descendants(os.getpid()):
                _send(pid, signal.SIGINT)
            self._is_interrupting = True
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)

    def value(self, expression: str) -> object:
        """Return the value of an expression. Raises what it raises."""
        found: object = eval(expression, self._names)
        return found

    def put(self, name: str, value: object) -> None:
        """Set a name."""
        self._names[name] = value

    def bring(self, changes: "List[workspace.Change]") -> None:
        """Make changes in the workspace of this host."""
        workspace.apply(self._home, changes)

    def complete(self, text: str) -> "List[str]":
        """Return what a word may become."""
        completer, found = rlcompleter.Completer(self._names), []  # type: ignore[var-annotated]
        while len(found) < COMPLETIONS_MAX:
            word = completer.complete(text, len(found))
            if word is None:
                break
            found.append(word)
        return found

    # ---- the main thread

    def _work(self, context: Context, number: int, source: str) -> "Dict[str, object]":
        """Run a cell; return its report."""
        began = time.monotonic()
        status = INTERRUPTED if number <= self._cancelled else self._execute(number, source)
        seconds = time.monotonic() - began
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the cell has closed it
                pass
        _drain(context)
        return {"cell": number, "status": status, "seconds": seconds}

    def _execute(self, number: int, source: str) -> str:
        name = f"<cell {number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        try:
            parts = list(compiled(source, name))
            try:
                self._number = number
                for part in parts:
                    exec(part, self._names)
            finally:
                self._number = 0
        except BaseException as error:
            self._number = 0  # an interrupt may have come before it was set
            _show(error)
            return INTERRUPTED if isinstance(error, KeyboardInterrupt) else ERROR
        return OK

    def _on_signal(self, number: int, frame: "FrameType | None") -> None:
        if self._is_interrupting:
            self._is_interrupting = False
            if 0 < self._number <= self._cancelled:
                raise KeyboardInterrupt
        elif callable(self._before):
            self._before(number, frame)

    def _leave(self) -> None:
        """End the loop, and the cell that runs."""
        self._cells.put(None)
        self.interrupt(max(self._number, 1))


def compiled(source: str, name: str) -> "Iterator[CodeType]":
    """Yield the code of a cell; a last expression shows its value. Raises SyntaxError and ValueError."""
    tree = ast.parse(source, name)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        yield compile(ast.Module(tree.body[:-1], []), name, "exec")
        yield compile(ast.Interactive([tree.body[-1]]), name, "single")
    else:
        yield compile(tree, name, "exec")


def descendants(root: int) -> "List[int]":
    """Return the processes below one, by /proc; none where the kernel does not list children."""
    found: List[int] = []
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
            except OSError:
                continue
            found += children
            todo += children
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has just ended
        pass


def _show(error: BaseException) -> None:
    """Print an exception as Python does, without the frames of this module."""
    try:
        shown = traceback.TracebackException(type(error), error, error.__traceback__)
        own = [frame for frame in shown.stack if frame.filename != __file__]
        shown.stack = traceback.StackSummary.from_list(own)
        sys.stderr.write("".join(shown.format()))
    except BaseException as other:  # its own text cannot be made
        sys.stderr.write(f"{type(error).__name__} (its text cannot be made: {type(other).__name__})\n")


def _drain(context: Context) -> None:
    """Wait until the agent has read all that was printed, so that the report of a cell comes behind it."""
    until = time.monotonic() + DRAIN_LIMIT_S
    for descriptor in (1, 2):
        while not context.stopped.is_set() and time.monotonic() < until:
            try:
                (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
            except OSError:  # the cell has closed it, or has put a file in its place
                break
            if not waiting:
                break
            time.sleep(DRAIN_INTERVAL_S)
