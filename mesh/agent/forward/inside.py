"""The debugger within a rank: pdb that speaks through a Unix socket of its process.

The text of this module stands in the sitecustomize of a run with --debug, and a rank of Python 3.14 can load it later.
So it imports nothing of mesh. It runs on Python 3.8 and later, and imports little before a process stops.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Callable, Dict, Protocol, TextIO, Tuple, Type

    class Debugger(Protocol):
        """The part of pdb that stops a process."""

        is_stopped: bool  # it waits for a client, or for a line of one

        def reset(self) -> None:
            """Forget earlier stops."""

        def interaction(self, frame: FrameType | None, error: TracebackType | None) -> None:
            """Let a client look at a frame, or at the frames of an error."""

        def set_trace(self, frame: FrameType | None) -> None:
            """Stop at the next line of a frame."""

        def stop_at(self, frame: FrameType) -> None:
            """Stop now, at a frame that may wait for something."""


VARIABLE = "MESH_DEBUG"  # the directory of the sockets, and the number of the rank as the last part of the path
OWNER_VARIABLE = "MESH_DEBUG_OWNER"  # the process id of the first Python of the rank
STOP_SIGNAL = 58  # a real-time signal, beside that of stacks
_clients: Dict[int, Client] = {}  # by process id: a forked process has its own
_made: Dict[Tuple[int, int], Debugger] = {}  # by process id and thread: each thread has its own place in the program


class Client:
    """The file that pdb reads and writes: the socket of the client that is connected, one at a time.

    Threads that stop together have it one after the other: ``turn`` is held at a prompt.
    """

    encoding = "utf-8"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._file: TextIO | None = None
        self.turn = RLock()  # a thread may stop in what it evaluates at its prompt
        self._thread = ""  # the name of the thread that has spoken last; "": the main one

    def wait(self, is_asked: bool) -> bool:
        """Wait until a client is connected; return False if none can be, as on a full disk.

        is_asked: a client has had the process stop, and will come
        """
        rank = os.path.basename(self._prefix)
        try:
            if self._file is None:
                self._accept(f"{self._prefix}-{os.getpid()}" + "-asked" * is_asked, rank)
        except OSError as error:
            sys.stderr.write(f"mesh: rank {rank} goes on, as no debugger can reach it ({error.strerror or error})\n")
            return False
        return True

    def _accept(self, path: str, rank: str) -> None:
        import socket

        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(path + ".new")
            os.chmod(path + ".new", 0o600)
            listener.listen(1)
            os.rename(path + ".new", path)
            sys.stderr.write(f"mesh: rank {rank} waits in its debugger\n")
            sys.stderr.flush()
            connection, _ = listener.accept()
        finally:
            listener.close()
            for name in (path, path + ".new"):
                if os.path.exists(name):
                    os.unlink(name)
        with connection:
            self._file = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")

    def close(self) -> None:
        """End the connection to the client."""
        file, self._file, self._thread = self._file, None, ""
        if file is not None:
            try:
                file.close()
            except OSError:  # it has left before
                pass

    def name_thread(self) -> None:
        """Send the name of this thread, if another one has spoken last. The first one of a client is the main one."""
        threading = sys.modules.get("threading")
        name = ""
        if threading is not None and threading.current_thread() is not threading.main_thread():
            name = threading.current_thread().name
        if name != self._thread:
            self._thread = name
            self.write(f"thread {name or 'MainThread'}\n")

    def readline(self) -> str:
        """Return the next line; "" once the client has left."""
        try:
            return self._file.readline() if self._file is not None else ""
        except (OSError, ValueError):
            return ""

    def write(self, text: str) -> None:
        """Send a text; leave it where the client has left."""
        try:
            if self._file is not None:
                self._file.write(text)
        except (OSError, ValueError):
            pass

    def flush(self) -> None:
        """Send what was written."""
        try:
            if self._file is not None:
                self._file.flush()
        except (OSError, ValueError):
            pass


def debugger() -> Debugger:
    """Return the debugger of this thread."""
    pid, thread = os.getpid(), get_ident()
    if pid not in _clients:
        _clients.setdefault(pid, Client(os.environ[VARIABLE]))
    if (pid, thread) not in _made:
        _made[pid, thread] = _new(_clients[pid])
    return _made[pid, thread]


def _new(client: Client) -> Debugger:
    import bdb
    import pdb

    class RankDebugger(pdb.Pdb):
        """Pdb that waits for a client at each stop, and goes on only when it was ordered to."""

        def __init__(self) -> None:
            pdb.Pdb.__init__(self, stdin=client, stdout=client, nosigint=True, readrc=False)  # type: ignore[arg-type]
            self._is_left = self._goes_on = self._is_asked = self.is_stopped = False

        def interaction(self, frame: FrameType | None, error: TracebackType | None) -> None:
            before, self.is_stopped = self.is_stopped, True  # also while another thread has the turn
            try:
                with client.turn:
                    self._converse(frame, error)
            finally:
                self.is_stopped = before

        def _converse(self, frame: FrameType | None, error: TracebackType | None) -> None:
            self._goes_on = False
            while client.wait(self._is_asked):
                self._is_left = False
                client.name_thread()
                pdb.Pdb.interaction(self, frame, error)
                client.flush()
                if not self._is_left:
                    break
                client.close()
            else:  # no client can come
                self.do_continue("")
            if self._goes_on:
                self._is_asked = False
                client.close()

        def do_continue(self, arg: str) -> bool | None:
            self._goes_on = True
            return pdb.Pdb.do_continue(self, arg)

        def do_quit(self, arg: str) -> bool | None:
            self._goes_on = True
            return pdb.Pdb.do_quit(self, arg)

        def do_EOF(self, arg: str) -> bool | None:
            self._is_left = True
            return True

        do_c = do_cont = do_continue
        do_q = do_exit = do_quit

        def stop_at(self, frame: FrameType) -> None:
            self.reset()
            self._is_asked = True
            self.interaction(frame, None)
            if self.quitting:
                raise bdb.BdbQuit
            if not self._goes_on:  # step or next
                self.botframe = _trace(frame, self.trace_dispatch)

    return RankDebugger()


def _trace(frame: FrameType, dispatch: Callable[[FrameType, str, object], object]) -> FrameType:
    """Have this thread traced, with a frame and all above it; return the highest one."""
    frame.f_trace = dispatch
    while frame.f_back is not None:
        frame = frame.f_back
        frame.f_trace = dispatch
    sys.settrace(frame.f_trace)
    return frame


def _is_main() -> bool:
    """Return True for the first Python of the rank, and workers of torchrun: another process may fail on purpose."""
    owner = os.environ.get(OWNER_VARIABLE, "")
    is_worker = "TORCHELASTIC_RUN_ID" in os.environ and str(os.getppid()) == owner
    return is_worker or str(os.getpid()) == owner


def install() -> None:
    """Have this process stop at breakpoint(), at an exception that ends it, and on request."""
    if not os.environ.get(VARIABLE):
        return
    os.environ.setdefault(OWNER_VARIABLE, str(os.getpid()))
    before = sys.excepthook

    def on_error(kind: Type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if trace is None or issubclass(kind, KeyboardInterrupt) or kind.__name__ == "BdbQuit" or not _is_main():
            return
        found = debugger()
        found.reset()
        found.interaction(None, trace)

    def on_breakpoint(*words: object, **more: object) -> None:
        debugger().set_trace(sys._getframe().f_back)

    sys.excepthook = on_error
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = on_breakpoint
    listen()


def listen() -> None:
    """Have this process stop on request."""
    import signal

    def on_signal(number: int, frame: FrameType | None) -> None:
        found = debugger()
        if frame is not None and not found.is_stopped:  # a second pdb would read within the read of the first
            found.stop_at(frame)

    try:
        signal.signal(STOP_SIGNAL, on_signal)
    except (OSError, ValueError):
        pass
