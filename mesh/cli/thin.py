"""The thin client: lets a command be done by a process that has imported everything before (cli/forkserver.py).

It lends its standard streams, its working directory, environment and arguments, hands on the signals that it gets, and
ends as the command does. What it does not import is what it saves.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

from mesh.config.private import private_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Mapping
    from types import FrameType
else:
    import _signal as signal
    import _socket as socket

COMMANDS = ("exec", "push", "run", "setup")  # those that agents may wait for
READS = ("-i", "--interactive", "--stdin")  # who reads a terminal in the background must be stopped by it
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)  # those that a command minds
LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_CORE,
    resource.RLIMIT_CPU,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_STACK,
)
GO = b"g"
ANSWER = 5.0  # seconds to hear that somebody is ready
KILLED = 125  # mesh failed, not the command; as core/errors.py has it


def socket_of(environ: Mapping[str, str]) -> str:
    """Where the process listens that runs this code with this Python; "": there can be none. Raises OSError."""
    directory = private_directory(environ)
    found = os.stat(os.path.dirname(__file__)), os.stat(sys.prefix)
    numbers = [sys.hexversion, *(number for one in found for number in (one.st_dev, one.st_ino))]
    return f"{directory}/.mesh-ready-{'-'.join(f'{number:x}' for number in numbers)}" if directory else ""


def surroundings() -> list[object]:
    """What a process has from where it was started: what is asked for from elsewhere is done there. Raises OSError."""
    return [
        [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user", "uts")],
        os.stat("/").st_ino,
        sorted(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(limit) for limit in LIMITS],
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # every command takes all that it may have
        sys.getfilesystemencoding(),
    ]


def hand_over(arguments: list[str]) -> int | None:
    """Have it done; return its exit status, or None if nobody has begun it, and it is to be done here.

    arguments: sys.argv
    """
    streams = [sys.stdin, sys.stdout, sys.stderr]
    if sys.platform != "linux" or arguments[1:2] not in [[command] for command in COMMANDS] or None in streams:
        return None
    if os.environ.get("MESH_KEEP") == "0" or "LD_PRELOAD" in os.environ:
        return None
    if sys.stdin.isatty() and any(word.startswith(READS) for word in arguments):
        return None
    try:
        path = socket_of(os.environ)
        if not path or not os.path.exists(path):
            return None
        way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        way.connect(path)
        _lend(way, arguments)
    except OSError:
        return None
    return _Foreground(way).wait()


def _lend(way: socket.socket, arguments: list[str]) -> None:
    """Send all that the command takes from us. Raises OSError."""
    os.umask(mask := os.umask(0o077))
    request = {
        "surroundings": surroundings(),
        "arguments": arguments,
        "environ": dict(os.environ),
        "umask": mask,
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "process": os.getpid(),
        "ignored": [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "streams": [
            (stream.encoding, stream.errors, stream.line_buffering, getattr(stream, "write_through", False))
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
    }
    here = os.open(".", os.O_PATH)
    try:
        numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, here))
        way.sendmsg([marshal.dumps(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    finally:
        os.close(here)


class _Foreground:
    """Stands at the terminal for the one who does the work, and gets its signals."""

    def __init__(self, way: socket.socket) -> None:
        self._way = way
        self._worker = 0  # its process
        self._noted: list[int] = []

    def wait(self) -> int | None:
        """Until the command has ended; as ``hand_over``."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for which, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(which, self._note)
        status = self._status()
        for which, handler in before.items():
            signal.signal(which, handler)
        self._way.close()
        if status is None and not self._worker:
            for number in self._noted:
                os.kill(os.getpid(), number)
            return None
        if status is None and self._noted:  # it ended by the signal, and so do we
            signal.signal(self._noted[-1], signal.SIG_DFL)
            os.kill(os.getpid(), self._noted[-1])
        if status is None:
            os.write(2, b"error: the process that did this was killed\n       `mesh ps` tells what is on the hosts\n")
            return KILLED
        return status

    def _status(self) -> int | None:
        try:
            self._way.settimeout(ANSWER)
            process = self._way.recv(16)
            if not process:
                return None
            self._way.settimeout(None)
            self._way.send(GO)
            self._worker = int(process)
            for number in self._noted:
                os.kill(self._worker, number)
            ended = self._way.recv(16)
            return int(ended) if ended else None
        except OSError:
            return None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.append(number)
        if self._worker:
            try:
                os.kill(self._worker, number)
            except OSError:
                pass  # it has ended
