"""The thin client: lets a command be done by a process that has imported everything before (cli/forkserver.py).

It lends its standard streams, its working directory, environment and arguments, hands on the signals that it gets, and
ends as the command does. What it does not import is what it saves.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys
import zlib

from mesh.config.private import AT_START, private_directory

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
WATCH = "--watch"  # what can be suspended stays a job of the shell's
OWN = ("/dev/fd/", "/proc/self/")  # places that are somebody else's to another process
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
FLAGS = ("dev_mode", "ignore_environment", "isolated", "no_site", "no_user_site", "optimize")  # of Python's start
RIGHTS = ("Cap", "Cpus_allowed_list", "Mems_allowed_list", "NoNewPrivs", "Seccomp:")  # lines of /proc/self/status
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)  # those that a command minds
SPARED = (signal.SIGHUP, signal.SIGTSTP)  # if they were ignored before, it leaves them so (engine/launcher.py)
READY, GO = b"r", b"g"
WAIT = 1.0  # seconds for the other side to say that it is there, and then five times as long to be ready
KILLED = b"error: the process that did this was killed\n       `mesh ps` tells what is on the hosts\n"
CANNOT_FLUSH = 120  # as Python itself exits then
FAILED = 125  # mesh failed, not the command; as core/errors.py has it


def socket_of(environ: Mapping[str, str]) -> str:
    """Where the process listens that runs this code, for this home and agent of keys; "": there can be none.

    Raises OSError.
    """
    directory = private_directory(environ)
    code, python = os.stat(os.path.dirname(__file__)), os.stat(sys.prefix)
    known = [sys.hexversion, code.st_dev, code.st_ino, python.st_dev, python.st_ino]
    text = f"{known} {environ.get('HOME')} {environ.get('SSH_AUTH_SOCK')}"
    return f"{directory}/.mesh-ready-{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}" if directory else ""


def final_status(code: object) -> int:
    """Flush the standard streams, and return the status that Python exits with. code: of a SystemExit"""
    status = code if isinstance(code, int) else int(code is not None)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            status = CANNOT_FLUSH
    return status & 0xFF


def surroundings() -> list[object]:
    """What a process has from where it was started: what is asked for from elsewhere is done there. Raises OSError.

    It is believed: it guards against mistakes, and not against the user himself.
    """
    root, ours = os.stat("/"), os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return [
        [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))],
        [root.st_dev, root.st_ino],
        [_text(name) for name in ("cgroup", "oom_score_adj", "attr/current", "personality")],
        [line for line in _text("status").split("\n") if line.startswith(RIGHTS)],
        [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        [resource.getrlimit(limit) for limit in LIMITS],
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # every command takes all that it may have
        sys.getfilesystemencoding(),
        [getattr(sys.flags, name) for name in FLAGS],
        [*sys.warnoptions, *sorted(sys._xoptions)],
        [path for path in sys.path[1:] if path != ours],  # the keeper puts that first
        sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(AT_START) and k != "PYTHONPATH"),
    ]


def _text(name: str) -> str:
    try:
        with open(f"/proc/self/{name}", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # a kernel without it
        return ""


def hand_over(arguments: list[str]) -> int | None:
    """Have it done; return its exit status, or None if nobody has begun it, and it is to be done here.

    arguments: sys.argv
    """
    if sys.platform != "linux" or arguments[1:2] not in [[command] for command in COMMANDS] or WATCH in arguments:
        return None
    if os.environ.get("MESH_KEEP") == "0" or not _can_lend_streams():
        return None
    if any(place in word for place in OWN for word in [*arguments, os.environ.get("MESH_CLUSTERS", "")]):
        return None
    try:
        path = socket_of(os.environ)
        if not path or not os.path.exists(path):
            return None
        way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        way.settimeout(WAIT)
        way.connect(path)
    except OSError:
        return None
    return _Client(way).run(arguments)


def _can_lend_streams() -> bool:
    """Whether it makes no difference to them who uses them."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return False
    if sys.stdin.isatty() and not sys.stderr.isatty():
        return False  # passwords are asked for at /dev/tty, which the other one does not have
    for number in range(3):
        try:
            if os.tcgetpgrp(number) != os.getpgrp():
                return False  # who reads a terminal in the background must be stopped by it
        except OSError:  # no terminal, or not the one that controls us
            pass
    return True


class _Client:
    """Stands at the terminal for the one who does the work, and gets its signals."""

    def __init__(self, way: socket.socket) -> None:
        self._way = way
        self._is_at_work = False
        self._noted: list[int] = []  # signals that came before

    def run(self, arguments: list[str]) -> int | None:
        """Until the command has ended; as ``hand_over``."""
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for which, handler in before.items():
            if handler != signal.SIG_IGN or which not in SPARED:
                signal.signal(which, self._note)
        status = self._status(arguments, [number for number, handler in before.items() if handler == signal.SIG_IGN])
        for which, handler in before.items():
            signal.signal(which, handler)
        self._way.close()
        if not self._is_at_work:
            for number in self._noted:
                os.kill(os.getpid(), number)
            return None
        if status is None:
            try:
                os.write(2, KILLED)
            except OSError:
                pass
            return FAILED
        if status < 0:  # it ended by a signal, and so do we
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        return status

    def _status(self, arguments: list[str], ignored: list[int]) -> int | None:
        """How it ended, as ``os.waitstatus_to_exitcode`` says it; None: not begun, or killed."""
        try:
            if self._way.recv(1) != READY:  # not before: what is lent to nobody stays open
                return None
            self._way.settimeout(5 * WAIT)
            self._lend(arguments, ignored)
            if self._way.recv(1) != READY:
                return None
            self._way.settimeout(None)
            self._way.send(GO)
            self._is_at_work = True
            while self._noted:
                self._way.send(bytes([self._noted.pop(0)]))
            return int(self._way.recv(16) or b"none")
        except (OSError, ValueError):
            return None

    def _lend(self, arguments: list[str], ignored: list[int]) -> None:
        mask = os.umask(0o077)
        os.umask(mask)
        request = {
            "surroundings": surroundings(),
            "arguments": arguments,
            "environ": dict(os.environ),
            "umask": mask,
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "ignored": ignored,
            "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
            "streams": [
                (stream.encoding, stream.errors, stream.line_buffering, getattr(stream, "write_through", False))
                for stream in (sys.stdin, sys.stdout, sys.stderr)
            ],
        }
        here = os.open(".", os.O_PATH)
        try:
            numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, here))
            self._way.sendmsg([marshal.dumps(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        finally:
            os.close(here)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._is_at_work:
            self._noted.append(number)
            return
        try:
            self._way.send(bytes([number]))
        except OSError:
            pass  # it has ended
