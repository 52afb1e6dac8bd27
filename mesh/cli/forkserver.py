"""A process that has imported all of mesh, and forks for each command that is handed to it (cli/thin.py).

The keeper has one beside itself, and it ends with the keeper. To the user, what it forks is the process that he has
started: with its streams, working directory, environment, signals and end. It runs the program that others run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import marshal
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import mesh
from mesh.cli.program import MeshProgram
from mesh.cli.thin import GO, SIGNALS, socket_of, surroundings
from mesh.sinks.foreground import stood_for_by

REQUEST = 1 << 20  # bytes of one; Linux takes packets of about 200 KB
LOOK = 5.0  # seconds between two looks whether the socket is still ours
NOT_HERE = ("mesh.remote.agent", "mesh.remote.meshrun", "mesh.__main__", "mesh.cli.forkserver")
BESIDES = ("fabric", "gitignore_parser", "paramiko", "yaml")  # what is imported when it is needed
STREAMS = ("stdin", "r"), ("stdout", "w"), ("stderr", "w")  # by descriptor
CANNOT_FLUSH = 120  # as Python itself exits then


def main(keeper: int) -> None:
    """Serve until the keeper is gone, the socket is somebody else's, or the code is not what it was.

    keeper: a descriptor that is at its end when the keeper is
    """
    started = time.time_ns()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    _import_all()
    paths = {str(module.__file__) for module in sys.modules.values() if module.__dict__.get("__file__")}
    files = _files(paths)
    is_alone = len(os.listdir("/proc/self/task")) == 1  # those who are forked would lack the other threads
    path = socket_of(os.environ)
    if not path or not is_alone or any(changed >= started for _, changed, _ in files):
        return
    gc.collect()
    gc.freeze()  # so that what is shared with those who are forked stays so
    with _listener(path) as listener:
        mine = os.stat(path).st_ino
        try:
            os.write(1, b"ready\n")  # nobody reads it, but sees that it can be read
            _serve(listener, keeper, lambda: os.stat(path).st_ino == mine and _files(paths) == files)
        except (BrokenPipeError, FileNotFoundError):  # the keeper is gone, or the socket, or a file of the code
            pass
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == mine:
                    os.unlink(path)


def _serve(listener: socket.socket, keeper: int, is_wanted: Callable[[], bool]) -> None:
    poll = select.poll()
    for descriptor in (listener.fileno(), keeper):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(LOOK * 1000)]
        if keeper in ready or not is_wanted():
            return
        if ready:
            way, _ = listener.accept()
            with way, contextlib.suppress(OSError):  # no process is to be had
                if os.fork() == 0:
                    _work(way)


def _import_all() -> None:
    """What a command may import."""
    for name in BESIDES:
        importlib.import_module(name)
    for found in pkgutil.walk_packages(mesh.__path__, "mesh."):
        if not found.name.startswith(NOT_HERE):
            importlib.import_module(found.name)


def _files(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    """Path, time of change and size of each file. Raises FileNotFoundError."""
    found = [(path, os.stat(path)) for path in paths]
    return [(path, file.st_mtime_ns, file.st_size) for path, file in found]


def _listener(path: str) -> socket.socket:
    """Raises OSError: another one listens there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other, contextlib.suppress(ConnectionRefusedError):
            other.connect(path)
            raise
        os.unlink(path)
        listener.bind(path)
    listener.listen(64)
    return listener


# ---- in a process that was forked


def _work(way: socket.socket) -> NoReturn:
    """Be the thin client's process from here on."""
    try:
        if not _take_over(way):
            os._exit(0)
    except BaseException:  # nothing of the server's is to go on in here
        os._exit(1)
    watch = _Watch(way)
    watch.start()
    status = _run()
    watch.end(status)
    os._exit(status)


def _take_over(way: socket.socket) -> bool:
    """Become what the thin client is; False if it is somewhere else, or gone. Raises all sorts of things."""
    data, ancillary, _, _ = way.recvmsg(REQUEST, socket.CMSG_SPACE(4 * 4))
    request: dict[str, Any] = marshal.loads(data)
    ((_, _, sent),) = ancillary
    lent = memoryview(sent).cast("i").tolist()
    if request["surroundings"] != surroundings():
        return False
    os.fchdir(lent[-1])
    for number, (name, mode) in enumerate(STREAMS):
        os.dup2(lent[number], number)
        setattr(sys, name, _stream(number, mode, *request["streams"][number]))
    for number in lent:
        os.close(number)
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    os.umask(request["umask"])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"], most))
    sys.argv = request["arguments"]
    stood_for_by(request["process"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    way.send(str(os.getpid()).encode())
    return way.recv(1) == GO


def _stream(number: int, mode: str, encoding: str, errors: str, by_line: bool, at_once: bool) -> io.TextIOWrapper:
    raw = open(number, mode + "b", closefd=False)  # noqa: SIM115  (the process has it)
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=by_line, write_through=at_once)


class _Watch(threading.Thread):
    """Ends this process when the thin client is gone, as if it were that."""

    def __init__(self, way: socket.socket) -> None:
        super().__init__(name="mesh-watch", daemon=True)
        self._way = way
        self._is_over = False

    def run(self) -> None:
        with contextlib.suppress(OSError):
            self._way.recv(1)
        if not self._is_over:
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, status: int) -> None:
        """Tell with what status the command has ended."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._way.send(str(status).encode())


def _run() -> int:
    """Run the program, and return its status as Python would exit with it."""
    try:
        MeshProgram().run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = CANNOT_FLUSH
    return status


if __name__ == "__main__":
    main(0)
