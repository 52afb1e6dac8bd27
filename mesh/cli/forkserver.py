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
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

import mesh
from mesh.app.owner import user_name
from mesh.cli.program import run
from mesh.cli.thin import GO, READY, WAIT, final_status, socket_of, surroundings
from mesh.config.clusters import clusters_path, load_clusters
from mesh.core.errors import MeshError
from mesh.keeper import server
from mesh.remote import blob
from mesh.screen.foreground import stand_behind

REQUEST = 1 << 20  # bytes of one; Linux takes packets of about 200 KB
LOOK = 5.0  # seconds between two looks whether the socket is still ours
NOT_HERE = ("mesh.remote.agent", "mesh.remote.meshrun", "mesh.__main__", "mesh.cli.forkserver")
BESIDES = ("fabric", "gitignore_parser", "paramiko", "yaml")  # what is imported when it is needed
STREAMS = ("stdin", "r"), ("stdout", "w"), ("stderr", "w")  # by descriptor

Files = list[tuple[str, int, int]]  # path, time of change, size


def main(life: int) -> None:
    """Serve until the keeper is gone, the socket is somebody else's, or the code is not what it was.

    life: a descriptor that is at its end when the keeper is
    """
    started = time.time_ns()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    path = socket_of(os.environ)
    if not path or _is_there(path):
        return
    _import_all()
    _rehearse()
    paths = {str(module.__file__) for module in sys.modules.values() if module.__dict__.get("__file__")}
    paths.update(map(str, blob.files()))
    files = _files(paths)
    is_alone = len(os.listdir("/proc/self/task")) == 1  # those who are forked would lack the other threads
    if not is_alone or any(changed >= started for _, changed, _ in files):
        return
    gc.collect()
    gc.freeze()  # so that what is shared with those who are forked stays so
    with contextlib.suppress(OSError), _listening(path) as listener:
        os.write(1, b"ready\n")  # nobody reads it, but sees that it can be read
        _serve(listener, life, path, lambda: _files(paths) == files)


def _import_all() -> None:
    """What a command may import."""
    for name in BESIDES:
        importlib.import_module(name)
    for found in pkgutil.walk_packages(mesh.__path__, "mesh."):
        if not found.name.startswith(NOT_HERE):
            importlib.import_module(found.name)


def _rehearse() -> None:
    """Do what each command would do anew."""
    clusters = clusters_path("", os.environ)
    with contextlib.suppress(MeshError, OSError):
        if clusters.is_file():  # what is in a pipe is for the command that it was given to
            load_clusters(clusters, required=False)
    server.socket_of(os.environ)
    user_name()


def _files(paths: Iterable[str]) -> Files:
    """Raises OSError."""
    found = [(path, os.stat(path)) for path in paths]
    return [(path, file.st_mtime_ns, file.st_size) for path, file in found]


def _is_there(path: str) -> bool:
    """Whether somebody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        return other.connect_ex(path) == 0


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    """Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        mine = os.stat(path).st_ino
        try:
            listener.listen(64)
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == mine:
                    os.unlink(path)


def _serve(listener: socket.socket, life: int, path: str, is_as_before: Callable[[], bool]) -> None:
    """Raises OSError: the socket is gone, or a file of the code, or something cannot be had."""
    mine = os.stat(path).st_ino
    poll = select.poll()
    for descriptor in (listener.fileno(), life):
        poll.register(descriptor, select.POLLIN)
    while os.stat(path).st_ino == mine:
        ready = [descriptor for descriptor, _ in poll.poll(LOOK * 1000)]
        if life in ready:
            return
        if ready and not _fork(listener, is_as_before):
            return


def _fork(listener: socket.socket, is_as_before: Callable[[], bool]) -> bool:
    """Have a command done; False, and it is not done, if the code is not what it was. Raises OSError."""
    way, _ = listener.accept()
    verdict, answer = os.pipe()
    with way, open(verdict, "rb", 0) as told, open(answer, "wb", 0) as telling:
        if os.fork() == 0:
            telling.close()
            listener.close()
            _work(way, told)
        # It makes itself ready meanwhile, and does nothing before it hears of this.
        if not is_as_before():
            return False
        with contextlib.suppress(OSError):  # it is gone
            telling.write(GO)
        return True


# ---- in a process that was forked


def _work(way: socket.socket, told: io.FileIO) -> NoReturn:
    """Be the thin client's process from here on. Whatever happens, nothing of the server's goes on in here.

    told: says GO if the code is what it was
    """
    status = 1
    try:
        way.settimeout(5 * WAIT)
        way.send(READY)
        if _take_over(way, told):
            way.settimeout(None)
            watch = _Watch(way)
            watch.start()
            server.expect(sys.argv[1:], os.environ)
            status = _run()
            watch.end(status)
            for number in range(len(STREAMS)):  # whoever reads them need not wait until this process is taken apart
                with contextlib.suppress(OSError):
                    os.close(number)
    finally:
        os._exit(status)


def _take_over(way: socket.socket, told: io.FileIO) -> bool:
    """Become what the thin client is; False if it is somewhere else or gone, or the code is not what it was.

    Raises OSError, and ValueError or TypeError if it has sent something else. In any of these cases it works itself.
    """
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
    stand_behind()

    def end_by(number: int, frame: FrameType | None) -> None:
        """As a process does to whom the signal means nothing."""
        with contextlib.suppress(OSError):
            way.send(str(-number).encode())
        os._exit(128 + number)

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else end_by)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN if signal.SIGTSTP in request["ignored"] else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    with told:
        if told.read(1) != GO:
            return False
    way.send(READY)
    return way.recv(1) == GO


def _stream(number: int, mode: str, encoding: str, errors: str, by_line: bool, at_once: bool) -> io.TextIOWrapper:
    raw = open(number, mode + "b", 0 if at_once and mode == "w" else -1, closefd=False)  # noqa: SIM115  (it stays)
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=by_line, write_through=at_once)


class _Watch(threading.Thread):
    """Hears of the thin client's signals, and ends this process with it, as if it were that."""

    def __init__(self, way: socket.socket) -> None:
        super().__init__(name="mesh-watch", daemon=True)
        self._way = way
        self._is_over = False

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while heard := self._way.recv(1):
                os.kill(os.getpid(), heard[0])
        if not self._is_over:
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, status: int) -> None:
        """Tell with what status the command has ended."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._way.send(str(status).encode())


def _run() -> int:
    """Run it, and return its status as Python would exit with it."""
    try:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code: object = run(sys.argv)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it comes too late
    return final_status(code)


if __name__ == "__main__":
    main(0)
